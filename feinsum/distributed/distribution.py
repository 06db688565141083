"""Distributions: which part of a tensor each rank of a machine holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import Field

from feinsum.distributed.boxes import Boxes
from feinsum.distributed.machine import Machine, axis_name, barred, machine_violations
from feinsum.distributed.ranges import cut, deal
from feinsum.errors import PlanError
from feinsum.ir.operand import Violation
from feinsum.records.document import STRICT
from feinsum.words import counted


def _is_empty(axes: object) -> bool:
    return axes == ()


Cyclic = Annotated[tuple[int, ...], Field(exclude_if=_is_empty)]
"""Machine axes that deal values out one by one; documents leave out the empty tuple."""


@dataclass(frozen=True)
class Distribution:
    """A tensor in parts over the processes of a machine.

    The machine axes in ``cuts`` partition each axis of the tensor into blocks of
    ``ceil(extent / processes)``; those in ``cyclic`` deal its values out one by one, in
    turn. Of several machine axes, each subdivides the parts of the one before. Only
    processes at the given coordinates of ``fixed`` axes hold
    anything. Along all other machine axes the tensor is replicated.

    Args:
        cuts: for each axis of the tensor, the machine axes that partition it.
        fixed: machine axes, each with the one coordinate where the tensor is.
        cyclic: the axes of ``cuts`` that deal out values instead of cutting blocks.

    Source: DISTAL, section 3.2 (tensor distribution notation); Blackford et al.,
    *ScaLAPACK Users' Guide*, section 4.3 (cyclic distributions).

    >>> face = Distribution.parse("ik->i0k", Machine((2, 2, 2)))
    >>> face.cuts, face.fixed
    (((0,), (2,)), ((1, 0),))
    >>> face.boxes((6, 5), 8).box(5)
    (range(3, 6), range(3, 5))
    >>> face.boxes((6, 5), 8).box(6) is None
    True
    >>> rows = Distribution.parse("ik->i%", Machine((2,)))
    >>> rows.boxes((6, 5), 2).box(1)
    (range(1, 7, 2), range(0, 5))
    """

    __pydantic_config__ = STRICT

    machine: Machine
    cuts: tuple[tuple[int, ...], ...]
    fixed: tuple[tuple[int, int], ...] = ()
    cyclic: Cyclic = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", tuple(map(tuple, self.cuts)))
        object.__setattr__(self, "fixed", tuple(sorted(map(tuple, self.fixed))))
        object.__setattr__(self, "cyclic", tuple(sorted(self.cyclic)))

    @property
    def copied_axes(self) -> tuple[int, ...]:
        """Axes of the machine along which every process holds the same."""
        used = {axis for term in self.cuts for axis in term} | {
            k for k, _ in self.fixed
        }
        return tuple(k for k in range(self.machine.n_axes) if k not in used)

    @classmethod
    def parse(cls, text: str, machine: Machine) -> Distribution:
        """From DISTAL's notation: names of the tensor's axes, an arrow, and for each
        machine axis a name, a number (a fixed place) or ``*`` (copies). A ``%`` after a
        name makes its axis cyclic. A bar where an inner level of the machine begins may
        be left out; each level has a name once.

        Raises:
            PlanError: with the rule ``notation``, saying what was expected.

        >>> Distribution.parse("xy->xy*", Machine((2, 2, 2))).notation("xy")
        'xy->xy*'
        >>> Distribution.parse("xy->x|xy", Machine((2, 2, 2), (1, 2))).cuts
        ((0, 1), (2,))
        >>> Distribution.parse("xy->x%y", Machine((2, 2))).cyclic
        (0,)
        """
        left, arrow, right = text.replace(" ", "").partition("->")
        words = re.findall(r"[^\W\d]%|.", right)
        names, places = list(left), [word[0] for word in words if word != "|"]
        cyclic = [word[1:] == "%" for word in words if word != "|"]
        if "|" in words and words != barred(
            [w for w in words if w != "|"], machine.bounds
        ):
            places = words  # a bar where no level begins is no name
        wrong = _wrong_notation(names, places, machine, bool(arrow))
        if wrong:
            raise PlanError(
                f"distribution {text!r}: {wrong}; expected such as 'xy->xy*', with a "
                "name, a digit or * for each of "
                f"{counted(machine.n_axes, 'axis')}",
                rules=("notation",),
            )
        cuts = tuple(tuple(k for k, p in enumerate(places) if p == n) for n in names)
        fixed = tuple((k, int(p)) for k, p in enumerate(places) if p.isdigit())
        return cls(machine, cuts, fixed, tuple(np.nonzero(cyclic)[0].tolist()))

    def notation(self, indices: Sequence[str]) -> str:
        """DISTAL's notation, in which several axes may cut one index."""
        names = {
            axis: i + "%" * (axis in self.cyclic)
            for i, term in zip(indices, self.cuts, strict=True)
            for axis in term
        }
        fixed = dict(self.fixed)
        glue = "" if all(len(i) == 1 for i in indices) else " "
        places = [
            names.get(k, str(fixed.get(k, "*"))) for k in range(self.machine.n_axes)
        ]
        right = glue.join(barred(places, self.machine.bounds))
        return f"{glue.join(indices)}->{right}"

    def boxes(self, shape: Sequence[int], n_ranks: int) -> Boxes:
        """The box that each rank holds of a tensor of this shape."""
        return _boxes(self, tuple(shape), n_ranks)


