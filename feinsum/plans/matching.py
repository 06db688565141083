"""Overlaps of what ranks hold and need, for many pairs of distributions at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import reduce
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from feinsum.plans.boxes import cut
from feinsum.plans.distribution import Distribution
from feinsum.plans.machine import Machine

__all__ = ["Overlaps"]

MOST_PAIRS = 2**17
"""Of distributions and ranks whose overlap is computed at one time: a megabyte."""

MOST_KEPT = 2**15
"""Entries of a table that is kept, for the same is asked again."""


class Overlaps:
    """Elements that ranks both hold and need, for pairs of distributions."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.places = machine.coordinates(machine.n_processes)
        self.known: dict[tuple[int, tuple[int, ...]], NDArray[np.int64]] = {}
        self.shared: dict[Hashable, NDArray[np.float64]] = {}

    def table(
        self,
        shape: Sequence[int],
        held: Sequence[Distribution],
        needs: Sequence[Distribution],
        least: float | NDArray[np.float64] = 0.0,
    ) -> NDArray[np.float64]:
        """For every pair, the sum over ranks of a product over axes.

        Args:
            least: write 0 where the sum is known to be less than this.
        """
        found = np.zeros((len(held), len(needs)))
        there = np.array([self._is_there(d) for d in held])
        tables = [self._axis(n, axis, held, needs) for axis, n in enumerate(shape)]
        most = np.repeat(there.sum(axis=1)[:, None], len(needs), axis=1)
        for pairs, first, second in tables:
            most *= pairs.max(axis=2)[first[:, None], second[None, :]]
        of, to = np.nonzero((most >= least) & (most > 0))
        rows = max(1, MOST_PAIRS // self.machine.n_processes)
        for begin in range(0, len(of), rows):
            a, b = of[begin : begin + rows], to[begin : begin + rows]
            total = there[a]
            for pairs, first, second in tables:
                total *= pairs[first[a], second[b]]
            found[a, b] = total.sum(axis=1)
        return found

    def missing(
        self,
        shape: Sequence[int],
        known: Sequence[Sequence[Distribution]],
        needs: Sequence[Distribution],
    ) -> NDArray[np.float64]:
        """Elements that ranks need but do not have, for all combinations.

        Args:
            known: the choices for each of some distributions of one tensor; a rank has
                what any of them gives it.

        Returns:
            An axis for each of ``known``, and one for ``needs``.
        """
        sides = [*known, needs]
        boxes = [self._boxes(shape, side) for side in sides]
        total = np.zeros([len(side) for side in sides])
        for size in range(len(known) + 1):
            for chosen in combinations(range(len(known)), size):
                shared = self._shared_once(shape, sides, boxes, (*chosen, len(known)))
                total += (-1) ** size * shared
        return total

    def _boxes(
        self, shape: Sequence[int], choices: Sequence[Distribution]
    ) -> list[NDArray[np.int64]]:
        """Of every axis first entries and ends: shape (2, choices, ranks)."""
        there = np.array([self._is_there(d) for d in choices]) > 0
        found = [
            np.array([self._range(n, d.cuts[axis]) for d in choices]).swapaxes(0, 1)
            for axis, n in enumerate(shape)
        ]
        return [there.astype(np.int64), *found]

    def _shared_once(
        self,
        shape: Sequence[int],
        choices: Sequence[Sequence[Distribution]],
        boxes: Sequence[list[NDArray[np.int64]]],
        sides: Sequence[int],
    ) -> NDArray[np.float64]:
        """What :meth:`_shared` finds: several uses of a tensor ask for the same."""
        key = tuple(shape), len(choices), *((k, tuple(choices[k])) for k in sides)
        if key not in self.shared:
            found = self._shared(boxes, sides)
            if found.size > MOST_KEPT:
                return found
            self.shared[key] = found
        return self.shared[key]

    def _shared(
        self, boxes: Sequence[list[NDArray[np.int64]]], sides: Sequence[int]
    ) -> NDArray[np.float64]:
        """Elements that are in a box of each of some sides, summed over ranks."""
        n_sides = len(boxes)

        def along(side: int, values: NDArray[np.int64]) -> NDArray[np.int64]:
            shape = [1] * n_sides + [values.shape[-1]]
            shape[side] = len(values)
            return values.reshape(shape)

        total = reduce(np.multiply, (along(s, boxes[s][0]) for s in sides)) * 1.0
        for axis in range(1, len(boxes[0])):
            low = reduce(np.maximum, (along(s, boxes[s][axis][0]) for s in sides))
            high = reduce(np.minimum, (along(s, boxes[s][axis][1]) for s in sides))
            total = total * np.maximum(high - low, 0)
        return np.asarray(total.sum(axis=-1))

    def _is_there(self, held: Distribution) -> NDArray[np.float64]:
        here = np.ones(self.machine.n_processes)
        for k, place in held.fixed:
            here *= self.places[:, k] == place
        return here

    def _axis(
        self,
        extent: int,
        axis: int,
        held: Sequence[Distribution],
        needs: Sequence[Distribution],
    ) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
        """Shared lengths of every pair of cuts of one axis, and which pair is whose."""
        first = list(dict.fromkeys(d.cuts[axis] for d in held))
        second = list(dict.fromkeys(d.cuts[axis] for d in needs))
        a = np.array([self._range(extent, cuts) for cuts in first])
        b = np.array([self._range(extent, cuts) for cuts in second])
        low = np.maximum(a[:, None, 0], b[None, :, 0])
        high = np.minimum(a[:, None, 1], b[None, :, 1])
        of = np.array([first.index(d.cuts[axis]) for d in held])
        to = np.array([second.index(d.cuts[axis]) for d in needs])
        return np.maximum(high - low, 0).astype(float), of, to

    def _range(self, extent: int, cuts: tuple[int, ...]) -> NDArray[np.int64]:
        if (extent, cuts) not in self.known:
            n_ranks = self.machine.n_processes
            low, high = np.zeros(n_ranks, np.int64), np.full(n_ranks, extent, np.int64)
            for k in cuts:
                low, high = cut(low, high, self.places[:, k], self.machine.sizes[k])
            self.known[extent, cuts] = np.stack([low, high])
        return self.known[extent, cuts]
