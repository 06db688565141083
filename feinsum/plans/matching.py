"""How much of what ranks hold they need, for many pairs of distributions at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feinsum.plans.boxes import cut
from feinsum.plans.distribution import Distribution
from feinsum.plans.machine import Machine

__all__ = ["Overlaps"]

MOST_PAIRS = 40_000_000
"""Of distributions and ranks whose overlap is computed at one time."""


class Overlaps:
    """Elements that ranks hold and need, for pairs of distributions on a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.places = machine.coordinates(machine.n_processes)
        self.known: dict[tuple[int, tuple[int, ...]], NDArray[np.int64]] = {}

    def table(
        self,
        shape: Sequence[int],
        held: Sequence[Distribution],
        needs: Sequence[Distribution],
    ) -> NDArray[np.float64]:
        """Of every pair the sum over ranks of a product over axes."""
        found = np.empty((len(held), len(needs)))
        there = np.array([self._is_there(d) for d in held])
        n_ranks = self.machine.n_processes
        rows = max(1, MOST_PAIRS // max(1, len(needs) * n_ranks))
        tables = [self._axis(n, axis, held, needs) for axis, n in enumerate(shape)]
        for begin in range(0, len(held), rows):
            chunk = slice(begin, begin + rows)
            total = np.repeat(there[chunk, None, :], len(needs), axis=1)
            for pairs, first, second in tables:
                total *= pairs[first[chunk, None], second[None, :]]
            found[chunk] = total.sum(axis=2)
        return found

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
