"""Unrelated einsums in one process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.totals.calls import Array, Calls, draw_uniform

__all__ = ["run_everyday", "run_one_twice", "run_thousand_once"]

SUITE = Path(__file__).parents[2] / "feinsum" / "suites" / "everyday.json"
"""Read as a file, because ``feinsum.suites`` imports feinsum."""
INDICES = "abcdef"
STEP = 1024
"""Distance in the buffer between the starts of two operands of a call."""


def run_one_twice() -> Calls:
    rng = np.random.default_rng(6)
    operands = draw_uniform(rng, (30, 40)), draw_uniform(rng, (40, 50))
    for _ in range(2):
        yield "ij,jk->ik", operands


def run_thousand_once(n: int) -> Calls:
    """Yield different einsums of 1 to 3 operands, ranks 1 to 4 and extents 1 to 12."""
    rng, values = Random(7), np.random.default_rng(7)
    seen: set[tuple[Any, ...]] = set()
    while len(seen) < n:
        terms = [
            "".join(rng.sample(INDICES, rng.randint(1, 4)))
            for _ in range(rng.randint(1, 3))
        ]
        extents = {index: rng.randint(1, 12) for index in INDICES}
        used = sorted(set("".join(terms)))
        output = "".join(rng.sample(used, rng.randint(0, min(4, len(used)))))
        shapes = [tuple(extents[index] for index in term) for term in terms]
        subscripts = f"{','.join(terms)}->{output}"
        if (subscripts, *shapes) not in seen:
            seen.add((subscripts, *shapes))
            yield subscripts, tuple(draw_uniform(values, shape) for shape in shapes)


def run_everyday(times: int, most_bytes: float) -> Calls:
    """Yield every entry of the suite several times, in random order.

    Entries of more bytes are left out, and booleans, which torch does not support.
    """
    entries = [
        entry
        for entry in json.loads(SUITE.read_text("utf-8"))
        if entry["dtype"] != "bool" and max(_count_bytes(entry)) <= most_bytes
    ]
    buffers: dict[str, Array] = {}
    for entry in entries:
        dtype = np.dtype(entry["dtype"])
        size = max(_count_bytes(entry)) // dtype.itemsize + STEP * len(
            _split_terms(entry)
        )
        if entry["dtype"] not in buffers or buffers[entry["dtype"]].size < size:
            buffers[entry["dtype"]] = np.empty(size, dtype)
    rng = np.random.default_rng(8)
    for name, values in buffers.items():
        _fill(rng, name, values)
    calls = entries * times
    Random(8).shuffle(calls)
    for entry in calls:
        yield entry["subscripts"], tuple(_make_operands(entry, buffers[entry["dtype"]]))


def _split_terms(entry: Mapping[str, Any]) -> list[str]:
    return str(entry["subscripts"]).partition("->")[0].split(",")


def _count_bytes(entry: Mapping[str, Any]) -> list[int]:
    """Return the size of each operand."""
    itemsize = np.dtype(entry["dtype"]).itemsize
    return [
        itemsize * prod(entry["sizes"][index] for index in term)
        for term in _split_terms(entry)
    ]


def _fill(rng: np.random.Generator, dtype: str, values: Array) -> None:
    if values.dtype.kind == "i":
        values[:] = rng.integers(0, 4, values.size)
    elif dtype == "complex128":
        values[:] = (rng.random(values.size) + 0.5) * (1 + 0.5j)
    else:
        drawn = dtype if dtype in ("float64", "complex64") else "float32"
        values[:] = draw_uniform(rng, values.shape, drawn)


def _make_operands(entry: Mapping[str, Any], buffer: Array) -> Iterator[Array]:
    """Yield views of one buffer: separate operands of all entries would take 7 GB."""
    for k, term in enumerate(_split_terms(entry)):
        shape = tuple(entry["sizes"][index] for index in term)
        yield buffer[STEP * k : STEP * k + prod(shape)].reshape(shape)
