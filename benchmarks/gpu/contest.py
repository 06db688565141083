"""Times kernels of a contest, and rivals, on a GPU: side by side, in turns.

python3 contest.py [--budget SECONDS] [--out contest.jsonl] [--without RIVAL]

It stands beside ``runner.py``, ``report.py`` and ``bundle.json``, and needs numpy,
CuPy, and what it compares with: JAX and torch. Several processes prepare entries, one
at a time has the GPU, and a crash costs one entry. Entries in the file of results are
skipped, so the same command goes on where it was stopped. All arrays are on the GPU
before anything is timed.

A contender is called as often as fits some milliseconds, and then waited for: the work
of the host counts if it takes longer than that of the GPU. ``device_s`` is the time of
our kernel alone, between two events.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PREFIX = "given_"
"""Of the arguments of our kernels, whose other names are those of a canonical form."""
ROUNDS = 7
TURN_S = 4e-3
"""For which a contender is called in its turn, and once at least."""
MOST_STARTS = 2
"""Of an entry: what ended its process twice, or did not end in time, is given up."""


def main() -> int:
    options = _options()
    bundle = json.loads((HERE / "bundle.json").read_text())
    if options.worker is not None:
        work(bundle, options)
        return 0
    options.end = time.time() + options.budget
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda k: keep_working(bundle, k, options), range(options.jobs)))
    report = beside("report")
    print(report.text(report.measurements(read(options.out))))
    return 1 if missing(bundle, options) else 0


def keep_working(bundle: Any, k: int, options: argparse.Namespace) -> None:
    """A process for every so-manieth entry, and a new one after each that ends it."""
    options = argparse.Namespace(**{**vars(options), "worker": k})
    command = [sys.executable, __file__, "--worker", k, "--jobs", options.jobs,
               "--out", options.out, "--end", options.end]  # fmt: skip
    command += [x for rival in options.without for x in ("--without", rival)]
    while missing(bundle, options) and time.time() < options.end:
        left, begun = options.end - time.time(), len(said(bundle, options))
        try:
            subprocess.run(list(map(str, command)), timeout=left + 10, check=False)
        except subprocess.TimeoutExpired:
            return
        if len(said(bundle, options)) == begun:
            return  # no process gets as far as an entry


def missing(bundle: Any, options: argparse.Namespace) -> list[int]:
    """The entries that have no result yet: of one process, or of all."""
    lines = said(bundle, options)
    done = {line["name"] for line in lines if "seconds" in line}
    starts = Counter(line["name"] for line in lines if "seconds" not in line)
    done |= {name for name, n in starts.items() if n >= MOST_STARTS}
    own = shared_out(bundle, options)
    return [k for k in own if bundle["workloads"][k]["name"] not in done]


def shared_out(bundle: Any, options: argparse.Namespace) -> range:
    """The entries of one process, or of all."""
    entries = range(len(bundle["workloads"]))
    return (
        entries if options.worker is None else entries[options.worker :: options.jobs]
    )


def said(bundle: Any, options: argparse.Namespace) -> list[Any]:
    """What the file of results has of these entries."""
    names = {bundle["workloads"][k]["name"] for k in shared_out(bundle, options)}
    return [line for line in read(options.out) if line["name"] in names]


def work(bundle: Any, options: argparse.Namespace) -> None:
    runner = beside("runner")
    gpu = runner.Gpu(bundle, Path(options.out))
    rivals = [name for name in RIVALS if name not in options.without]
    _tune_alone(gpu)
    _warm_up(gpu, rivals)
    for k in missing(bundle, options):
        if time.time() > options.end:
            return
        say(options.out, {"name": bundle["workloads"][k]["name"]})
        run_entry(runner, gpu, bundle, k, options)
        _free(gpu)


def beside(name: str) -> Any:
    """A module of this folder."""
    return importlib.import_module(name)


def read(path: str) -> list[Any]:
    lines: list[Any] = beside("report").read(path)
    return lines


def _warm_up(gpu: Any, rivals: Iterable[str]) -> None:
    """Have libraries load and compile once, which takes them up to half a minute."""
    import numpy as np

    affine = {"kind": "Affine", "name": "a", "scale": "s", "shift": "t", "at": (2, 1)}
    rows, square = [[affine, {"kind": "Plain", "name": "b"}]], np.ones((8, 8))
    workload = {"subscripts": "ij,jk->ik", "rows": rows}
    values = {name: gpu.cupy.asarray(square) for name in "ab"}
    for rival in rivals:
        with contextlib.suppress(Exception):  # entries say why a rival does not run
            call, finish = RIVALS[rival](workload, {**values, "s": 2.0, "t": 1.0})
            finish(call())


def _tune_alone(gpu: Any) -> None:
    """Let torch.compile try kernels while no other process has the GPU.

    It compiles outside of its turn, since that takes most of the time.
    """
    try:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    except ImportError:
        return
    tried = CachingAutotuner.autotune_to_one_config

    def alone(*args: Any, **kwargs: Any) -> Any:
        with gpu.turn():
            return tried(*args, **kwargs)

    CachingAutotuner.autotune_to_one_config = alone


def _free(gpu: Any) -> None:
    """Leave the memory of the GPU to others."""
    gpu.cupy.get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def say(path: str, line: Any) -> None:
    with Path(path).open("a") as file:
        file.write(json.dumps(line) + "\n")


Call = tuple[Callable[[], Any], Callable[[Any], Any]]
"""What evaluates an entry, and what waits for its result."""


def run_entry(
    runner: Any, gpu: Any, bundle: Any, k: int, options: argparse.Namespace
) -> None:
    """Verify and time all contenders of an entry, and write it down."""
    workload = bundle["workloads"][k]
    case = runner.Case(gpu, bundle["seed"], workload)
    found = {key: workload[key] for key in ("name", "suite", "group", "flops",
             "entry_bytes")} | {"device": gpu.facts}  # fmt: skip
    calls = _ours(runner, gpu, workload, case, found)
    calls |= _rivals(gpu, workload, case, options.without, found)
    with gpu.turn():
        found["seconds"] = timed(calls)
    say(options.out, found)


def _ours(
    runner: Any, gpu: Any, workload: Any, case: Any, found: dict[str, Any]
) -> dict[str, Call]:
    """The fastest kernel that is right, if there is one."""
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
    if not kernels:
        return {}
    found["device_s"], found["spec"], best = min(kernels, key=lambda one: one[0])
    stream = gpu.cupy.cuda.get_current_stream()
    call = (lambda: [launch() for launch in best]), lambda _: stream.synchronize()
    return {beside("report").OURS: call}


def _rivals(
    gpu: Any, workload: Any, case: Any, without: Collection[str], found: dict[str, Any]
) -> dict[str, Call]:
    """Those that evaluate the entry; why the others do not is written down."""
    values = {
        name.removeprefix(PREFIX): array
        for name, array in {**case.arrays, **case.scalars}.items()
        if name.startswith(PREFIX)
    }
    calls = {}
    for name in (rival for rival in RIVALS if rival not in without):
        try:
            # XLA tries kernels while it compiles; see _tune_alone for torch.compile
            with contextlib.nullcontext() if name == COMPILED else gpu.turn():
                call, finish = RIVALS[name](workload, values)
                off = _error(workload, call, finish)
            found.setdefault("errors", {})[name] = off
            calls[name] = call, finish
        except Exception as error:  # noqa: BLE001  (whatever a rival's library raises)
            found.setdefault("refused", {})[name] = f"{error!r:.200}"
    return calls


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

    entries_error = beside("runner").entries_error
    results = call()
    finish(results)
    worst = 0.0
    for (*_, checks), row in zip(
        workload["outputs"], workload["row_order"], strict=True
    ):
        result = results[row]
        found = np.asarray(result.get() if hasattr(result, "get") else _host(result))
        worst = max(worst, entries_error(np, checks, found))
    return worst


def _host(result: Any) -> Any:
    return result.cpu().numpy() if hasattr(result, "cpu") else result


def evaluation(workload: Any, xp: Any, einsum: Any) -> Callable[[Any], list[Any]]:
    """The entry as a user writes it in an array library: a function of the values."""
    functions = beside("functions")
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
    """The whole evaluation, jitted; scalars are arguments.

    Single precision is single, as with the others: by default, JAX multiplies numbers
    of 10 bits on such GPUs.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import cupy
    import jax
    from jax import numpy as jnp

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
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

    given, evaluate = _tensors(values), evaluation(workload, torch, torch.einsum)
    # code of its own: one code is compiled for a few shapes, and then refused
    evaluate.__code__ = evaluate.__code__.replace()
    whole = torch.compile(evaluate, fullgraph=True, dynamic=False)
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
COMPILED = "torch.compile"


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
