"""Time the kernels of a contest and the rivals on a GPU.

``python -m benchmarks.gpu.contest FOLDER --out FILE`` requires numpy and CuPy, and JAX
and torch as rivals, but not feinsum. See :mod:`benchmarks.gpu.race`. All arrays are on
the GPU before timing starts.

In its turn, a contender is called for some milliseconds, and only the last call is
synchronized: time of the host counts if it is longer than that of the GPU. ``device_s``
is the time of our kernel alone, between two events.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu import report
from benchmarks.gpu.bundle import runner
from benchmarks.gpu.race import Race, make_parser
from benchmarks.gpu.rivals import COMPILED, RIVALS, Call, list_versions, time_call

PREFIX = "given_"
"""Prefix of the arguments of our kernels; other names are those of a canonical form."""
ROUNDS = 7
TURN_S = 4e-3
"""Duration of a turn, in which a contender is called at least once."""
N_TIMED = 5
"""Number of runs to choose the fastest of our kernels."""


def main() -> int:
    options = _parse_options()
    bundle = json.loads((options.folder / "bundle.json").read_text())
    bundle["workloads"] = bundle["workloads"][: options.first]
    names = [workload["name"] for workload in bundle["workloads"]]
    race = Race("benchmarks.gpu.contest", names, options)
    if options.worker is None:
        return race.run()
    gpu = runner.Gpu(bundle, options.folder, Path(options.out))
    _patch_autotuner(gpu)
    _warm_up(gpu, [name for name in RIVALS if name not in options.without])
    race.work(
        lambda k: prepare(gpu, bundle, k, options),
        lambda calls: {"seconds": time_calls(calls)},
        gpu.reserve,
    )
    return 0


def _warm_up(gpu: Any, rivals: Iterable[str]) -> None:
    """Load and compile the libraries once, which takes up to half a minute."""
    import numpy as np

    affine = {"kind": "Affine", "name": "a", "scale": "s", "shift": "t", "at": (2, 1)}
    rows, square = [[affine, {"kind": "Plain", "name": "b"}]], np.ones((8, 8))
    workload = {"subscripts": "ij,jk->ik", "rows": rows}
    values = {name: gpu.cupy.asarray(square) for name in "ab"}
    for rival in rivals:
        with contextlib.suppress(Exception):  # entries say why a rival does not run
            call, finish = RIVALS[rival](workload, {**values, "s": 2.0, "t": 1.0})
            finish(call())


def _patch_autotuner(gpu: Any) -> None:
    """Let torch.compile time its kernels while no other process uses the GPU.

    Compilation, which takes most of the time, happens outside of its turn.
    """
    try:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        autotune = CachingAutotuner.autotune_to_one_config
    except (ImportError, AttributeError):  # no torch, or another release
        return

    def in_turn(*args: Any, **kwargs: Any) -> Any:
        with gpu.reserve():
            return autotune(*args, **kwargs)

    CachingAutotuner.autotune_to_one_config = in_turn


def _free(gpu: Any) -> None:
    """Free cached memory of the GPU."""
    gpu.cupy.get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def prepare(
    gpu: Any, bundle: Any, k: int, options: argparse.Namespace
) -> tuple[dict[str, Call], dict[str, Any]]:
    """Verify all contenders of an entry; return their calls, and a line for the
    results.

    Raises:
        GpuError: after a lasting error: in this process, rivals would fail, too.
    """
    workload = bundle["workloads"][k]
    case = runner.Case(gpu, bundle["seed"], workload)
    keys = "name", "suite", "group", "flops", "entry_bytes"
    device = {**gpu.facts, "versions": list_versions()}
    line = {**{key: workload[key] for key in keys}, "device": device}
    try:
        calls = _prepare_ours(gpu, workload, case, line)
    except runner.GpuError:
        report.append_line(options.out, {**line, "seconds": {}})
        raise
    calls |= _prepare_rivals(gpu, workload, case, options.without, line)
    _free(gpu)
    return calls, line


def _prepare_ours(
    gpu: Any, workload: Any, case: Any, line: dict[str, Any]
) -> dict[str, Call]:
    """Return the fastest kernel with a right result, if any; note why others failed.

    Raises:
        GpuError: if the GPU refuses everything from now on.
    """
    kernels = []
    for candidate in workload["candidates"]:
        try:
            kernels.append(_verify_kernel(gpu, workload, candidate, case))
        except runner.GpuError as error:
            text = f"{candidate['spec']}: {error}"
            line.setdefault("failed", []).append(text[:300])
            if error.is_lasting:
                raise
    if not kernels:
        return {}
    line["tried"] = {spec: seconds for seconds, spec, _ in kernels}
    line["device_s"], line["spec"], best = min(kernels, key=lambda kernel: kernel[0])
    stream = gpu.cupy.cuda.get_current_stream()
    call = (lambda: [launch() for launch in best]), lambda _: stream.synchronize()
    return {report.OURS: call}


def _verify_kernel(
    gpu: Any, workload: Any, candidate: Any, case: Any
) -> tuple[float, str, Any]:
    """Verify and time a candidate; return its seconds, recipe and launches.

    A kernel that takes too long kills this process.

    Raises:
        GpuError: if the GPU refuses it, or the result is wrong.
    """
    with runner.limit_time():
        kernel = gpu.load_kernel(candidate, case)
    with gpu.reserve(), runner.limit_time():
        results = case.run(kernel)
        seconds = min(gpu.time(kernel) for _ in range(N_TIMED))
    error = case.compute_error(results)
    if not error <= workload["tolerance"]:
        raise runner.GpuError(f"the result is wrong, with an error of {error:.2g}")
    return seconds, candidate["spec"], kernel


def _prepare_rivals(
    gpu: Any, workload: Any, case: Any, without: Collection[str], line: dict[str, Any]
) -> dict[str, Call]:
    """Return the rivals that evaluate the entry; note why others do not."""
    values = {
        name.removeprefix(PREFIX): array
        for name, array in {**case.arrays, **case.scalars}.items()
        if name.startswith(PREFIX)
    }
    calls = {}
    for name in (rival for rival in RIVALS if rival not in without):
        try:
            # XLA times kernels while it compiles; for torch see _autotune_in_turns
            with contextlib.nullcontext() if name == COMPILED else gpu.reserve():
                call, finish = RIVALS[name](workload, values)
                line.setdefault("errors", {})[name] = _compute_error(
                    workload, call, finish
                )
            calls[name] = call, finish
        except Exception as error:  # noqa: BLE001  (whatever a rival's library raises)
            line.setdefault("refused", {})[name] = f"{error!r:.200}"
    return calls


def time_calls(calls: Mapping[str, Call]) -> dict[str, list[float]]:
    """Return the seconds of a call, for each round and contender."""
    repeats = {}
    for name, call in calls.items():
        time_call(call, 1)
        call_s = max(time_call(call, 1), 1e-6)
        repeats[name] = max(1, min(100, int(TURN_S / call_s)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            samples[name].append(time_call(call, repeats[name]))
    return samples


def _compute_error(workload: Any, call: Any, finish: Any) -> float:
    """Return the largest error of the checked entries, as for our kernels."""
    import numpy as np

    results = call()
    finish(results)
    worst = 0.0
    for (*_, checks), row in zip(
        workload["outputs"], workload["row_order"], strict=True
    ):
        result = np.asarray(_copy_to_host(results[row]))
        worst = max(worst, runner.compute_entries_error(np, checks, result))
    return worst


def _copy_to_host(result: Any) -> Any:
    """Copy an array of CuPy or torch to the host; numpy accepts those of JAX."""
    if hasattr(result, "get"):
        return result.get()
    return result.cpu().numpy() if hasattr(result, "cpu") else result


def _parse_options() -> argparse.Namespace:
    parser = make_parser(__doc__, budget=300.0)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, help="so many entries; by default all")
    parser.add_argument("--without", action="append", default=[], choices=RIVALS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