@lru_cache(4096)
def _boxes(held: Distribution, shape: tuple[int, ...], n_ranks: int) -> Boxes:
    places = held.machine.coordinates(n_ranks)
    first = np.zeros((n_ranks, len(shape)), np.int64)
    end, steps = first + np.array(shape, np.int64), [1] * len(shape)
    for axis, cutting in enumerate(held.cuts):
        low, high = first[:, axis], end[:, axis]
        for k in cutting:
            part_of, n = deal if k in held.cyclic else cut, held.machine.sizes[k]
            low, high = part_of(low, high, places[:, k], n, steps[axis])
            steps[axis] *= n if k in held.cyclic else 1
        first[:, axis], end[:, axis] = low, high
    is_there = np.arange(n_ranks) < held.machine.n_processes
    for k, place in held.fixed:
        is_there = is_there & (places[:, k] == place)
    return Boxes(first, end, is_there, tuple(steps))


def _wrong_notation(
    names: list[str], places: list[str], machine: Machine, has_arrow: bool
) -> str | None:
    if not has_arrow:
        return "has no arrow"
    if len(places) != machine.n_axes:
        return f"names {counted(len(places), 'axis')} of the machine"
    used = [p for p in places if p != "*" and not p.isdigit()]
    ends = (0, *machine.bounds, machine.n_axes)
    levels = ([p for p in places[a:b] if p in used] for a, b in pairwise(ends))
    if any(len(set(one)) != len(one) for one in (names, *levels)):
        return "has a name twice"
    if unknown := sorted(set(used) - set(names)):
        return f"has {unknown[0]!r}, which is no axis of the tensor"
    for k, place in enumerate(places):
        if place.isdigit() and int(place) >= machine.sizes[k]:
            return f"has place {place} on an axis of {machine.sizes[k]}"
    return None


def distribution_violations(
    what: str, held: Distribution, n_axes: int, n_processes: int
) -> Iterator[Violation]:
    """The violations of a distribution for a tensor with this many axes."""
    yield from machine_violations(held.machine, n_processes)
    if len(held.cuts) != n_axes:
        yield Violation(
            "rank",
            f"{what} has {counted(n_axes, 'axis')}; its distribution has "
            f"{len(held.cuts)}",
        )
    used = [k for term in held.cuts for k in term] + [k for k, _ in held.fixed]
    for k in used:
        if not 0 <= k < held.machine.n_axes:
            yield Violation("axis", f"{what} names axis {k} of {held.machine.text}")
        elif used.count(k) > 1:
            yield Violation("axis", f"{what} uses axis {axis_name(k)} more than once")
    for k in set(held.cyclic) - {k for term in held.cuts for k in term}:
        yield Violation(
            "axis", f"{what}: axis {axis_name(k)} is cyclic and cuts nothing"
        )
    if len(set(held.cyclic)) < len(held.cyclic):
        yield Violation("axis", f"{what} has an axis that is cyclic more than once")
    for k, place in held.fixed:
        if 0 <= k < held.machine.n_axes and not 0 <= place < held.machine.sizes[k]:
            yield Violation(
                "axis",
                f"{what} is at place {place} of axis {axis_name(k)}, which has "
                f"{held.machine.sizes[k]}",
            )
