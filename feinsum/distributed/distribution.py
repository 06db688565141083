"""Machines (grids of processes), and the distribution of a tensor over one.

A machine numbers its processes in row-major order. ``Machine((2, 2, 2))`` with axes x,
y, z; rank = 4 x + 2 y + z::

                 z=0     z=1
    x=0  y=0      0       1
         y=1      2       3
    x=1  y=0      4       5
         y=1      6       7

A distribution says for each axis of the tensor which machine axes partition it. A 4 x 4
matrix ``A[i,j]`` on this machine, with the ranks that hold each block::

    ij->ij*                  ij->ij0                  ij->i%j*
    i, j partitioned,        the same blocks,         rows cyclic along x,
    copies along z           only where z = 0         copies along z

    +------+------+          +------+------+          0 1 | 2 3   row 0
    | 0 1  | 2 3  |          |  0   |  2   |          4 5 | 6 7   row 1
    +------+------+          +------+------+          0 1 | 2 3   row 2
    | 4 5  | 6 7  |          |  4   |  6   |          4 5 | 6 7   row 3
    +------+------+          +------+------+
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import accumulate, pairwise
from math import prod
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from feinsum.distributed.boxes import Boxes, take_block, take_cyclic_part
from feinsum.errors import PlanError
from feinsum.ir.operand import Violation
from feinsum.records.document import Part
from feinsum.words import format_count

MAX_AXES = 4
"""Axes of a machine that the planner considers: a group of a path rarely has more
indices, and the number of maps is exponential in the axes."""

MAX_PROCESSES = 4096
"""Processes of a plan: all blocks that they exchange are counted one by one."""

ONE_PROCESS = "one process"
"""The text of a machine without axes."""


def make_notation_error(
    kind: str, text: str, expected: str, problem: str = "", *, rules: tuple[str, ...]
) -> PlanError:
    """Return the error of a text that cannot be parsed.

    >>> rules = ("notation",)
    >>> print(make_notation_error("machine", "x", "such as 'x=2'", "no number",
    ...     rules=rules))
    machine 'x': no number; expected such as 'x=2'
    """
    colon = f": {problem}" if problem else ""
    return PlanError(f"{kind} {text!r}{colon}; expected {expected}", rules=rules)


@dataclass(frozen=True)
class Machine(Part):
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

    sizes: tuple[int, ...]
    levels: Annotated[tuple[int, ...], Field(exclude_if=operator.not_)] = ()

    def __post_init__(self) -> None:
        levels = tuple(self.levels)
        object.__setattr__(self, "sizes", tuple(self.sizes))
        # one level is written as none, so that equal machines are equal values
        object.__setattr__(self, "levels", levels * (levels != (len(self.sizes),)))

    @classmethod
    def parse(cls, text: str) -> Machine:
        """Parse :attr:`text`.

        Raises:
            PlanError: with the rule ``notation``, saying what was expected.
        """
        level_words = (
            [level.split() for level in text.split("|")] if text != ONE_PROCESS else []
        )
        words = [word.rpartition("=") for level in level_words for word in level]
        expected = [get_axis_name(k) for k in range(len(words))]
        is_named = [name for name, *_ in words] == expected and all(level_words)
        if not (is_named and all(re.fullmatch("[0-9]+", n) for *_, n in words)):
            raise make_notation_error(
                "machine",
                text,
                "such as 'x=2 y=3', or 'x=2 | y=3 z=4' of two levels",
                rules=("notation",),
            )
        return cls(tuple(int(size) for *_, size in words), tuple(map(len, level_words)))

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
        axes = [f"{get_axis_name(k)}={n}" for k, n in enumerate(self.sizes)]
        return " ".join(insert_bars(axes, self.bounds)) or ONE_PROCESS

    def coordinates(self, n_ranks: int) -> NDArray[np.int64]:
        """Return the coordinates of every rank, shape (n_ranks, n_axes).

        Ranks beyond the grid get the coordinates of rank 0.
        """
        return _compute_coordinates(self.sizes, n_ranks)

    def number_ranks(self, axes: Sequence[int], n_ranks: int) -> NDArray[np.int64]:
        """Return a number for each rank: its coordinates along some axes."""
        numbers = np.zeros(n_ranks, np.int64)
        for axis in axes:
            numbers = numbers * self.sizes[axis] + self.coordinates(n_ranks)[:, axis]
        return numbers


@cache
def _compute_coordinates(sizes: tuple[int, ...], n_ranks: int) -> NDArray[np.int64]:
    if not sizes:
        return np.zeros((n_ranks, 0), np.int64)
    ranks = np.arange(n_ranks, dtype=np.int64)
    # idle ranks need some coordinates; is_there excludes them
    ranks[prod(sizes) :] = 0
    return np.stack(np.unravel_index(ranks, sizes), axis=1)


def insert_bars(words: Sequence[str], bounds: Sequence[int]) -> list[str]:
    """Insert a bar where an inner level of a machine begins.

    Args:
        words: one for each axis of the machine.
        bounds: positions before which a bar is inserted.

    >>> insert_bars(["x", "y", "z"], (1,))
    ['x', '|', 'y', 'z']
    """
    text = list(words)
    for position in sorted(bounds, reverse=True):
        text.insert(position, "|")
    return text


def get_axis_name(axis: int) -> str:
    """Return the letter of a machine axis.

    >>> [get_axis_name(k) for k in range(5)]
    ['x', 'y', 'z', 'w', 'x4']
    """
    return "xyzw"[axis] if axis < 4 else f"x{axis}"


def name_violations(rule: str, messages: Iterable[str]) -> Iterator[Violation]:
    """Yield a violation of a rule for each message."""
    return (Violation(rule, message) for message in messages)


def find_machine_violations(machine: Machine, n_processes: int) -> Iterator[Violation]:
    """Yield the violations of a machine with this many processes."""
    return name_violations("machine", _find_machine_problems(machine, n_processes))


def _find_machine_problems(machine: Machine, n_processes: int) -> Iterator[str]:
    for axis, size in enumerate(machine.sizes):
        if size < 1:
            yield (
                f"axis {get_axis_name(axis)} of a machine has "
                f"{format_count(size, 'process')}; expected 1 or more"
            )
    levels = machine.levels
    if levels and (min(levels) < 1 or sum(levels) != machine.n_axes):
        yield (
            f"levels of {levels} axes; expected one or more each, and "
            f"{machine.n_axes} together"
        )
    if machine.n_processes > n_processes:
        yield (
            f"a machine {machine.text} needs "
            f"{format_count(machine.n_processes, 'process')}; the plan has "
            f"{n_processes}"
        )


def check_processes(processes: object) -> None:
    """Refuse a number of processes that no plan has.

    Raises:
        PlanError: with the rule ``processes``.
    """
    is_number = isinstance(processes, int) and not isinstance(processes, bool)
    if not (is_number and 1 <= processes <= MAX_PROCESSES):  # type: ignore[operator]
        raise PlanError(
            f"processes={processes!r}; expected an integer from 1 to {MAX_PROCESSES}",
            rules=("processes",),
        )


def factorizations(
    number: int, max_factors: int = MAX_AXES
) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write a number as a product, factors of 2 or more, ascending.

    >>> list(factorizations(12))
    [(12,), (2, 6), (2, 2, 3), (3, 4)]
    >>> list(factorizations(1))
    [()]
    """

    def list_ascending(
        product: int, max_factors: int, smallest: int
    ) -> Iterator[tuple[int, ...]]:
        yield (product,)
        if max_factors == 1:
            return
        for factor in range(smallest, product):
            if factor * factor > product:
                return
            if product % factor == 0:
                for factors in list_ascending(
                    product // factor, max_factors - 1, factor
                ):
                    yield (factor, *factors)

    if number == 1:
        yield ()
    else:
        yield from list_ascending(number, max_factors, 2)


