"""Einsums that nobody chose: drawn at random, the same ones for a seed everywhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import exp, log, prod
from random import Random

import numpy as np

from feinsum.suites import EVERYDAY, SuiteEntry

__all__ = ["drawn_entries", "drawn_entry"]

N_ENTRIES = 64
"""Of a seed."""
N_OPERANDS = {1: 0.15, 2: 0.6, 3: 0.25}
DTYPES = {"float64": 0.5, "float32": 0.25, "complex128": 0.15, "complex64": 0.1}
POINTS = 1e5, 1e9
"""Of the loop nest."""
MOST_BYTES = 2e8
"""Of all arrays."""
IN_OUTPUT = 0.6
"""The probability that the result has an index of several operands."""
ALONE_IN_OUTPUT = 0.9
"""The same of an index of one operand: such indices are rarely summed."""
NAME = re.compile(r"drawn-(\d+)-(\d+)")


def drawn_entries(seed: int) -> list[SuiteEntry]:
    """The entries ``drawn-SEED-0`` to ``drawn-SEED-63``, of the everyday suite.

    >>> [e.subscripts for e in drawn_entries(0)[8:11]]
    ['i,jki->jki', 'j,ik->kij', 'i,j->ji']
    """
    rng = Random(seed)
    return [_entry(f"drawn-{seed}-{k}", rng) for k in range(N_ENTRIES)]


def drawn_entry(name: str) -> SuiteEntry | None:
    """The entry with that name; None if it is not one of these."""
    match = NAME.fullmatch(name)
    return drawn_entries(int(match[1]))[int(match[2])] if match else None


def _entry(name: str, rng: Random) -> SuiteEntry:
    """Drawn again until it is computed from several indices, and fits into memory."""
    while True:
        terms, output = _subscripts(rng)
        sizes = _sizes(rng, "".join(sorted({*"".join(terms)})))
        (dtype,) = rng.choices([*DTYPES], [*DTYPES.values()])
        n_entries = sum(_volume(term, sizes) for term in (*terms, output))
        is_view = len(terms) == 1 and len(output) == len(terms[0])
        fits = n_entries * np.dtype(dtype).itemsize <= MOST_BYTES
        if all(terms) and not is_view and fits:
            break
    n_points = prod(sizes.values())
    return SuiteEntry(
        EVERYDAY,
        name,
        "large" if n_points > 1e7 else "medium",
        f"{','.join(terms)}->{output}",
        (tuple(f"A{k}" for k in range(len(terms))),),
        sizes,
        dtype=dtype,
    )


def _subscripts(rng: Random) -> tuple[Sequence[str], str]:
    """Which operands have an index, whether the result has it, and where it stands."""
    (n_operands,) = rng.choices([*N_OPERANDS], [*N_OPERANDS.values()])
    terms: list[list[str]] = [[] for _ in range(n_operands)]
    output = []
    for index in "ijklm"[: rng.choice((2, 3, 3, 4, 5))]:
        owners = [term for term in terms if rng.random() < 0.6] or [rng.choice(terms)]
        for term in owners:
            term.append(index)
        is_shared = len(owners) > 1
        if rng.random() < (IN_OUTPUT if is_shared else ALONE_IN_OUTPUT):
            output.append(index)
    for axes in (*terms, output):
        rng.shuffle(axes)
    return ["".join(term) for term in terms], "".join(output)


def _sizes(rng: Random, indices: str) -> dict[str, int]:
    """Extents of any ratio, up to 1 to 30, and of so many points."""
    least, most = map(log, POINTS)
    n_points = exp(rng.uniform(least, most))
    raw = {index: exp(rng.uniform(0, log(30))) for index in indices}
    factor = (n_points / prod(raw.values())) ** (1 / len(raw))
    return {index: max(2, round(factor * n)) for index, n in raw.items()}


def _volume(term: str, sizes: Mapping[str, int]) -> int:
    return prod(sizes[index] for index in term)
