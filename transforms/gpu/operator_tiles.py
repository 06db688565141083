"""Tiles of an operator on tensor cores: what a work-group has, and who loads it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from pymbolic import primitives as p
from pymbolic import var

from feinsum.ir import BatchedEinsum
from feinsum.transforms.gpu.grid import Flat
from feinsum.transforms.gpu.operator_steps import Steps
from feinsum.transforms.gpu.packing import extent_of
from feinsum.transforms.gpu.shares import RaggedShare, ragged_shares
from feinsum.transforms.primitives import NestWriter, Schedule
from feinsum.transforms.primitives.multiply_fragments import WARP
from feinsum.transforms.primitives.schedule import Expression, Names, calls_product
from feinsum.transforms.registry import Parameters
from feinsum.transforms.roles import number, typical

BANKS = 8
"""Of shared memory, for half a warp: it reads four terms of four elements at once, and
with an odd multiple of four from one element to the next, from all banks."""


@dataclass(frozen=True)
class OperatorTiles:
    """The tiles of a work-group and what its lanes have of them, in entries.

    Attributes:
        elements: of a tile.
        height: elements of a warp.
        width: rows of the matrix of a warp.
        terms: that one instruction adds to each sum.
        turns: tiles of a group, one after another.
        groups: that fit a multiprocessor at least.
        is_ahead: whether a tile is loaded while the one before is multiplied.
        n_rows: of the matrix.
        n_terms: of a sum.
        n_kept, n_fan: values of the kept indices, and of those that come late alone.
        n_factors: of an element, that it or its sums are multiplied with.
        n_matrices: that differ.
        streamed: the position of the largest operand that comes early.
        scaling: those of the others.
    """

    elements: int
    height: int
    width: int
    terms: int
    turns: int
    groups: int
    is_ahead: bool
    n_rows: int
    n_terms: int
    n_kept: int
    n_fan: int
    n_factors: int
    n_matrices: int
    streamed: int
    scaling: tuple[int, ...]

    @classmethod
    def of(
        cls, einsum: BatchedEinsum, steps: Steps, parameters: Parameters
    ) -> OperatorTiles:
        def volume(indices: Collection[str]) -> int:
            return prod(typical(einsum.extents[i]) for i in indices)

        def n_factors(positions: Collection[int]) -> int:
            joint = {i for k in positions for i in einsum.inputs[k]} - {steps.element}
            return volume(joint) if positions else 0

        streamed = max(steps.early, key=lambda k: volume(einsum.inputs[k]))
        scaling = tuple(k for k in steps.early if k != streamed)
        elements, height, width, terms, turns, groups = (
            number(parameters, name) for name in NAMES
        )
        return cls(
            elements,
            height,
            width,
            terms,
            turns,
            groups,
            bool(parameters["ahead"]),
            volume(steps.rows),
            volume(steps.contracted),
            volume(steps.kept),
            volume(steps.fan),
            n_factors(scaling) + n_factors(steps.late),
            len({row[steps.matrix] for row in einsum.rows}),
            streamed,
            scaling,
        )

    @property
    def across(self) -> int:
        """Warps for the rows of the matrix."""
        return -(-self.n_rows // self.width)

    @property
    def n_warps(self) -> int:
        return self.elements // self.height * self.across

    @property
    def depth(self) -> int:
        """Terms with those that fill the last instruction."""
        return -(-self.n_terms // self.terms) * self.terms

    @property
    def stride(self) -> int:
        """Between elements of a tile."""
        return _spread(self.depth)

    @property
    def row_stride(self) -> int:
        """Between elements of the results, with those of idle rows."""
        return _spread(self.across * self.width)

    @property
    def n_sums(self) -> int:
        """Of a lane."""
        return self.n_kept * self.height * self.width // WARP

    @property
    def n_fragments(self) -> int:
        """Entries of the matrices that a lane holds."""
        return self.n_matrices * self.n_kept * self.width * self.depth // WARP

    @property
    def n_shared(self) -> int:
        """In shared memory."""
        of_element = self.stride + self.n_factors + self.n_fan * self.row_stride
        return self.elements * of_element


NAMES = ("elements", "height", "width", "terms", "turns", "groups")


def _spread(n: int) -> int:
    """The next odd multiple of half the banks."""
    return n + (BANKS // 2 - n) % BANKS


Points: TypeAlias = Mapping[str, Expression]
"""The value of each index."""

DOUBLE = np.dtype(np.float64)

ZERO = np.float64(0)


class Dealt(NamedTuple):
    """Entries of an array that work-items take in turns.

    Attributes:
        loops: unrolled.
        points: of the indices; elements are counted within their tile.
        of_all: the same, elements counted from the first of all.
        inside: conditions to be an entry, and none of those that others have.
        exists: these, and to be an element.
        after: what computes them.
    """

    loops: Names
    points: Points
    of_all: Points
    inside: tuple[Expression, ...]
    exists: tuple[Expression, ...]
    after: Names


class Start(NamedTuple):
    """The scalar that holds the first element of a tile.

    Attributes:
        loops: in which it is known.
        done: the id of what computes it.
    """

    loops: Names
    name: str
    done: str


class Part(NamedTuple):
    """What work-items have in registers on its way to shared memory.

    Attributes:
        operands: to multiply.
        outer: indices of unrolled loops.
        slow, fast: indices that are dealt out as one, neighbours along the fast ones.
        array: in registers.
    """

    operands: Names
    outer: Names
    slow: Names
    fast: Names
    array: str


class ElementTiles:
    """The work-items of a group, and loops over the tiles of elements that they take.

    Attributes:
        around: the group and its work-items.
        loops: these, and the turns.
        now: where the tile of a turn begins.
        ordered: ids of what reads and writes shared memory.
    """

    def __init__(self, schedule: Schedule, element: str, tiles: OperatorTiles) -> None:
        self.schedule, self.element, self.tiles = schedule, element, tiles
        self.writer = writer = NestWriter(schedule)
        self.extent = schedule.extents[element]
        of_group, of_tile = tiles.elements * tiles.turns, tiles.elements
        group = writer.loop("group", f"{of_group}*{{}} < {self.extent}", tag="g.0")
        self.warp = writer.loop("warp", size=tiles.n_warps, tag="l.1")
        self.lane = writer.loop("lane", size=WARP, tag="l.0")
        self.around = (group, self.warp, self.lane)
        within = f"{of_group}*{group} + {of_tile}*{{}} < {self.extent}"
        turn = writer.loop("turn", within, size=tiles.turns)
        self.loops = (*self.around, turn)
        self.first = of_group * var(group)
        now = p.Sum((self.first, of_tile * var(turn)))
        self.now = Start(self.loops, *writer.scalar("start", now, self.loops))
        number = p.Sum((var(self.lane), WARP * var(self.warp)))
        self.item, self.numbered = writer.scalar("number", number, self.around)
        self.n_items = WARP * tiles.n_warps
        self.ordered: list[str] = []
        self._known: dict[
            tuple[int, int], tuple[tuple[RaggedShare, RaggedShare], Names]
        ] = {}
        self._left: dict[tuple[Expression, str], tuple[str, str]] = {}

    def part(self, operands: Names, outside: Names = ()) -> Part:
        """What comes after the element is dealt out as one, with the elements.

        If the element is the last, what comes before is dealt out with it.
        """
        spans = [self.schedule.spans[name] for name in operands]
        largest = max(spans, key=self.volume)
        own = tuple(i for i in largest if i not in outside)
        others = dict.fromkeys(i for span in spans for i in span if i not in own)
        at = own.index(self.element)
        outer, slow, fast = own[:at], own[at : at + 1], own[at + 1 :]
        if not fast:
            outer, slow, fast = (), outer, slow
        outer = (*others, *outer)
        steps = (share.n for share in self._shares(slow, fast)[0])
        array = self.writer.array("ahead", (*map(self.length, outer), *steps), DOUBLE)
        return Part(operands, outer, slow, fast, array)

    def start_of_first(self) -> Start:
        """Where the tile of the first turn begins."""
        start = self.writer.scalar("start", self.first, self.around)
        return Start(self.around, *start)

    def start_of_next(self) -> Start:
        """Where that of the next turn begins."""
        value = p.Sum((var(self.now.name), self.tiles.elements))
        start = self.writer.scalar("start", value, self.loops, (self.now.done,))
        return Start(self.loops, *start)

    def loaded(self, part: Part, start: Start, before: Collection[str]) -> str:
        """Load a work-item's entries to registers; zero beyond the last element."""
        dealt = self.dealt(part, start)
        inames, points = self.unrolled(part.outer)
        loops = (*inames, *dealt.loops)
        points = {**dealt.of_all, **points}
        value = calls_product(self.schedule, part.operands, points)
        return self.writer.assign(
            "load", var(part.array)[tuple(map(var, loops))],
            p.If(p.LogicalAnd(dealt.exists), value, ZERO),
            [*start.loops, *loops], [*dealt.after, *before],
        )  # fmt: skip

    def dealt(self, part: Part, start: Start) -> Dealt:
        """Deal out entries of a tile, which begins at ``start``."""
        shares, after = self._shares(part.slow, part.fast)
        loops: list[str] = []
        inside: list[Expression] = []
        points: dict[str, Expression] = {}
        exists: Expression = 1
        for axis, share in zip((part.slow, part.fast), shares, strict=True):
            step = self.unroll(share.n)
            loops.append(step)
            value, size = share.at(var(step)), self.volume(axis)
            if share.most > size:
                inside.append(p.Comparison(value, "<", size))
            points |= self.flat(axis).points(value)
            if self.element in axis:
                left, found = self._left_of(share, start, after)
                exists = p.Comparison(share.stride * var(step), "<", var(left))
        if shares[0].is_idle:
            inside.append(p.Comparison(shares[0].first, "<", shares[0].stride))
        element = p.Sum((var(start.name), points[self.element]))
        of_all = {**points, self.element: element}
        after = (*after, start.done, found)
        return Dealt((*loops,), points, of_all, (*inside,), (*inside, exists), after)

    def _left_of(
        self, share: RaggedShare, start: Start, after: Names
    ) -> tuple[str, str]:
        """How many elements there are from a work-item's first one on, up to a tile.

        It is a small number, which takes one register and one comparison.
        """
        key = share.first, start.name
        if key not in self._left:
            first = p.Sum((var(start.name), share.first))
            left = p.Sum((extent_of(self.extent), -1 * first))
            n = self.tiles.elements
            left = p.If(p.Comparison(left, "<", n), left, n)
            array = self.writer.array("left", (), np.dtype(np.int32))
            done = self.writer.assign(
                "left", var(array), left, start.loops, (*after, start.done)
            )
            self._left[key] = array, done
        return self._left[key]

    def _shares(
        self, slow: Names, fast: Names
    ) -> tuple[tuple[RaggedShare, RaggedShare], Names]:
        """The part of a work-item, which begins at scalars; and what computes them."""
        key = self.volume(slow), self.volume(fast)
        if key not in self._known:
            shares = ragged_shares(*key, self.n_items, var(self.item))
            firsts = [
                self.writer.scalar("first", share.first, self.around, (self.numbered,))
                for share in shares
            ]
            one, two = (
                replace(share, first=var(first))
                for share, (first, _) in zip(shares, firsts, strict=True)
            )
            self._known[key] = (one, two), tuple(done for _, done in firsts)
        return self._known[key]

    def shared(self, stem: str, indices: Names, shape: tuple[int, ...]) -> Expression:
        shape = (*map(self.length, indices), *shape)
        return var(self.writer.array(stem, shape, DOUBLE, is_shared=True))

    def unroll(self, n: int) -> str:
        return self.writer.loop("u", size=n, tag="unr")

    def unrolled(
        self, indices: Sequence[str]
    ) -> tuple[list[str], dict[str, Expression]]:
        """Loops over indices, and their values."""
        inames = [self.unroll(self.length(i)) for i in indices]
        return inames, dict(zip(indices, map(var, inames), strict=True))

    def values(self, indices: Sequence[str]) -> Iterator[dict[str, Expression]]:
        """All values of indices."""
        for at in product(*(range(self.length(i)) for i in indices)):
            yield dict(zip(indices, at, strict=True))

    def noted(self, insn_id: str) -> str:
        """A statement that reads or writes shared memory; barriers are written here."""
        self.ordered.append(insn_id)
        return insn_id

    def flat(self, indices: Names) -> Flat:
        return Flat(indices, tuple(self.length(i) for i in indices))

    def length(self, index: str) -> int:
        """How many values an index has within a tile."""
        extent = self.schedule.extents[index]
        if index == self.element:
            return self.tiles.elements
        assert isinstance(extent, int)
        return extent

    def volume(self, indices: Sequence[str]) -> int:
        return prod(map(self.length, indices))
