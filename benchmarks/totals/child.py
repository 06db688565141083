"""Run one program with one library in this process, and print a line of JSON.

``python -m benchmarks.totals.child ccsd-6-30-10 feinsum --calls``
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from benchmarks.processes import read_memory_bytes
from benchmarks.totals.calls import Array, run_calls
from benchmarks.totals.contestants import CONTESTANTS, OURS, Contestant
from benchmarks.totals.programs import PROGRAMS, Program

SHORT_S = 1e-3
"""Limit below which calls of numpy are repeated."""
REPETITIONS = 3
LEAST_S_PER_PRODUCT = 5e-11
"""Lower bound of numpy's time per product without a path."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("--tiny", action="store_true", help="use a tiny size")
    parser.add_argument("--calls", action="store_true", help="include every call")
    parser.add_argument(
        "--tune", type=float, metavar="SECONDS", help="tune the calls, without timing"
    )
    options = parser.parse_args(arguments)
    program = PROGRAMS[options.program]
    if options.tune is not None:
        print(json.dumps({"n_tuned": tune_calls(program, options.tune, options.tiny)}))
        return
    result = measure(program, CONTESTANTS[options.contestant], options.tiny)
    calls = result.pop("calls")
    start = time.perf_counter()
    if options.calls:
        result["calls"] = calls
        if options.contestant == OURS and "numpy" not in program.unfit:
            result["numpy_s"] = time_by_numpy(program, options.tiny)
    result["after_s"] = time.perf_counter() - start
    print(json.dumps(result))


def tune_calls(program: Program, budget_s: float, tiny: bool) -> int:
    """Tune the calls of a program, the most expensive ones first.

    Returns:
        The number of calls that were tuned in time.
    """
    import feinsum  # not loaded for rivals

    spent_s: dict[Any, float] = {}
    operands: dict[Any, tuple[str, tuple[Array, ...]]] = {}

    def compute(subscripts: str, *arrays: Array) -> Array:
        key = subscripts, tuple((x.shape, x.dtype) for x in arrays)
        start = time.perf_counter()
        result = np.asarray(feinsum.einsum(subscripts, *arrays))
        spent_s[key] = spent_s.get(key, 0.0) + time.perf_counter() - start
        operands[key] = subscripts, arrays
        return result

    run_calls(program.make_calls(tiny), compute)
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


def measure(program: Program, contestant: Contestant, tiny: bool) -> dict[str, Any]:
    """Return the seconds and memory of a program, and a fingerprint of its result."""
    start = time.perf_counter()
    module = contestant.load()
    einsum = contestant.einsum(module)
    import_s = time.perf_counter() - start
    calls: list[tuple[str, float]] = []
    last: Array = np.zeros(())

    def compute(subscripts: str, *arrays: Array) -> Array:
        nonlocal last
        operands = contestant.convert_operands(module, arrays)
        start = time.perf_counter()
        value = einsum(subscripts, *operands)
        calls.append((subscripts, time.perf_counter() - start))
        last = contestant.convert_result(value)
        return last

    run_calls(program.make_calls(tiny), compute)
    return {
        "import_s": import_s,
        "calls_s": sum(seconds for _, seconds in calls),
        "n_calls": len(calls),
        "peak_bytes": read_memory_bytes("VmHWM"),
        "fingerprint": float(np.abs(last).sum(dtype="float64")),
        "calls": calls,
    }


def time_by_numpy(program: Program, tiny: bool) -> list[float]:
    """Time each call of a program by numpy, without a path or with one."""
    calls = []

    def compute(subscripts: str, *arrays: Array) -> Array:
        seconds, result = time_numpy(subscripts, arrays)
        calls.append(seconds)
        return result

    run_calls(program.make_calls(tiny), compute)
    return calls


def time_numpy(subscripts: str, arrays: Sequence[Array]) -> tuple[float, Array]:
    """Return the shorter time of both ways, and the result.

    >>> seconds, result = time_numpy("i,i->", (np.ones(3), np.ones(3)))
    >>> seconds > 0, float(result)
    (True, 3.0)
    """

    def call(optimize: bool) -> Callable[[], Array]:
        return lambda: np.einsum(subscripts, *arrays, optimize=optimize)

    least_s, result = _time_least(call(True))
    terms = subscripts.partition("->")[0].split(",")
    extents = {
        index: extent
        for term, array in zip(terms, arrays, strict=True)
        for index, extent in zip(term, array.shape, strict=True)
    }
    if prod(extents.values()) * LEAST_S_PER_PRODUCT < least_s:
        least_s = min(least_s, _time_least(call(False))[0])
    return least_s, result


def _time_least(call: Callable[[], Array]) -> tuple[float, Array]:
    """Return the least time of one call, or of several if they are short, and the
    result.
    """
    least_s, n_left = float("inf"), REPETITIONS
    while n_left:
        start = time.perf_counter()
        result = call()
        least_s = min(least_s, time.perf_counter() - start)
        n_left = n_left - 1 if least_s < SHORT_S else 0
    return least_s, result


if __name__ == "__main__":
    main()
