"""The benchmark programs, by name."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.totals.calls import Calls
from benchmarks.totals.loops import (
    run_attention,
    run_bilinear,
    run_ccsd,
    run_covariances,
    run_dg_steps,
    run_gates,
    run_graph_attention,
    run_linear,
    run_pair_energies,
    run_spectral_elements,
)
from benchmarks.totals.mixtures import run_everyday, run_one_twice, run_thousand_once
from benchmarks.totals.networks import LETTERS, run_chain, run_high_rank, run_network

__all__ = ["PROGRAMS", "Program", "select_programs"]

LAYERS = {"linear": run_linear, "attention": run_attention, "bilinear": run_bilinear}
BY_LETTERS = ("numpy", "torch")
"""Libraries with at most 52 indices."""
DTYPES = ("float32", "float64", "complex64")


@dataclass(frozen=True)
class Program:
    """A reproducible sequence of einsum calls.

    Attributes:
        make: makes the calls from arguments that determine the size.
        full: arguments of measurements.
        tiny: arguments of a run in a fraction of a second.
        unfit: libraries that cannot compute it.
    """

    name: str
    make: Callable[..., Calls]
    full: tuple[Any, ...] = ()
    tiny: tuple[Any, ...] = ()
    unfit: tuple[str, ...] = ()

    def make_calls(self, tiny: bool = False) -> Calls:
        return self.make(*(self.tiny if tiny else self.full))


def _list_programs() -> Iterator[Program]:
    for o, v, iterations in (
        (6, 30, 10), (6, 30, 30), (10, 60, 10), (10, 60, 30), (16, 80, 10)
    ):  # fmt: skip
        name = f"ccsd-{o}-{v}-{iterations}"
        yield Program(name, run_ccsd, (o, v, iterations), (2, 3, 2))
    for name, make in LAYERS.items():
        for dtype in DTYPES:
            yield Program(f"{name}-{dtype}", make, (dtype, 300), (dtype, 5))
    for n in (8, 30, 100, 300):
        unfit: tuple[str, ...] = BY_LETTERS if n >= len(LETTERS) else ()
        yield Program(f"chain-{n}", run_chain, (n,), (min(n, 60),), unfit)
    for n in (8, 30, 100, 300):
        # numpy's path for 30 tensors contracts 13 of them in the last step, which takes
        # hours: it allows no intermediate larger than an operand.
        unfit = BY_LETTERS if n > 30 else ("numpy",) if n == 30 else ()
        yield Program(f"network-{n}", run_network, (n,), (min(n, 60),), unfit)
    yield Program("high-rank", run_high_rank, (9, 10), (2, 2))
    for n in (10, 20):
        yield Program(f"dg-steps-{n}", run_dg_steps, (n, 2000, 100), (n, 5, 2))
    yield Program("spectral-elements", run_spectral_elements, (5, 2000, 100), (3, 4, 2))
    yield Program("graph-attention", run_graph_attention, (60_000, 20), (40, 2))
    yield Program("covariances", run_covariances, (100_000, 12), (40, 2))
    yield Program("pair-energies", run_pair_energies, (12, 40, 50), (2, 3, 2))
    yield Program("gates", run_gates, (20,), (4,))
    yield Program("everyday", run_everyday, (10, math.inf), (1, 2e3))
    yield Program("one-twice", run_one_twice)
    yield Program("thousand-once", run_thousand_once, (1000,), (20,))


PROGRAMS = {program.name: program for program in _list_programs()}


def select_programs(pattern: str) -> list[Program]:
    """Return the programs whose names match.

    >>> [program.name for program in select_programs("^chain")]
    ['chain-8', 'chain-30', 'chain-100', 'chain-300']
    """
    return [p for p in PROGRAMS.values() if re.search(pattern, p.name)]
