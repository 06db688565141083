"""Levels of a machine, such as hosts, sockets and cores, and the traffic at each.

Ranks of a unit, such as a host, are consecutive. An element counts at the outermost
level at which its source and its target are in different units. With ``units=(4, 2)``,
hosts of 4 ranks and sockets of 2::

    |    host 0     |    host 1     |
    | 0   1 | 2   3 | 4   5 | 6   7 |
      '---'                            0 -> 1: within a socket   (last level)
      '-------'                        0 -> 2: between sockets   (level 1)
      '---------------'                0 -> 4: between hosts     (level 0)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Ints
from feinsum.distributed.distribution import Machine, make_notation_error
from feinsum.distributed.steps import Move
from feinsum.errors import PlanError
from feinsum.records import Links
from feinsum.words import format_count

if TYPE_CHECKING:
    from feinsum.distributed.plans import Plan


@dataclass(frozen=True)
class Levels:
    """The units of a machine at every level, and the links between them.

    Args:
        units: number of consecutive ranks in a unit of each level but the innermost,
            outermost first, such as the ranks of a host and then of a socket.
        links: the links between two units of each level, and those within the smallest
            unit. Without links, fewer elements are better; ties go to those that pass
            within smaller units.

    Raises:
        PlanError: with the rule ``processes``, for units that are not positive integers
            or do not divide the one before, or for another number of links.

    >>> sockets = Levels((8, 2), (Links(0, 9e-9), Links(0, 2e-9), Links(0, 1e-9)))
    >>> sockets.cost((10, 100, 1000)) < sockets.cost((1000, 10, 100))
    True
    """

    units: tuple[int, ...]
    links: tuple[Links, ...] = ()

    def __post_init__(self) -> None:
        for unit in self.units:
            if isinstance(unit, bool) or not isinstance(unit, int) or unit < 1:
                raise _make_levels_error(
                    f"ranks_per_host={unit!r}; expected an integer of at least 1"
                )
        # then a unit lies within one larger unit
        if any(outer % inner for outer, inner in pairwise(self.units)):
            raise _make_levels_error(
                f"units of {self.units} ranks; expected each to divide the last"
            )
        if self.links and len(self.links) != len(self.units) + 1:
            raise _make_levels_error(
                f"{format_count(len(self.links), 'link')} of "
                f"{format_count(len(self.units) + 1, 'level')}; expected "
                "one for each, the outermost first"
            )

    @classmethod
    def parse(cls, text: str, name: str = "levels") -> Levels:
        """Parse the numbers of ranks in units of each level, outermost first.

        Args:
            text: numbers separated by commas, such as ``8,2``.
            name: what the error calls the text.

        Raises:
            PlanError: with the rule ``notation``; see :class:`Levels` for others.

        >>> Levels.parse("8,2").units
        (8, 2)
        """
        try:
            units = tuple(map(int, text.split(",")))
        except ValueError:
            expected = "a number of ranks, or several, such as 8,2"
            raise make_notation_error(
                name, text, expected, rules=("notation",)
            ) from None
        return cls(units)

    def cost(self, moved: Sequence[int]) -> tuple[float, ...]:
        """Return a cost to minimize, lexicographically.

        Args:
            moved: elements by level, as :func:`moved_by_level` counts them.
        """
        if not self.links:
            return sum(moved), *moved
        pairs = zip(self.links, moved, strict=True)
        return sum(link.element_s * n for link, n in pairs), sum(moved)


def _make_levels_error(message: str) -> PlanError:
    return PlanError(message, rules=("processes",))


def convert_levels(levels: int | Levels | None) -> Levels | None:
    """Return levels, given as such or as a number of ranks on each host."""
    if levels is None or isinstance(levels, Levels):
        return levels
    return Levels((levels,))


def between_hosts(plan: Plan, ranks_per_host: int) -> int:
    """Count the moved elements that pass between hosts.

    Args:
        plan: the plan.
        ranks_per_host: number of consecutive ranks on each host; the last one may have
            fewer.

    Raises:
        PlanError: with the rule ``processes``, if it is not a positive integer.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (8, 8)), feinsum.array("B", (8, 8))
    >>> plan = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=8)
    >>> plan.counts.moved, between_hosts(plan, 4), between_hosts(plan, 8)
    (192, 64, 0)
    """
    return moved_by_level(plan, (ranks_per_host,))[0]


def moved_by_level(plan: Plan, units: Sequence[int]) -> tuple[int, ...]:
    """Count the moved elements by the outermost level that they pass between.

    Args:
        plan: the plan.
        units: as for :class:`Levels`.

    Returns:
        For each of the units the elements that pass between two of them and stay in a
        larger one, and then those that stay within the smallest; their sum is
        ``plan.counts.moved``.

    Raises:
        PlanError: see :class:`Levels`.

    >>> import feinsum
    >>> A, B = feinsum.array("A", (8, 8)), feinsum.array("B", (8, 8))
    >>> plan = feinsum.plan(feinsum.einsum("ij,jk->ik", A, B), processes=8)
    >>> moved_by_level(plan, (4, 2))
    (64, 64, 64)
    """
    elements, _ = _receive_by_level(plan, Levels(tuple(units)))
    return tuple(elements.sum(axis=1).tolist())


def estimate_seconds(plan: Plan, levels: Levels) -> float:
    """Estimate the seconds that messages and elements take to reach the slowest rank.

    Raises:
        PlanError: with the rule ``price``, if the levels have no links.
    """
    if not levels.links:
        raise PlanError(
            "levels without links have no seconds; pass links= to Levels",
            rules=("price",),
        )
    elements, messages = _receive_by_level(plan, levels)
    message_s = np.array([link.message_s for link in levels.links])
    element_s = np.array([link.element_s for link in levels.links])
    # each rank receives one message after another
    seconds = message_s @ messages + element_s @ elements
    return float(seconds.max())


def _receive_by_level(plan: Plan, levels: Levels) -> tuple[Ints, Ints]:
    """Count elements and messages that every rank receives, by level.

    Returns:
        Elements and messages, shape (n_levels, n_ranks) each.
    """
    units = (*levels.units, 1)
    elements, messages = np.zeros((2, len(units), plan.processes), np.int64)
    for event in plan.events():
        if not isinstance(event, Move):
            continue
        overlap, is_uncounted = event.overlap, event.is_sent
        sizes = overlap.sizes()
        for level, unit in enumerate(units):
            passes = is_uncounted & (overlap.source // unit != overlap.target // unit)
            np.add.at(elements[level], overlap.target[passes], sizes[passes])
            np.add.at(messages[level], overlap.target[passes], 1)
            # an element counts once, at the outermost level
            is_uncounted = is_uncounted & ~passes
    return elements, messages


class CopyCosts(NamedTuple):
    """The cost of fetching an element, by the axes along which it is replicated.

    Attributes:
        of_axes: for each set of machine axes, as the bits of a number: the cost of an
            element that all ranks along these axes need, and hold equal shares of.
        of_another: the average cost of an element from another rank.
        cheapest: the cost of an element over the cheapest link.
    """

    of_axes: NDArray[np.float64]
    of_another: float
    cheapest: float


@lru_cache(1024)
def compute_copy_costs(machine: Machine, levels: Levels | None = None) -> CopyCosts:
    """Return costs in elements; with links, relative to an element on the slowest link.

    An element that is needed along axes of n processes together costs n - 1, because
    one of them holds it.

    >>> compute_copy_costs(Machine((2, 4))).of_axes.tolist()
    [0.0, 1.0, 3.0, 7.0]
    """
    n_ranks, n_axes = machine.n_processes, machine.n_axes
    # the outermost unit is all ranks, the innermost is one rank
    units = (n_ranks, *(levels.units if levels else ()), 1)
    element_s = np.ones(len(units) - 1)
    if levels and levels.links:
        element_s = np.array([link.element_s for link in levels.links])
        # relative: costs stay comparable with numbers of elements
        element_s = element_s / (element_s.max() or 1.0)
    ranks, costs = np.arange(n_ranks), []
    for chosen in range(2**n_axes):
        other_axes = [k for k in range(n_axes) if not chosen >> k & 1]
        # ranks with the same coordinates on the other axes need the same element
        group = machine.number_ranks(other_axes, n_ranks)
        n_pairs = [_count_pairs(group * n_ranks + ranks // unit) for unit in units]
        costs.append(float(-np.diff(n_pairs) @ element_s) / n_ranks)
    # the last set has all axes: every rank needs what one rank holds
    average = costs[-1] / max(1, n_ranks - 1)
    return CopyCosts(np.array(costs), average, float(element_s.min()))


def _count_pairs(labels: Ints) -> int:
    """Return the number of ordered pairs of ranks with the same label."""
    _, counts = np.unique(labels, return_counts=True)
    return int((counts**2).sum())
