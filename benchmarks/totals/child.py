"""One program by one contestant, in this process; prints a line of JSON.

``python -m benchmarks.totals.child ccsd-6-30-10 feinsum --calls``
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.totals.calls import Array, run
from benchmarks.totals.contestants import CONTESTANTS, OURS, Contestant
from benchmarks.totals.programs import PROGRAMS, Program

SHORT_S = 1e-3
"""Shorter calls of numpy are repeated."""
REPETITIONS = 3
LEAST_S_PER_PRODUCT = 5e-11
"""Without a path numpy certainly takes longer than so many seconds a product."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("--tiny", action="store_true", help="at a size for tests")
    parser.add_argument("--calls", action="store_true", help="print every call")
    parser.add_argument(
        "--tune", type=float, metavar="SECONDS", help="tune the calls instead"
    )
    options = parser.parse_args(arguments)
    program = PROGRAMS[options.program]
    if options.tune is not None:
        print(json.dumps({"n_tuned": tuned(program, options.tune, options.tiny)}))
        return
    result = measured(program, CONTESTANTS[options.contestant], options.tiny)
    calls = result.pop("calls")
    start = time.perf_counter()
    if options.calls:
        result["calls"] = calls
        if options.contestant == OURS and "numpy" not in program.unfit:
            result["numpy_s"] = by_numpy(program, options.tiny)
    result["after_s"] = time.perf_counter() - start
    print(json.dumps(result))


def tuned(program: Program, budget_s: float, tiny: bool) -> int:
    """Tune the calls of a program, those first that take the longest in total.

    Returns:
        How many were tuned before the time was over.
    """
    import feinsum  # rivals do not load it

    spent_s: dict[Any, float] = {}
    operands: dict[Any, tuple[str, tuple[Array, ...]]] = {}

    def compute(subscripts: str, *arrays: Array) -> Array:
        key = subscripts, tuple((x.shape, x.dtype) for x in arrays)
        start = time.perf_counter()
        result = np.asarray(feinsum.einsum(subscripts, *arrays))
        spent_s[key] = spent_s.get(key, 0.0) + time.perf_counter() - start
        operands[key] = subscripts, arrays
        return result

    run(program.calls(tiny), compute)
    end = time.perf_counter() + budget_s
    n_tuned = 0
    for key in sorted(spent_s, key=lambda key: -spent_s[key]):
        left_s = end - time.perf_counter()
        if left_s <= 0:
            break
        subscripts, arrays = operands[key]
        try:
            feinsum.tune(subscripts, *arrays, budget_s=left_s, progress=False)
        except feinsum.FeinsumError as error:  # such as of a view
            print(f"not tuned: {subscripts}: {error}", file=sys.stderr)
            continue
        n_tuned += 1
    return n_tuned


def measured(program: Program, contestant: Contestant, tiny: bool) -> dict[str, Any]:
    """Seconds and memory of a program, and a number that tells results apart."""
    start = time.perf_counter()
    module = contestant.load()
    einsum = contestant.einsum(module)
    import_s = time.perf_counter() - start
    calls: list[tuple[str, float]] = []
    last: Array = np.zeros(())

    def compute(subscripts: str, *arrays: Array) -> Array:
        nonlocal last
        operands = contestant.operands(module, arrays)
        start = time.perf_counter()
        value = einsum(subscripts, *operands)
        calls.append((subscripts, time.perf_counter() - start))
        last = contestant.result(value)
        return last

    run(program.calls(tiny), compute)
    return {
        "import_s": import_s,
        "calls_s": sum(seconds for _, seconds in calls),
        "n_calls": len(calls),
        "peak_bytes": peak_bytes(),
        "fingerprint": float(np.abs(last).sum(dtype="float64")),
        "calls": calls,
    }


def peak_bytes() -> int:
    """Of this process alone.

    On Linux ``ru_maxrss`` also counts the memory of the process that started this one.
    """
    status = Path("/proc/self/status")
    for line in status.read_text().splitlines() if status.is_file() else ():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def by_numpy(program: Program, tiny: bool) -> list[float]:
    """Seconds of numpy for each call of a program, without a path or with one."""
    calls = []

    def compute(subscripts: str, *arrays: Array) -> Array:
        seconds, result = numpy_seconds(subscripts, arrays)
        calls.append(seconds)
        return result

    run(program.calls(tiny), compute)
    return calls


def numpy_seconds(subscripts: str, arrays: Sequence[Array]) -> tuple[float, Array]:
    """The shorter of both ways, and the result.

    >>> seconds, result = numpy_seconds("i,i->", (np.ones(3), np.ones(3)))
    >>> seconds > 0, float(result)
    (True, 3.0)
    """

    def call(optimize: bool) -> Callable[[], Array]:
        return lambda: np.einsum(subscripts, *arrays, optimize=optimize)

    least_s, result = _timed(call(True))
    terms = subscripts.partition("->")[0].split(",")
    extents = {
        index: extent
        for term, array in zip(terms, arrays, strict=True)
        for index, extent in zip(term, array.shape, strict=True)
    }
    if prod(extents.values()) * LEAST_S_PER_PRODUCT < least_s:
        least_s = min(least_s, _timed(call(False))[0])
    return least_s, result


def _timed(call: Callable[[], Array]) -> tuple[float, Array]:
    """The least time of one call, or of several short ones."""
    least_s, n_left = float("inf"), REPETITIONS
    while n_left:
        start = time.perf_counter()
        result = call()
        least_s = min(least_s, time.perf_counter() - start)
        n_left = n_left - 1 if least_s < SHORT_S else 0
    return least_s, result


if __name__ == "__main__":
    main()
