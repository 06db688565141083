"""Overlaps of what ranks hold and need, for many pairs of distributions at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial, reduce
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.distribution import Distribution
from feinsum.distributed.machine import Machine
from feinsum.distributed.ranges import cut

MOST_PAIRS = 2**17
"""Pairs of distributions and ranks whose overlap is computed at a time: a megabyte."""

MOST_KEPT = 2**16
"""Largest table that is kept for later requests, in entries."""


def _crossed(
    ways: Sequence[Sequence[Any]], of_ranks: Callable[[Any], NDArray[Any]]
) -> Iterator[NDArray[Any]]:
    """For every side an array over its ways and the ranks, which broadcast together."""
    for k, side in enumerate(ways):
        rows = np.array([of_ranks(way) for way in side])
        lengths = [1] * len(ways) + [rows.shape[1]]
        lengths[k] = len(side)
        yield rows.reshape(lengths)


class Overlaps:
    """Elements that ranks both hold and need, for pairs of distributions."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.places = machine.coordinates(machine.n_processes)
        self.known: dict[tuple[int, tuple[int, ...]], NDArray[np.int64]] = {}
        self.fixed: dict[tuple[tuple[int, int], ...], NDArray[np.float64]] = {}
        self.shared: dict[Hashable, NDArray[np.float64]] = {}
        self.common: dict[Hashable, NDArray[np.float64]] = {}

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
        total = np.zeros([len(side) for side in sides])
        for size in range(len(known) + 1):
            for chosen in combinations(range(len(known)), size):
                shared = self._shared_once(shape, sides, (*chosen, len(known)))
                # inclusion and exclusion: what two uses brought counts once
                total += (-1) ** size * shared
        return total

    def _shared_once(
        self,
        shape: Sequence[int],
        sides: Sequence[Sequence[Distribution]],
        chosen: Sequence[int],
    ) -> NDArray[np.float64]:
        """Elements that some sides share, with an axis for each side.

        Several uses of a tensor request the same ones.
        """
        key = tuple(shape), *(tuple(sides[k]) for k in chosen)
        found = self.shared.get(key)
        if found is None:
            found = self._shared(shape, [sides[k] for k in chosen])
            if found.size <= MOST_KEPT:
                self.shared[key] = found
        lengths = [len(side) if k in chosen else 1 for k, side in enumerate(sides)]
        return found.reshape(lengths)

    def _shared(
        self, shape: Sequence[int], sides: Sequence[Sequence[Distribution]]
    ) -> NDArray[np.float64]:
        """Elements that are in a box of each side, summed over ranks.

        There are far fewer ways to partition one axis than distributions, so what ranks
        share along it is computed for those ways.
        """
        total = self._taken(
            [[d.fixed for d in side] for side in sides],
            lambda ways: reduce(np.multiply, _crossed(ways, self._is_at)),
        )
        for axis, extent in enumerate(shape):
            total = total * self._taken(
                [[d.cuts[axis] for d in side] for side in sides],
                partial(self._common, extent),
            )
        found: NDArray[np.float64] = total.sum(axis=-1)
        return np.broadcast_to(found, [len(side) for side in sides])

    def _taken(
        self,
        ways: Sequence[Sequence[Hashable]],
        table: Callable[[Sequence[Sequence[Any]]], NDArray[np.float64]],
    ) -> NDArray[np.float64]:
        """A table of all combinations of ways, made of one of the different ones."""
        unique = [list(dict.fromkeys(side)) for side in ways]
        places = [{way: k for k, way in enumerate(side)} for side in unique]
        found = table(unique)
        if found.size == found.shape[-1]:
            return found  # the same for all
        of = [
            [place[way] for way in side]
            for side, place in zip(ways, places, strict=True)
        ]
        return found[np.ix_(*of)]

    def _common(
        self, extent: int, ways: Sequence[Sequence[tuple[int, ...]]]
    ) -> NDArray[np.float64]:
        """The length of what ranks share along an axis, for all combinations."""
        key = extent, *map(tuple, ways)
        if key in self.common:
            return self.common[key]
        ranges = [[self._range(extent, cuts) for cuts in side] for side in ways]
        low = reduce(np.maximum, _crossed(ranges, lambda one: one[0]))
        high = reduce(np.minimum, _crossed(ranges, lambda one: one[1]))
        found: NDArray[np.float64] = np.maximum(high - low, 0).astype(float)
        if found.size <= MOST_KEPT:
            self.common[key] = found
        return found

    def _is_there(self, held: Distribution) -> NDArray[np.float64]:
        return self._is_at(held.fixed)

    def _is_at(self, fixed: tuple[tuple[int, int], ...]) -> NDArray[np.float64]:
        """1 for ranks at fixed coordinates, 0 for all others."""
        if fixed not in self.fixed:
            here = np.ones(self.machine.n_processes)
            for k, place in fixed:
                here *= self.places[:, k] == place
            self.fixed[fixed] = here
        return self.fixed[fixed]

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
