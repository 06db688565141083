"""Einsums that have nothing to do with each other, in one process."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.totals.calls import Array, Calls, uniform

__all__ = ["everyday", "one_twice", "thousand_once"]

SUITE = Path(__file__).parents[2] / "feinsum" / "suites" / "everyday.json"
"""Read as a file: whoever imports ``feinsum.suites`` pays for importing feinsum."""
INDICES = "abcdef"
STEP = 1024
"""Entries of the store between the starts of two operands of a call."""


def one_twice() -> Calls:
    rng = np.random.default_rng(6)
    operands = uniform(rng, (30, 40)), uniform(rng, (40, 50))
    for _ in range(2):
        yield "ij,jk->ik", operands


def thousand_once(n: int) -> Calls:
    """Different einsums of 1 to 3 operands of ranks 1 to 4 and extents 1 to 12."""
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
            yield subscripts, tuple(uniform(values, shape) for shape in shapes)


def everyday(times: int, most_bytes: float) -> Calls:
    """Every entry of the suite so many times, all in random order.

    Entries of more bytes are left out, and those of truth values, which torch has not.
    """
    entries = [
        entry
        for entry in json.loads(SUITE.read_text("utf-8"))
        if entry["dtype"] != "bool" and max(_bytes(entry)) <= most_bytes
    ]
    store: dict[str, Array] = {}
    for entry in entries:
        dtype = np.dtype(entry["dtype"])
        size = max(_bytes(entry)) // dtype.itemsize + STEP * len(_terms(entry))
        if entry["dtype"] not in store or store[entry["dtype"]].size < size:
            store[entry["dtype"]] = np.empty(size, dtype)
    rng = np.random.default_rng(8)
    for name, values in store.items():
        _fill(rng, name, values)
    calls = entries * times
    Random(8).shuffle(calls)
    for entry in calls:
        yield entry["subscripts"], tuple(_operands(entry, store[entry["dtype"]]))


def _terms(entry: Mapping[str, Any]) -> list[str]:
    return str(entry["subscripts"]).partition("->")[0].split(",")


def _bytes(entry: Mapping[str, Any]) -> list[int]:
    """Of each operand."""
    itemsize = np.dtype(entry["dtype"]).itemsize
    return [
        itemsize * prod(entry["sizes"][index] for index in term)
        for term in _terms(entry)
    ]


def _fill(rng: np.random.Generator, dtype: str, values: Array) -> None:
    if values.dtype.kind == "i":
        values[:] = rng.integers(0, 4, values.size)
    elif dtype == "complex128":
        values[:] = (rng.random(values.size) + 0.5) * (1 + 0.5j)
    else:
        drawn = dtype if dtype in ("float64", "complex64") else "float32"
        values[:] = uniform(rng, values.shape, drawn)


def _operands(entry: Mapping[str, Any], store: Array) -> Iterator[Array]:
    """Parts of one array: to keep the operands of all entries would take 7 GB."""
    for k, term in enumerate(_terms(entry)):
        shape = tuple(entry["sizes"][index] for index in term)
        yield store[STEP * k : STEP * k + prod(shape)].reshape(shape)
