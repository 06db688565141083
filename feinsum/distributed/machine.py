"""Machines: grids of processes in row-major order."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import prod
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from feinsum.errors import PlanError
from feinsum.ir.operand import Violation
from feinsum.records.document import STRICT
from feinsum.words import counted

MOST_AXES = 4
"""Most axes of a machine that the planner considers."""

ONE = "one process"
"""The text of a machine without axes."""

MOST_PROCESSES = 4096
"""Most processes of a plan: all blocks that they exchange are counted one by one."""


def _is_flat(levels: object) -> bool:
    return levels == ()


@dataclass(frozen=True)
class Machine:
    """A grid of processes, of one or several levels, such as hosts and their ranks.

    Ranks number the grid points in row-major order, like ``MPI_Cart_create`` without
    reordering. Ranks beyond the grid are idle. The axes of an inner level lie within
    one process of the outer grid: ``Machine((2, 3, 4), (1, 2))`` is two hosts of 3 x 4
    ranks.

    Args:
        sizes: number of processes along each axis.
        levels: number of axes of each level, the outermost first; empty if there is one
            level.

    Source: DISTAL, section 3.1 (hierarchical machines).

    >>> Machine((2, 3)).n_processes, Machine((2, 3)).text
    (6, 'x=2 y=3')
    >>> hosts = Machine.parse("x=2 | y=3 z=4")
    >>> hosts.levels, hosts.units
    ((1, 2), (12,))
    """

    __pydantic_config__ = STRICT

    sizes: tuple[int, ...]
    levels: Annotated[tuple[int, ...], Field(exclude_if=_is_flat)] = ()

    def __post_init__(self) -> None:
        levels = tuple(self.levels)
        object.__setattr__(self, "sizes", tuple(self.sizes))
        object.__setattr__(self, "levels", levels * (levels != (len(self.sizes),)))

    @classmethod
    def parse(cls, text: str) -> Machine:
        """Inverse of :attr:`text`.

        Raises:
            PlanError: with the rule ``notation``, saying what was expected.
        """
        parts = [part.split() for part in text.split("|")] if text != ONE else []
        words = [word.rpartition("=") for part in parts for word in part]
        expected = [axis_name(k) for k in range(len(words))]
        is_named = [name for name, *_ in words] == expected and all(parts)
        if not (is_named and all(re.fullmatch("[0-9]+", n) for *_, n in words)):
            raise PlanError(
                f"machine {text!r}; expected such as 'x=2 y=3', or 'x=2 | y=3 z=4' of "
                "two levels",
                rules=("notation",),
            )
        return cls(tuple(int(size) for *_, size in words), tuple(map(len, parts)))

    @property
    def bounds(self) -> tuple[int, ...]:
        """The first axis of each level but the outermost."""
        return tuple(accumulate(self.levels[:-1]))

    @property
    def units(self) -> tuple[int, ...]:
        """Consecutive ranks in a process of each level but the innermost."""
        return tuple(prod(self.sizes[k:]) for k in self.bounds)

    @property
    def n_axes(self) -> int:
        return len(self.sizes)

    @property
    def n_processes(self) -> int:
        return prod(self.sizes)

    @property
    def text(self) -> str:
        named = [f"{axis_name(k)}={n}" for k, n in enumerate(self.sizes)]
        return " ".join(barred(named, self.bounds)) or ONE

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


def barred(words: Sequence[str], bounds: Sequence[int], bar: str = "|") -> list[str]:
    """Words for the axes of a machine, with a bar where an inner level begins.

    >>> barred(["x", "y", "z"], (1,))
    ['x', '|', 'y', 'z']
    """
    found = list(words)
    for place in sorted(bounds, reverse=True):
        found.insert(place, bar)
    return found


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
                f"axis {axis_name(axis)} of a machine has "
                f"{counted(size, 'process')}; expected 1 "
                "or more",
            )
    if machine.levels and (
        min(machine.levels) < 1 or sum(machine.levels) != machine.n_axes
    ):
        yield Violation(
            "machine",
            f"levels of {machine.levels} axes; expected one or more each, and "
            f"{machine.n_axes} together",
        )
    if machine.n_processes > n_processes:
        yield Violation(
            "machine",
            f"a machine {machine.text} needs "
            f"{counted(machine.n_processes, 'process')}; the plan "
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
