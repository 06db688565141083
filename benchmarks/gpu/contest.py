"""Times the kernels of a contest and their rivals on a GPU, in turns.

``python -m benchmarks.gpu.contest FOLDER --out FILE`` needs numpy and CuPy, and JAX and
torch to compare with, but nothing of feinsum. See :mod:`benchmarks.gpu.race`. All
arrays are on the GPU before anything is timed.

In its turn, a contender is called for some milliseconds, and only the last call is
waited for: the host's work counts if it takes longer than the GPU's. ``device_s`` is
the time of our kernel alone, between two events.
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
from benchmarks.gpu.rivals import COMPILED, RIVALS, Call, list_versions, seconds_of

PREFIX = "given_"
"""Of the arguments of our kernels, whose other names are those of a canonical form."""
ROUNDS = 7
TURN_S = 4e-3
"""For which a contender is called in its turn, and once at least."""
N_TIMED = 5
"""Runs of each of our kernels, to choose the fastest."""


def main() -> int:
    options = _options()
    bundle = json.loads((options.folder / "bundle.json").read_text())
    bundle["workloads"] = bundle["workloads"][: options.first]
    names = [workload["name"] for workload in bundle["workloads"]]
    race = Race("benchmarks.gpu.contest", names, options)
    if options.worker is None:
        return race.run()
    gpu = runner.Gpu(bundle, options.folder, Path(options.out))
    _autotune_in_turns(gpu)
    _warm_up(gpu, [name for name in RIVALS if name not in options.without])
    race.work(
        lambda k: prepare(gpu, bundle, k, options),
        lambda calls: {"seconds": timed(calls)},
        gpu.turn,
    )
    return 0


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


def _autotune_in_turns(gpu: Any) -> None:
    """Let torch.compile time its kernels while no other process has the GPU.

    It compiles outside of its turn, since that takes most of the time.
    """
    try:
        from torch._inductor.runtime.triton_heuristics import CachingAutotuner

        autotune = CachingAutotuner.autotune_to_one_config
    except (ImportError, AttributeError):  # no torch, or another release
        return

    def in_turn(*args: Any, **kwargs: Any) -> Any:
        with gpu.turn():
            return autotune(*args, **kwargs)

    CachingAutotuner.autotune_to_one_config = in_turn


def _free(gpu: Any) -> None:
    """Leave the memory of the GPU to others."""
    gpu.cupy.get_default_memory_pool().free_all_blocks()
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()


def prepare(
    gpu: Any, bundle: Any, k: int, options: argparse.Namespace
) -> tuple[dict[str, Call], dict[str, Any]]:
    """Verify all contenders of an entry; the calls, and what is known of them.

    Raises:
        GpuError: after an error that lasts: in this process, rivals would fail, too.
    """
    workload = bundle["workloads"][k]
    case = runner.Case(gpu, bundle["seed"], workload)
    kept = "name", "suite", "group", "flops", "entry_bytes"
    device = {**gpu.facts, "versions": list_versions()}
    found = {**{key: workload[key] for key in kept}, "device": device}
    try:
        calls = _ours(gpu, workload, case, found)
    except runner.GpuError:
        report.append(options.out, {**found, "seconds": {}})
        raise
    calls |= _rivals(gpu, workload, case, options.without, found)
    _free(gpu)
    return calls, found


def _ours(gpu: Any, workload: Any, case: Any, found: dict[str, Any]) -> dict[str, Call]:
    """The fastest kernel that is right, if there is one; notes why others failed.

    Raises:
        GpuError: if the GPU refuses everything from now on.
    """
    kernels = []
    for candidate in workload["candidates"]:
        try:
            kernels.append(_verified(gpu, workload, candidate, case))
        except runner.GpuError as error:
            text = f"{candidate['spec']}: {error}"
            found.setdefault("failed", []).append(text[:300])
            if error.is_lasting:
                raise
    if not kernels:
        return {}
    found["tried"] = {spec: seconds for seconds, spec, _ in kernels}
    found["device_s"], found["spec"], best = min(kernels, key=lambda one: one[0])
    stream = gpu.cupy.cuda.get_current_stream()
    call = (lambda: [launch() for launch in best]), lambda _: stream.synchronize()
    return {report.OURS: call}


def _verified(
    gpu: Any, workload: Any, candidate: Any, case: Any
) -> tuple[float, str, Any]:
    """The seconds of a candidate, its recipe and its launches.

    A kernel that takes too long ends this process, like a crash.

    Raises:
        GpuError: if the GPU refuses it, or the result is wrong.
    """
    with runner.patience():
        kernel = gpu.kernel(candidate, case)
    with gpu.turn(), runner.patience():
        results = case.results(kernel)
        seconds = min(gpu.seconds(kernel) for _ in range(N_TIMED))
    error = case.error(results)
    if not error <= workload["tolerance"]:
        raise runner.GpuError(f"the result is wrong, with an error of {error:.2g}")
    return seconds, candidate["spec"], kernel


def _rivals(
    gpu: Any, workload: Any, case: Any, without: Collection[str], found: dict[str, Any]
) -> dict[str, Call]:
    """Those that evaluate the entry; notes why the others do not."""
    values = {
        name.removeprefix(PREFIX): array
        for name, array in {**case.arrays, **case.scalars}.items()
        if name.startswith(PREFIX)
    }
    calls = {}
    for name in (rival for rival in RIVALS if rival not in without):
        try:
            # XLA times kernels while it compiles; for torch see _autotune_in_turns
            with contextlib.nullcontext() if name == COMPILED else gpu.turn():
                call, finish = RIVALS[name](workload, values)
                found.setdefault("errors", {})[name] = _error(workload, call, finish)
            calls[name] = call, finish
        except Exception as error:  # noqa: BLE001  (whatever a rival's library raises)
            found.setdefault("refused", {})[name] = f"{error!r:.200}"
    return calls


def timed(calls: Mapping[str, Call]) -> dict[str, list[float]]:
    """Seconds of a call, once for each round and contender, in turns."""
    repeats = {}
    for name, call in calls.items():
        seconds_of(call, 1)
        once = max(seconds_of(call, 1), 1e-6)
        repeats[name] = max(1, min(100, int(TURN_S / once)))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            samples[name].append(seconds_of(call, repeats[name]))
    return samples


def _error(workload: Any, call: Any, finish: Any) -> float:
    """The largest over the checked entries, as the runner computes it for ours."""
    import numpy as np

    results = call()
    finish(results)
    worst = 0.0
    for (*_, checks), row in zip(
        workload["outputs"], workload["row_order"], strict=True
    ):
        found = np.asarray(_host(results[row]))
        worst = max(worst, runner.entries_error(np, checks, found))
    return worst


def _host(result: Any) -> Any:
    """The array of CuPy or torch on the host; numpy takes those of JAX."""
    if hasattr(result, "get"):
        return result.get()
    return result.cpu().numpy() if hasattr(result, "cpu") else result


def _options() -> argparse.Namespace:
    parser = make_parser(__doc__, budget=300.0)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, help="so many entries; by default all")
    parser.add_argument("--without", action="append", default=[], choices=RIVALS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
