"""Timing C functions in turns, in a separate process that only needs numpy.

Reads JSON from standard input: the paths of shared objects, the name of a function that
all of them have, its arguments in the order of each, and how often to call them. Writes
the minimum time of each in seconds, and how far its results are from those of the
first.
"""

from __future__ import annotations

import ctypes
import json
import sys
from time import perf_counter
from typing import Any

import numpy as np


def main() -> None:
    asked = json.load(sys.stdin)
    given = {name: _value(name, kind) for name, kind in asked["arguments"].items()}
    functions = [
        (getattr(ctypes.CDLL(path), asked["function"]), names)
        for path, names in asked["libraries"]
    ]
    written = asked["written"]
    seconds: list[list[float]] = [[] for _ in functions]
    results: list[dict[str, Any]] = [{} for _ in functions]
    for _ in range(asked["rounds"]):
        for k, (function, names) in enumerate(functions):
            own = {**given, **{name: given[name].copy() for name in written}}
            values = [_passed(own[name]) for name in names]
            start = perf_counter()
            function(*values)
            seconds[k].append(perf_counter() - start)
            results[k] = {name: own[name] for name in written}
    said = {
        "seconds": [min(some) for some in seconds],
        "errors": [_error(results[0], other) for other in results],
    }
    sys.stdout.write(json.dumps(said))


def _value(name: str, kind: dict[str, Any]) -> Any:
    """An array of random numbers, or a scalar."""
    dtype = np.dtype(kind["dtype"])
    if "value" in kind:
        return dtype.type(kind["value"])
    rng = np.random.default_rng(sum(map(ord, name)))
    if dtype.kind in "iu":
        # no cell has a vertex twice
        entries = rng.permutation(max(1, kind["below"]))
        return np.resize(entries, kind["shape"]).astype(dtype)
    return rng.uniform(-1, 1, kind["shape"]).astype(dtype)


def _passed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    return np.ctypeslib.as_ctypes_type(value.dtype)(value.item())


def _error(expected: dict[str, Any], found: dict[str, Any]) -> float:
    """The largest one, relative to the largest entry of an array."""
    errors = [0.0]
    for name, right in expected.items():
        scale = float(np.abs(right).max(initial=0.0)) or 1.0
        difference = float(np.abs(found[name] - right).max(initial=0.0))
        # JSON has no infinity
        errors.append(difference / scale if np.isfinite(difference) else 1e300)
    return max(errors)


if __name__ == "__main__":
    main()
