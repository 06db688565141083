"""Times kernels of a contest, and rivals, on a GPU: side by side, in turns.

python3 contest.py [--budget SECONDS] [--out contest.jsonl] [--without RIVAL]

It stands beside ``runner.py`` and ``bundle.json``, and needs numpy, CuPy, and what it
compares with: JAX and torch. Several processes prepare entries, one at a time has the
GPU, and a crash costs one entry. Entries in the file of results are skipped. All arrays
are on the GPU before anything is timed.

A contender is called as often as fits some milliseconds, and then waited for: the work
of the host counts if it takes longer than that of the GPU. ``device_s`` is the time of
our kernel alone, between two events.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
PREFIX = "given_"
"""Of the arguments of our kernels, whose other names are those of a canonical form."""
ROUNDS = 7
TURN_S = 4e-3
"""For which a contender is called in its turn, and once at least."""
OURS = "feinsum"


def main() -> int:
    options = _options()
    bundle = json.loads((HERE / "bundle.json").read_text())
    if options.worker is not None:
        work(bundle, options)
        return 0
    options.end = time.time() + options.budget
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda k: keep_working(bundle, k, options), range(options.jobs)))
    print(table(options.out))
    return 1 if missing(bundle, options) else 0


def keep_working(bundle: Any, k: int, options: argparse.Namespace) -> None:
    """A process for every so-manieth entry, and a new one after each that ends it."""
    options = argparse.Namespace(**{**vars(options), "worker": k})
    command = [sys.executable, __file__, "--worker", k, "--jobs", options.jobs,
               "--out", options.out, "--end", options.end]  # fmt: skip
    command += [x for rival in options.without for x in ("--without", rival)]
    while missing(bundle, options) and time.time() < options.end:
        left = options.end - time.time()
        try:
            subprocess.run(list(map(str, command)), timeout=left + 10, check=False)
        except subprocess.TimeoutExpired:
            return


def missing(bundle: Any, options: argparse.Namespace) -> list[int]:
    """The entries that have not been started yet: of one process, or of all."""
    done = {line["name"] for line in read(options.out)}
    entries = range(len(bundle["workloads"]))
    if options.worker is not None:
        entries = entries[options.worker :: options.jobs]
    return [k for k in entries if bundle["workloads"][k]["name"] not in done]


def work(bundle: Any, options: argparse.Namespace) -> None:
    runner = importlib.import_module("runner")
    gpu = runner.Gpu(bundle, Path(options.out))
    for k in missing(bundle, options):
        if time.time() > options.end:
            return
        say(options.out, {"name": bundle["workloads"][k]["name"]})
        run_entry(runner, gpu, bundle, k, options)


def read(path: str) -> list[Any]:
    if not Path(path).exists():
        return []
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def say(path: str, line: Any) -> None:
    with Path(path).open("a") as file:
        file.write(json.dumps(line) + "\n")


def run_entry(
    runner: Any, gpu: Any, bundle: Any, k: int, options: argparse.Namespace
) -> None:
    """Verify and time all contenders of an entry, and write it down."""
    workload = bundle["workloads"][k]
    case = runner.Case(gpu, bundle["seed"], workload)
    found: dict[str, Any] = {"name": workload["name"], "suite": workload["suite"]}
    calls: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {}
    kernels = []
    for candidate in workload["candidates"]:
        try:
            kernel = gpu.kernel(candidate, case)
            if case.largest_error(kernel) <= workload["tolerance"]:
                with gpu.turn():
                    seconds = min(gpu.seconds(kernel) for _ in range(5))
                kernels.append((seconds, candidate["spec"], kernel))
        except runner.GpuError as error:
            found.setdefault("failed", []).append(str(error)[:200])
    if kernels:
        seconds, found["spec"], best = min(kernels, key=lambda kernel: kernel[0])
        found["device_s"] = seconds
        calls[OURS] = (
            lambda: [launch() for launch in best],
            lambda _: gpu.cupy.cuda.get_current_stream().synchronize(),
        )
    values = {
        name.removeprefix(PREFIX): array
        for name, array in {**case.arrays, **case.scalars}.items()
        if name.startswith(PREFIX)
    }
    for name, prepare in RIVALS.items():
        if name in options.without:
            continue
        try:
            with gpu.turn():  # compilers try kernels on the GPU, too
                call, finish = prepare(workload, values)
                off = _error(workload, call, finish)
            found.setdefault("errors", {})[name] = off
            calls[name] = call, finish
        except Exception as error:  # noqa: BLE001  (whatever a rival's library raises)
            found.setdefault("refused", {})[name] = f"{error!r:.200}"
    with gpu.turn():
        found["seconds"] = timed(calls)
    found |= {key: workload[key] for key in ("flops", "entry_bytes", "group")}
    say(options.out, {**found, "device": gpu.facts})


def timed(calls: Mapping[str, Any]) -> dict[str, list[float]]:
    """Seconds of a call, once for each round and contender, in turns."""
    repeats = {}
    for name, (call, finish) in calls.items():
        finish(call())
        start = time.perf_counter()
        finish(call())
        once = max(time.perf_counter() - start, 1e-6)
        repeats[name] = max(1, min(100, int(TURN_S / once)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, (call, finish) in calls.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                last = call()
            finish(last)
            samples[name].append((time.perf_counter() - start) / repeats[name])
    return samples


def _error(workload: Any, call: Any, finish: Any) -> float:
    """The largest, as the runner has it for ours, over the checked entries."""
    import numpy as np

    results = call()
    finish(results)
    worst = 0.0
    for (*_, checks), row in zip(
        workload["outputs"], workload["row_order"], strict=True
    ):
        result = results[row]
        found = np.asarray(result.get() if hasattr(result, "get") else _host(result))
        off = np.abs(found.reshape(-1)[checks["places"]] - np.array(checks["values"]))
        worst = max(worst, float(off.max()) / (checks["largest"] or 1.0))
    return worst


def _host(result: Any) -> Any:
    return result.cpu().numpy() if hasattr(result, "cpu") else result


def evaluation(workload: Any, xp: Any, einsum: Any) -> Callable[[Any], list[Any]]:
    """The entry as a user writes it in an array library: a function of the values."""
    functions = importlib.import_module("functions")
    rows = [[_function(functions, f) for f in row] for row in workload["rows"]]

    def evaluate(values: Any) -> list[Any]:
        return [
            einsum(workload["subscripts"], *(f.fresh(xp, values) for f in row))
            for row in rows
        ]

    return evaluate


def _function(functions: Any, document: Mapping[str, Any]) -> Any:
    fields = {k: v for k, v in document.items() if k != "kind"}
    if "at" in fields:
        fields["at"] = tuple(fields["at"])
    return getattr(functions, document["kind"])(**fields)


def jax(workload: Any, values: Mapping[str, Any]) -> Any:
    """The whole evaluation, jitted; scalars are arguments."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import cupy
    import jax
    from jax import numpy as jnp

    jax.config.update("jax_enable_x64", True)
    given = {
        name: jnp.from_dlpack(value)
        if isinstance(value, cupy.ndarray)
        else float(value)
        for name, value in values.items()
    }
    whole = jax.jit(evaluation(workload, jnp, jnp.einsum))
    if jax.default_backend() != "gpu":
        raise RuntimeError(f"JAX runs on {jax.default_backend()}")
    return (lambda: whole(given)), jax.block_until_ready


