"""The programs, by name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.totals.calls import Calls
from benchmarks.totals.chemistry import ccsd
from benchmarks.totals.layers import attention, bilinear, linear
from benchmarks.totals.meshes import dg_steps, spectral_elements
from benchmarks.totals.mixtures import everyday, one_twice, thousand_once
from benchmarks.totals.networks import LETTERS, chain, high_rank, network
from benchmarks.totals.sums import covariances, gates, graph_attention, pair_energies

__all__ = ["PROGRAMS", "Program", "chosen"]

LAYERS = {"linear": linear, "attention": attention, "bilinear": bilinear}
BY_LETTERS = ("numpy", "torch")
"""Contestants without names for more than 52 indices."""
DTYPES = ("float32", "float64", "complex64")


@dataclass(frozen=True)
class Program:
    """Calls of einsums, the same ones whenever it is run.

    Attributes:
        make: its calls, of arguments that say how large it is.
        full: the arguments that are measured.
        tiny: those of a run in a fraction of a second.
        unfit: contestants that cannot compute it.
    """

    name: str
    make: Callable[..., Calls]
    full: tuple[Any, ...] = ()
    tiny: tuple[Any, ...] = ()
    unfit: tuple[str, ...] = ()

    def calls(self, tiny: bool = False) -> Calls:
        return self.make(*(self.tiny if tiny else self.full))


def _programs() -> Iterator[Program]:
    for o, v, iterations in (
        (6, 30, 10), (6, 30, 30), (10, 60, 10), (10, 60, 30), (16, 80, 10)
    ):  # fmt: skip
        name = f"ccsd-{o}-{v}-{iterations}"
        yield Program(name, ccsd, (o, v, iterations), (2, 3, 2))
    for name, make in LAYERS.items():
        for dtype in DTYPES:
            yield Program(f"{name}-{dtype}", make, (dtype, 300), (dtype, 5))
    for n in (8, 30, 100, 300):
        unfit: tuple[str, ...] = BY_LETTERS if n >= len(LETTERS) else ()
        yield Program(f"chain-{n}", chain, (n,), (min(n, 60),), unfit)
    for n in (8, 30, 100, 300):
        # The path that numpy finds for 30 tensors ends with 13 of them in one step,
        # which takes hours: it lets no intermediate be larger than an operand.
        unfit = BY_LETTERS if n > 30 else ("numpy",) if n == 30 else ()
        yield Program(f"network-{n}", network, (n,), (min(n, 60),), unfit)
    yield Program("high-rank", high_rank, (9, 10), (2, 2))
    for n in (10, 20):
        yield Program(f"dg-steps-{n}", dg_steps, (n, 2000, 100), (n, 5, 2))
    yield Program("spectral-elements", spectral_elements, (5, 2000, 100), (3, 4, 2))
    yield Program("graph-attention", graph_attention, (60_000, 20), (40, 2))
    yield Program("covariances", covariances, (100_000, 12), (40, 2))
    yield Program("pair-energies", pair_energies, (12, 40, 50), (2, 3, 2))
    yield Program("gates", gates, (20,), (4,))
    yield Program("everyday", everyday, (10, math.inf), (1, 2e3))
    yield Program("one-twice", one_twice)
    yield Program("thousand-once", thousand_once, (1000,), (20,))


PROGRAMS = {program.name: program for program in _programs()}


def chosen(pattern: str) -> list[Program]:
    """Those whose names match.

    >>> [program.name for program in chosen("^chain")]
    ['chain-8', 'chain-30', 'chain-100', 'chain-300']
    """
    return [p for p in PROGRAMS.values() if re.search(pattern, p.name)]