@lru_cache(64)
def list_ordered_factors(number: int, n_factors: int) -> NDArray[np.int64]:
    """Return all ways to write a number as a product of factors from 1, in order.

    >>> list_ordered_factors(4, 2).tolist()
    [[1, 4], [2, 2], [4, 1]]
    """
    if n_factors == 0:
        return np.empty((int(number == 1), 0), np.int64)
    rows = []
    for factor in (d for d in range(1, number + 1) if number % d == 0):
        inner_rows = list_ordered_factors(number // factor, n_factors - 1)
        rows.append(np.insert(inner_rows, 0, factor, axis=1))
    factors: NDArray[np.int64] = np.concatenate(rows)
    return factors


Cyclic = Annotated[tuple[int, ...], Field(exclude_if=operator.not_)]
"""Machine axes with a cyclic distribution; documents leave out the empty tuple."""


@dataclass(frozen=True)
class Distribution(Part):
    """The parts of a tensor that the processes of a machine hold.

    The machine axes in ``cuts`` partition each axis of the tensor into blocks of
    ``ceil(extent / processes)``; those in ``cyclic`` distribute its values cyclically.
    If several machine axes partition one axis, each subdivides the parts of the one
    before. Only processes at the given coordinates of ``fixed`` axes hold entries.
    Along all other machine axes the tensor is replicated.

    Args:
        cuts: for each axis of the tensor, the machine axes that partition it.
        fixed: machine axes, each with the only coordinate whose processes hold entries.
        cyclic: the axes of ``cuts`` whose distribution is cyclic.

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

    machine: Machine
    cuts: tuple[tuple[int, ...], ...]
    fixed: tuple[tuple[int, int], ...] = ()
    cyclic: Cyclic = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", tuple(map(tuple, self.cuts)))
        object.__setattr__(self, "fixed", tuple(sorted(map(tuple, self.fixed))))
        object.__setattr__(self, "cyclic", tuple(sorted(self.cyclic)))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # cached, because a planner looks up the same distributions many times
        return hash((self.machine.sizes, self.cuts, self.fixed, self.cyclic))

    @property
    def copied_axes(self) -> tuple[int, ...]:
        """Axes of the machine along which the tensor is replicated."""
        # an axis partitions, selects one coordinate, or copies
        used = {k for term in self.cuts for k in term} | {k for k, _ in self.fixed}
        return tuple(k for k in range(self.machine.n_axes) if k not in used)

    @classmethod
    def parse(cls, text: str, machine: Machine) -> Distribution:
        """Parse DISTAL's notation.

        The text has the names of the tensor's axes, an arrow, and for each machine axis
        a name, a number (a fixed coordinate) or ``*`` (copies). A ``%`` after a name
        makes its axis cyclic. A bar where an inner level of the machine begins is
        optional; a name occurs at most once in each level.

        Raises:
            PlanError: with the rule ``notation``, saying what was expected.

        >>> Distribution.parse("xy->xy*", Machine((2, 2, 2))).notation("xy")
        'xy->xy*'
        >>> Distribution.parse("xy->x|xy", Machine((2, 2, 2), (1, 2))).cuts
        ((0, 1), (2,))
        >>> Distribution.parse("xy->x%y", Machine((2, 2))).cyclic
        (0,)
        """
        axis_names, arrow, target_text = text.replace(" ", "").partition("->")
        # a name with a percent sign is one word; so is every other character
        words = re.findall(r"[^\W\d]%|.", target_text)
        without_bars = [word for word in words if word != "|"]
        names, targets = list(axis_names), [word[0] for word in without_bars]
        if "|" in words and words != insert_bars(without_bars, machine.bounds):
            targets = words  # a misplaced bar is reported as an unknown name
        problem = _find_notation_problem(names, targets, machine, bool(arrow))
        if problem:
            raise make_notation_error(
                "distribution",
                text,
                "such as 'xy->xy*', with a name, a digit or * for each of "
                f"{format_count(machine.n_axes, 'axis')}",
                problem,
                rules=("notation",),
            )
        cuts = tuple(tuple(k for k, t in enumerate(targets) if t == n) for n in names)
        fixed = tuple((k, int(t)) for k, t in enumerate(targets) if t.isdigit())
        cyclic = tuple(k for k, word in enumerate(without_bars) if word[1:] == "%")
        return cls(machine, cuts, fixed, cyclic)

    def notation(self, indices: Sequence[str]) -> str:
        """Return DISTAL's notation, in which several axes may partition one index."""
        names = {
            axis: i + "%" * (axis in self.cyclic)
            for i, term in zip(indices, self.cuts, strict=True)
            for axis in term
        }
        fixed = dict(self.fixed)
        # long names need spaces between them
        separator = "" if all(len(i) == 1 for i in indices) else " "
        axes = range(self.machine.n_axes)
        targets = [names.get(k, str(fixed.get(k, "*"))) for k in axes]
        target_text = separator.join(insert_bars(targets, self.machine.bounds))
        return f"{separator.join(indices)}->{target_text}"

    def boxes(self, shape: Sequence[int], n_ranks: int) -> Boxes:
        """Return the box that each rank holds of a tensor of this shape."""
        return _compute_boxes(self, tuple(shape), n_ranks)


# cached: a planner needs the boxes of a few distributions for many plans
@lru_cache(4096)
def _compute_boxes(
    distribution: Distribution, shape: tuple[int, ...], n_ranks: int
) -> Boxes:
    machine = distribution.machine
    coordinates = machine.coordinates(n_ranks)
    first = np.zeros((n_ranks, len(shape)), np.int64)
    end, steps = first + np.array(shape, np.int64), [1] * len(shape)
    for axis, machine_axes in enumerate(distribution.cuts):
        low, high = first[:, axis], end[:, axis]
        for k in machine_axes:
            is_cyclic, n = k in distribution.cyclic, machine.sizes[k]
            get_part = take_cyclic_part if is_cyclic else take_block
            # each axis subdivides the part of the one before
            low, high = get_part(low, high, coordinates[:, k], n, steps[axis])
            steps[axis] *= n if is_cyclic else 1
        first[:, axis], end[:, axis] = low, high
    # ranks beyond the grid hold nothing
    is_there = np.arange(n_ranks) < machine.n_processes
    for k, coordinate in distribution.fixed:
        is_there = is_there & (coordinates[:, k] == coordinate)
    return Boxes(first, end, is_there, tuple(steps))


def _find_notation_problem(
    names: list[str], targets: list[str], machine: Machine, has_arrow: bool
) -> str | None:
    if not has_arrow:
        return "has no arrow"
    if len(targets) != machine.n_axes:
        return f"names {format_count(len(targets), 'axis')} of the machine"
    used = [t for t in targets if t != "*" and not t.isdigit()]
    # an index may be partitioned once at each level
    ends = (0, *machine.bounds, machine.n_axes)
    levels = ([t for t in targets[a:b] if t in used] for a, b in pairwise(ends))
    if any(len(set(level)) != len(level) for level in (names, *levels)):
        return "has a name twice"
    if unknown := sorted(set(used) - set(names)):
        return f"has {unknown[0]!r}, which is no axis of the tensor"
    for target, size in zip(targets, machine.sizes, strict=True):
        if target.isdigit() and int(target) >= size:
            return f"has place {target} on an axis of {size}"
    return None


def find_distribution_violations(
    tensor: str, distribution: Distribution, n_axes: int, n_processes: int
) -> Iterator[Violation]:
    """Yield the violations of a distribution for a tensor with this many axes.

    Args:
        tensor: what messages call it.
        distribution: the distribution to check.
        n_axes: number of axes of the tensor.
        n_processes: number of processes.
    """
    machine = distribution.machine
    # first the machine: later rules count its axes
    yield from find_machine_violations(machine, n_processes)
    if len(distribution.cuts) != n_axes:
        yield Violation(
            "rank",
            f"{tensor} has {format_count(n_axes, 'axis')}; its distribution has "
            f"{len(distribution.cuts)}",
        )
    yield from name_violations("axis", _find_axis_problems(tensor, distribution))


def _find_axis_problems(tensor: str, distribution: Distribution) -> Iterator[str]:
    machine = distribution.machine
    cuts = [k for term in distribution.cuts for k in term]
    used = cuts + [k for k, _ in distribution.fixed]
    for k in used:
        if not 0 <= k < machine.n_axes:
            yield f"{tensor} names axis {k} of {machine.text}"
        elif used.count(k) > 1:
            yield f"{tensor} uses axis {get_axis_name(k)} more than once"
    for k in set(distribution.cyclic) - set(cuts):
        yield f"{tensor}: axis {get_axis_name(k)} is cyclic and cuts nothing"
    if len(set(distribution.cyclic)) < len(distribution.cyclic):
        yield f"{tensor} has an axis that is cyclic more than once"
    for k, coordinate in distribution.fixed:
        if 0 <= k < machine.n_axes and not 0 <= coordinate < machine.sizes[k]:
            yield (
                f"{tensor} is at place {coordinate} of axis {get_axis_name(k)}, which "
                f"has {machine.sizes[k]}"
            )