def _tensors(values: Mapping[str, Any]) -> dict[str, Any]:
    import cupy
    import torch

    return {
        name: torch.from_dlpack(value)
        if isinstance(value, cupy.ndarray)
        else float(value)
        for name, value in values.items()
    }


def torch(workload: Any, values: Mapping[str, Any]) -> Any:
    """Eager, with opt_einsum for the path."""
    import torch

    given, evaluate = _tensors(values), evaluation(workload, torch, torch.einsum)
    call = torch.inference_mode()(lambda: evaluate(given))
    return call, lambda _: torch.cuda.synchronize()


def torch_compile(workload: Any, values: Mapping[str, Any]) -> Any:
    """The whole evaluation as one function."""
    import torch

    given = _tensors(values)
    whole = torch.compile(
        evaluation(workload, torch, torch.einsum), fullgraph=True, dynamic=False
    )
    call = torch.inference_mode()(lambda: whole(given))
    return call, lambda _: torch.cuda.synchronize()


def cupy(workload: Any, values: Mapping[str, Any]) -> Any:
    """``cupy.einsum``, pairwise."""
    import cupy

    def einsum(subscripts: str, *operands: Any) -> Any:
        return cupy.einsum(subscripts, *operands, optimize=True)

    evaluate = evaluation(workload, cupy, einsum)
    stream = cupy.cuda.get_current_stream()
    return (lambda: evaluate(values)), lambda _: stream.synchronize()


RIVALS = {"jax": jax, "torch": torch, "torch.compile": torch_compile, "cupy": cupy}


def table(path: str) -> str:
    """A line for each entry: seconds of ours, and its speed over each rival's."""
    lines = []
    for found in read(path):
        if "seconds" not in found:
            continue
        seconds = {name: median(s) for name, s in found["seconds"].items()}
        ours = seconds.get(OURS)
        if ours is None:
            lines.append(f"{found['name']:28} failed")
            continue
        ratios = " ".join(f"{seconds[r] / ours:6.2f}" if r in seconds else "     -"
                          for r in RIVALS)  # fmt: skip
        lines.append(
            f"{found['name']:28} {ours * 1e6:9.1f} us {found['device_s'] * 1e6:9.1f} "
            f"{found['flops'] / ours / 1e12:6.2f} TFLOP/s "
            f"{found['entry_bytes'] / ours / 1e12:5.2f} TB/s  {ratios}"
        )
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--out", default=str(HERE / "contest.jsonl"))
    parser.add_argument("--without", action="append", default=[], choices=RIVALS)
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--worker", type=int)
    parser.add_argument("--end", type=float)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
