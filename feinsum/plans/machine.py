"""Machines: grids of processes in row-major order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from feinsum.ir.violation import Violation
from feinsum.records.document import STRICT

__all__ = ["MOST_AXES", "MOST_PROCESSES", "Machine", "factorizations"]

MOST_AXES = 4
"""Of a machine that the planner considers."""

MOST_PROCESSES = 4096
"""Of a plan: all blocks that pass between them are counted one by one."""


@dataclass(frozen=True)
class Machine:
    """A grid of processes.

    Ranks number the grid points in row-major order, like ``MPI_Cart_create`` without
    reordering. Ranks beyond the grid are idle.

    Args:
        sizes: number of processes along each axis.

    >>> Machine((2, 3)).n_processes, Machine((2, 3)).text
    (6, 'x=2 y=3')
    """

    __pydantic_config__ = STRICT

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(self.sizes))

    @property
    def n_axes(self) -> int:
        return len(self.sizes)

    @property
    def n_processes(self) -> int:
        return prod(self.sizes)

    @property
    def text(self) -> str:
        named = (f"{axis_name(k)}={n}" for k, n in enumerate(self.sizes))
        return " ".join(named) or "one process"

    def coordinates(self, n_ranks: int) -> NDArray[np.int64]:
        """Coordinates of every rank along every axis: shape (n_ranks, n_axes).

        Ranks beyond the grid get the coordinates of rank 0.
        """
        return _coordinates(self.sizes, n_ranks)


@cache
def _coordinates(sizes: tuple[int, ...], n_ranks: int) -> NDArray[np.int64]:
    ranks = np.arange(n_ranks, dtype=np.int64)
    ranks[prod(sizes) :] = 0
    found = np.stack(np.unravel_index(ranks, sizes), axis=1) if sizes else None
    return np.zeros((n_ranks, 0), np.int64) if found is None else found


def axis_name(axis: int) -> str:
    """The letter of a machine axis.

    >>> [axis_name(k) for k in range(5)]
    ['x', 'y', 'z', 'w', 'x4']
    """
    return "xyzw"[axis] if axis < 4 else f"x{axis}"


def machine_violations(machine: Machine, n_processes: int) -> Iterator[Violation]:
    """The violations of a machine with this many processes."""
    for axis, size in enumerate(machine.sizes):
        if size < 1:
            yield Violation(
                "machine",
                f"axis {axis_name(axis)} of a machine has {size} processes; expected 1 "
                "or more",
            )
    if machine.n_processes > n_processes:
        yield Violation(
            "machine",
            f"a machine {machine.text} needs {machine.n_processes} processes; the plan "
            f"has {n_processes}",
        )


def factorizations(
    number: int, most_axes: int = MOST_AXES
) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a product, factors of 2 or more, ascending.

    >>> list(factorizations(12))
    [(12,), (2, 6), (2, 2, 3), (3, 4)]
    >>> list(factorizations(1))
    [()]
    """
    if number == 1:
        yield ()
        return
    yield from _ascending(number, most_axes, 2)


def _ascending(number: int, most: int, least: int) -> Iterator[tuple[int, ...]]:
    yield (number,)
    if most == 1:
        return
    for first in range(least, number):
        if first * first > number:
            return
        if number % first == 0:
            for rest in _ascending(number // first, most - 1, first):
                yield (first, *rest)
