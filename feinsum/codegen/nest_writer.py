"""The text of a nest's kernel: its domains and its lines.

:func:`feinsum.nests.lower` gives the statements of a nest, each in its loops. The
writer writes a line for each, with the values of indices in scope (``at``): for a loop
over nodes, the loaded index; for an index with lanes, the vector and the lane. A small
result of a loop is summed in registers first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

import loopy as lp
import numpy as np
from constantdict import constantdict
from pytools import UniqueNameGenerator

from feinsum.codegen.nest_arrays import (
    CHUNK,
    ENTRY,
    FLAT,
    ROUND,
    ROW,
    TILED,
    WIDE,
    LaneTiles,
    NestArray,
    NestArrays,
    axes_of,
    buffer_places,
    in_tile,
    parts,
    subscripted,
)
from feinsum.nests import Multiply, Nest, NestForm, Repeat, Reset, Step, lower
from feinsum.nests.form import MOST_REGISTERS
from feinsum.nests.networks import Factor

Bounds: TypeAlias = tuple[str, str]
"""Where a loop begins, and where it ends."""


@dataclass(frozen=True)
class Start:
    """In place of a step: write the initial value of the result."""


@dataclass(frozen=True)
class Scope:
    """Where a statement stands: the loops around it, and their current values.

    Attributes:
        depth: the number of loops and conditions around it.
        at: the value of the index of each of these loops.
        node: the number of the node at each level of these loops.
    """

    depth: int = 0
    at: Mapping[str, str] = constantdict()
    node: Mapping[int, str] = constantdict()

    def within(self, at: Mapping[str, str] = constantdict()) -> Scope:
        """Return the scope in a loop with some more values."""
        return replace(self, depth=self.depth + 1, at={**self.at, **at})


@dataclass
class Writer:
    """Writes the statements of a nest, each for one row after the other.

    Attributes:
        nest: the nest to write.
        dense: padded extents of the indices that the tree does not have.
        form: how its loops are executed.
        dtype: of entries.
        tags: how loops run, by iname.
        temporaries: those beside the buffers: sums in registers.
        total: the sum in registers to which the last term adds, if not to the result.
        root: where the nodes of the root begin and end.
        tile: the loop over tiles of the lanes, if there is one.
        part: of the lanes' index, that is written.
        arrays: names and axes of operands and result.
        fetched: vectors of entries of operands, by position.
        used_names: those that its loops and temporaries may not have.
        is_written_once: whether each entry of the result is assigned once, complete.
    """

    nest: Nest
    dense: Mapping[str, int]
    form: NestForm
    dtype: np.dtype[Any]
    domains: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)
    temporaries: list[Any] = field(default_factory=list)
    total: NestArray | None = None
    root: Bounds = ("0", "nodes0")
    tile: str = ""
    part: LaneTiles = field(init=False)
    arrays: NestArrays | None = None
    used_names: Collection[str] = ()
    fetched: dict[int, NestArray] = field(default_factory=dict)
    is_written_once: bool = False

    def __post_init__(self) -> None:
        self.unique = UniqueNameGenerator(set(self.used_names))
        self.of = self.arrays or NestArrays(self.nest, self.form)
        self.buffers = {
            term: replace(buffer, name=self.unique(buffer.name))
            for term, buffer in buffer_places(self.nest, self.form, self.dense).items()
        }
        self.rows = (ROW,) if self.nest.network.n_rows > 1 else ()
        self.part = self._whole_part()
        self.makers = {
            term.result.inputs: number for number, term in enumerate(self.nest.path)
        }

    def write(self) -> None:
        """Write the whole nest."""
        self.root = self.of.root()
        if not self.form.is_chunked:
            is_sparse = self.nest.network.has_sparse_output
            self._whole(Scope(), ("0", self.of.n_entries()) if is_sparse else None)
            return
        with self._loop("chunk", "0", self.of.n_chunks(), Scope(), "g.0") as chunk:
            scope = Scope().within()
            self.root = self._between(*self.of.chunk(chunk), scope, ("first", "past"))
            if self.of.has_copies:
                chunk = self._wide("copy", chunk, scope)
            scope = replace(scope, at={CHUNK: chunk})
            if self.of.has_copies:
                with self._each_entry(scope) as entries:
                    for entry in entries:
                        self._line(entry, f"{self.of.result(entry.at)} = 0")
            part = None
            if self.of.is_cleared and not self.form.has_copies:
                bounds = self.of.part(chunk)
                part = self._between(*bounds, scope, ("row", "past_row"))
            self._whole(scope, part)
        if self.of.has_copies:
            # the sum over copies needs the copies of all chunks
            self._line(Scope(), "... gbarrier")
            with self._each_entry(Scope(), "g.0") as entries:
                for entry in entries:
                    self._sum_copies(entry)

    def _whole(self, scope: Scope, part: Bounds | None) -> None:
        """Write the initial values of the result, if any, and all statements.

        Args:
            scope: the scope around them.
            part: rows, or entries, of the result that are cleared; None for all.
        """
        # whether the result needs initial values is known once all else is written
        before = len(self.lines)
        self._tiles(lower(self.nest), scope)
        after, self.lines = self.lines[before:], self.lines[:before]
        if self.of.is_cleared:
            after = self._cleared(after, scope, part)
        elif self.of.has_start and not self.is_written_once:
            self._started(scope)
        self.lines += after

    def _started(self, scope: Scope) -> None:
        """Write the initial value of each entry of the result."""
        network = self.nest.network
        body: tuple[Any, ...] = (Start(),)
        for level, index in reversed([*enumerate(network.levels)]):
            if network.has_sparse_output or index in network.output:
                body = (Repeat(index, level, body),)
        self._write(body, scope)

    def _cleared(
        self, after: list[str], scope: Scope, part: Bounds | None
    ) -> list[str]:
        """Put lines that zero the result first; those of a tile, within its loop.

        Entries of the tree are all assigned, if one is: then there is no need.
        """
        network = self.nest.network
        if network.has_sparse_output and self.is_written_once:
            return after
        if self.tile and self.form.lane in network.output:
            # after[0] opens the loop over tiles
            self.lines.append(after[0])
            self._clear(scope.within(), part)
            return after[1:]
        self._clear(scope, part)
        return after

    def _clear(self, scope: Scope, part: Bounds | None) -> None:
        """Set the result to zero, or a part of its rows.

        Its loops are not unrolled: compilers recognize loops that set memory to zero.
        """
        network = self.nest.network
        with ExitStack() as loops:
            if part:
                axis = ENTRY if network.has_sparse_output else network.levels[0]
                iname = loops.enter_context(self._loop("cleared", *part, scope))
                scope = scope.within({axis: iname})
            for index in self.result.indices:
                if index == ROW:
                    continue
                if index == self.form.lane:
                    count = str(self._size(index) // self.form.lanes)
                    name = f"{index}_vector"
                    outer = loops.enter_context(self._loop(name, "0", count, scope))
                    lanes = self._lane_loop(outer, scope.within(), "vec")
                    scope = loops.enter_context(lanes)
                elif index not in scope.at:
                    loop = self._loop(index, "0", self._extent(index), scope)
                    scope = scope.within({index: loops.enter_context(loop)})
            for row in self._each_row(scope):
                self._line(row, f"{self._text(self.result, row)} = 0")

    def _each_row(self, scope: Scope) -> list[Scope]:
        """Return the scope of each row."""
        if not self.rows:
            return [scope]
        numbers = range(self.nest.network.n_rows)
        return [replace(scope, at={**scope.at, ROW: str(row)}) for row in numbers]

    def _sum_copies(self, scope: Scope) -> None:
        """Add an entry of all copies to that of the result."""
        total = self._temporary("total", ())
        self._zero(total, scope)
        with self._loop("chunk", "0", self.of.n_chunks(), scope) as chunk:
            inner = scope.within()
            copy = self._wide("copy", chunk, inner)
            self._add(total, self.of.result({**scope.at, CHUNK: copy}), inner)
        value = self.of.scaled(total.name, scope.at)
        start = self.of.start(scope.at)
        self._line(scope, f"{self.of.result(scope.at)} = {start} + {value}")

    @contextmanager
    def _each_entry(self, scope: Scope, tag: str = "") -> Iterator[list[Scope]]:
        """Open loops over the result's remaining indices; yield the scopes of all rows.

        Args:
            scope: the scope around the loops.
            tag: tag of the outermost loop.
        """
        with ExitStack() as loops:
            for index in self.nest.network.output:
                if index not in scope.at:
                    loop = self._loop(index, "0", self.of.extent(index), scope, tag)
                    iname = loops.enter_context(loop)
                    scope, tag = scope.within({index: iname, FLAT: iname}), ""
            yield self._each_row(scope)

    def _between(self, begin: str, end: str, scope: Scope, names: Bounds) -> Bounds:
        """Define variables with the first node and the one after the last."""
        first, past = map(self.unique, names)
        self._line(scope, f"<> {first} = {begin}")
        self._line(scope, f"<> {past} = {end}")
        return first, past

    def _tiles(self, steps: tuple[Step, ...], scope: Scope) -> None:
        """Write all statements, for one tile of the lanes after the other."""
        if not self.form.tile:
            self._body(steps, scope)
            return
        whole = self.part
        extent = self.of.extent(self.form.lane)
        in_turn = parts(extent, whole.width, self.form.lanes)
        for part in in_turn if whole.is_partial else (whole,):
            self.part = part
            with self._loop("tile", part.begin, part.end, scope) as self.tile:
                self._body(steps, scope.within())
        self.part = whole

    def _body(self, steps: tuple[Step, ...], scope: Scope) -> None:
        """Write a loop's body; a result that it completes is summed apart."""
        axes = self._axes_of_sum(steps, scope)
        # results with open sparse indices, or too large for registers, are added to in
        # memory
        if axes is None:
            self._write(steps, scope)
            return
        total = self._temporary("total", (*self.rows, *in_tile(axes, self.form)))
        self._zero(total, scope)
        self.total = total
        self._write(steps, scope)
        self.total = None
        with self._over(total.indices, scope, is_vector=not self.of.is_flat) as rows:
            for row in rows:
                self._put(self.result, self._text(total, row), row)

    def _axes_of_sum(
        self, steps: tuple[Step, ...], scope: Scope
    ) -> tuple[str, ...] | None:
        """Return the axes of a sum that stays in registers; None if there is none."""
        network, last = self.nest.network, len(self.nest.path) - 1
        if self.total or network.has_sparse_output or last not in _terms(steps):
            return None
        axes = tuple(i for i in network.output if i not in scope.at)
        # registers need extents that are known now
        is_fixed = all(index in self.dense for index in axes)
        within = [i for i in self.nest.orders[last] if i not in scope.at]
        if not is_fixed or all(index in axes for index in within):
            return None
        entries = prod(self._size(i) for i in (*self.rows, *axes))
        lanes = self.form.lanes if self.form.lane in axes else 1
        return axes if entries <= lanes * MOST_REGISTERS else None

    def _write(self, steps: tuple[Step, ...], scope: Scope) -> None:
        """Write statements in a scope."""
        for step in steps:
            match step:
                case Start():
                    with self._each_entry(scope) as entries:
                        for entry in entries:
                            start = self.of.start(entry.at)
                            self._line(entry, f"{self.of.result(entry.at)} = {start}")
                case Reset(term):
                    self._zero(self.buffers[term], scope)
                case Multiply(term, is_assigned):
                    target = self._target(term)
                    for row in self._each_row(scope):
                        self._multiply(term, target, is_assigned, row)
                case Repeat(index, None, body) if index == self.form.lane:
                    self._vectors(body, scope)
                case Repeat(index, None, body):
                    extent = self._extent(index)
                    with self._loop(index, "0", extent, scope) as iname:
                        self._body(body, scope.within({index: iname}))
                case Repeat(index, int(level), body):
                    self._walk(index, level, body, scope)

    def _walk(
        self, index: str, level: int, body: tuple[Step, ...], scope: Scope
    ) -> None:
        """Write a loop over the nodes of a level below a node of the level above."""
        # the root's loop is over a chunk of its nodes, if there are chunks
        begin, end = self.root
        if level:
            bounds = self.of.children(level, scope.node[level - 1])
            names = f"begin{level}", f"end{level}"
            begin, end = self._between(*bounds, scope, names)
        with self._loop(f"node{level}", begin, end, scope) as iname:
            value = self.of.index(level, iname)
            if value != iname:
                # see WIDE: loaded once, as a 64-bit factor of every subscript below
                value = self._wide(f"{index}_0", value, scope.within())
            inner = scope.within({index: value, ENTRY: iname})
            self._body(body, replace(inner, node={**scope.node, level: iname}))

    def _vectors(self, body: tuple[Step, ...], scope: Scope) -> None:
        """Write products along the lanes; sums to a single entry, lane by lane."""
        sums = {}
        for term in _terms(body):
            # a scalar has no lanes: sums of each lane are kept apart, and added after
            # the loop
            if not {self.form.lane, ROUND, TILED}.intersection(
                self._target(term).indices
            ):
                sums[term] = self._temporary("lanes", (*self.rows, ROUND))
                self._zero(sums[term], scope)
        with (
            self._vector_loop(self.form.lane, scope) as (outer, vector),
            ExitStack() as loops,
        ):
            inner = vector
            if not self.of.is_flat:
                inner = loops.enter_context(self._lane_loop(outer, vector, "vec"))
            for step in body:
                assert isinstance(step, Multiply)
                target = sums.get(step.term) or self._target(step.term)
                is_assigned = step.is_assigned and step.term not in sums
                for row in self._each_row(inner):
                    if self.of.is_flat:
                        self._from_flat(step.term, target, is_assigned, outer, row)
                    else:
                        self._multiply(step.term, target, is_assigned, row)
        for term, lanes in sums.items():
            count = str(self.form.lanes)
            with self._loop("lane", "0", count, scope, "unr") as iname:
                for row in self._each_row(scope.within()):
                    lane = replace(row, at={**row.at, ROUND: iname})
                    self._add(self._target(term), self._text(lanes, lane), row)

    def _from_flat(
        self,
        number: int,
        target: NestArray,
        is_assigned: bool,
        outer: str,
        scope: Scope,
    ) -> None:
        """Multiply arrays without vectors, by lanes or after fetching into vectors."""
        if target == self.result:
            with self._lane_loop(outer, scope, "unr") as lane:
                self._multiply(number, target, is_assigned, lane)
            return
        term = self.nest.path[number]
        for tensor in (term.left, term.right):
            self._fetch(tensor, outer, scope)
        with self._lane_loop(outer, scope, "vec") as lane:
            self._multiply(number, target, is_assigned, lane)
        self.fetched = {}

    def _fetch(self, tensor: Factor, outer: str, scope: Scope) -> None:
        """Fetch a vector of entries of a scalar operand; zeros beyond its end."""
        position = next(iter(tensor.inputs))
        is_one = len(tensor.inputs) == 1 and position != self.nest.network.sparse
        if not is_one or self.form.lane not in self.nest.network.inputs[position]:
            return
        vector = self._temporary("fetched", (ROUND,))
        with self._lane_loop(outer, scope, "unr") as lane:
            read = self.of.operand(position, lane.at)
            if self.part.is_partial:
                extent = self.of.extent(self.form.lane)
                read = f"({read} if {lane.at[FLAT]} < {extent} else 0)"
            self._line(lane, f"{self._text(vector, lane)} = {read}")
        self.fetched[position] = vector

    def _multiply(
        self, number: int, target: NestArray, is_assigned: bool, scope: Scope
    ) -> None:
        term = self.nest.path[number]
        value = f"{self._read(term.left, scope)}*{self._read(term.right, scope)}"
        if is_assigned:
            self._line(scope, f"{self._text(target, scope)} = {value}")
        else:
            self._put(target, value, scope)

    def _target(self, number: int) -> NestArray:
        """Return the array that receives the product of a term."""
        return self.buffers.get(number) or self.total or self.result

    @property
    def result(self) -> NestArray:
        return NestArray("out", self.of.result_axes())

    def _read(self, tensor: Factor, scope: Scope) -> str:
        network = self.nest.network
        if len(tensor.inputs) > 1:
            return self._text(self.buffers[self.makers[tensor.inputs]], scope)
        (position,) = tensor.inputs
        if position == network.sparse:
            return self.of.value(scope.node[len(network.levels) - 1])
        if position in self.fetched:
            return self._text(self.fetched[position], scope)
        return self.of.operand(position, scope.at)

    def _whole_part(self) -> LaneTiles:
        """Return all tiles, or all of the lanes' index if there are none."""
        tile = self.form.tile
        n_tiles = self.dense[self.form.lane] // tile if tile else 1
        return LaneTiles("0", str(n_tiles), tile, self._is_filled_up())

    def _is_filled_up(self) -> bool:
        """Return whether there are lanes beyond the extent of their index."""
        lane = self.form.lane
        is_read_in_place = bool(lane) and self.of.is_flat
        return is_read_in_place and self.of.extent(lane) != str(self.dense[lane])

    def _zero(self, array: NestArray, scope: Scope) -> None:
        indices = [index for index in array.indices if index != CHUNK]
        with self._over(indices, scope) as rows:
            for row in rows:
                self._line(row, f"{self._text(array, row)} = 0")

    @contextmanager
    def _over(
        self, indices: Iterable[str], scope: Scope, *, is_vector: bool = True
    ) -> Iterator[list[Scope]]:
        """Open loops over all entries of an array; yield the scopes of its rows.

        Args:
            indices: axes of the array.
            scope: the scope around the loops.
            is_vector: whether the lanes are computed as vectors, or one by one.
        """
        axes = tuple(indices)
        with ExitStack() as loops:
            for index in axes:
                if index != ROW:
                    tag = "vec" if is_vector else "unr"
                    loop = self._entry_loops(index, scope, tag)
                    scope = loops.enter_context(loop)
            yield self._each_row(scope) if ROW in axes else [scope]

    @contextmanager
    def _entry_loops(self, index: str, scope: Scope, tag: str) -> Iterator[Scope]:
        """Open a loop over an extent, or two of them for lanes."""
        if index not in (self.form.lane, ROUND, TILED):
            with self._loop(index, "0", self._extent(index), scope) as iname:
                yield scope.within({index: iname})
            return
        if index == ROUND:
            with self._lane_loop("", scope, tag) as lane:
                yield lane
            return
        with (
            self._vector_loop(index, scope) as (outer, vector),
            self._lane_loop(outer, vector, tag) as lane,
        ):
            yield lane

    @contextmanager
    def _vector_loop(self, index: str, scope: Scope) -> Iterator[tuple[str, Scope]]:
        """Open the loop over the vectors of the lanes; yield it and its scope."""
        count = self._size(index) // self.form.lanes
        # unrolled, the compiler keeps every vector of the tile in a register
        tag = "unr_hint" if 1 < count <= MOST_REGISTERS else ""
        name = f"{self.form.lane}_vector"
        with self._loop(name, "0", str(count), scope, tag) as outer:
            yield outer, scope.within()

    @contextmanager
    def _lane_loop(self, outer: str, scope: Scope, tag: str) -> Iterator[Scope]:
        """Open the loop over the lanes of a vector.

        Args:
            outer: the loop over vectors; empty for data of a single vector.
            scope: the scope around the loop.
            tag: tag of the loop.
        """
        lane, n = self.form.lane, self.form.lanes
        with self._loop(f"{lane}_lane", "0", str(n), scope, tag) as inner:
            within = f"{outer}, {inner}" if outer else inner
            first = f"{self._size(lane) // n}*{self.tile} + " if self.tile else ""
            whole = f"{first}{within}" if outer else inner
            flat = f"{n}*({first}{outer}) + {inner}" if outer else inner
            yield scope.within({lane: whole, TILED: within, ROUND: inner, FLAT: flat})

    def _size(self, index: str) -> int:
        """Return the extent of a dense index or of a tile of it, or the row count."""
        if index == ROW:
            return self.nest.network.n_rows
        if index in (self.form.lane, TILED) and self.form.tile:
            return self.part.width
        return self.dense[index]

    @contextmanager
    def _loop(
        self, name: str, begin: str, end: str, scope: Scope, tag: str = ""
    ) -> Iterator[str]:
        """Write a loop around the lines that the body writes; yield its iname."""
        iname: str = self.unique(name)
        self.domains.append(f"{{[{iname}]: {begin} <= {iname} < {end}}}")
        if tag:
            self.tags[iname] = tag
        self._line(scope, f"for {iname}")
        yield iname
        self._line(scope, "end")

    def _wide(self, name: str, value: str, scope: Scope) -> str:
        """Define a variable for a factor of subscripts."""
        name = self.unique(name)
        self._line(scope, f"<{WIDE}> {name} = {value}")
        return name

    def _temporary(self, name: str, indices: tuple[str, ...]) -> NestArray:
        array = NestArray(self.unique(name), indices)
        self.temporaries.append(self.private_array(array))
        return array

    def private_array(self, array: NestArray) -> Any:
        """Declare the variable of an array that is private to each iteration."""
        extents = {i: str(self._size(i)) for i in array.indices if i != ROUND}
        shape, tags = axes_of(array.indices, extents, self.form)
        return lp.TemporaryVariable(
            array.name, dtype=self.dtype, shape=shape, dim_tags=tags
        )

    def _put(self, array: NestArray, value: str, scope: Scope) -> None:
        """Add a value; to an entry of the result that gets no other, assign it.

        Memory that is read before it is first written is fetched twice: the system has
        pages of zeros to read, and makes those to write.
        """
        network = self.nest.network
        output = network.levels if network.has_sparse_output else network.output
        is_only = array == self.result and {*scope.at} & network.indices <= {*output}
        # a tile of an index that is summed over has a part of each sum
        is_only = is_only and (not self.tile or self.form.lane in network.output)
        is_whole = is_only and (self.of.has_start or self.of.is_cleared)
        self.is_written_once |= is_whole
        self._add(array, value, scope, is_first=is_whole)

    def _add(
        self, array: NestArray, value: str, scope: Scope, *, is_first: bool = False
    ) -> None:
        if array != self.result:
            target = self._text(array, scope)
            self._line(scope, f"{target} = {target} + {value}")
            return
        target = self.of.result(scope.at)
        value = value if self.of.has_copies else self.of.scaled(value, scope.at)
        start = f"{target} + "
        if is_first:
            start = f"{self.of.start(scope.at)} + " if self.of.has_start else ""
        has_lane = self.form.lane in self.nest.network.output and ROUND in scope.at
        is_guarded = has_lane and self.part.is_partial
        if is_guarded:
            extent = self.of.extent(self.form.lane)
            self._line(scope, f"if {scope.at[FLAT]} < {extent}")
        self._line(scope, f"{target} = {start}{value}")
        if is_guarded:
            self._line(scope, "end")

    def _text(self, array: NestArray, scope: Scope) -> str:
        return subscripted(array.name, array.indices, scope.at)

    def _extent(self, index: str) -> str:
        extent = self.dense.get(index)
        return self.of.extent(index) if extent is None else str(extent)

    def _line(self, scope: Scope, text: str) -> None:
        self.lines.append("  " * scope.depth + text)


def _terms(steps: Iterable[Step]) -> list[int]:
    terms: list[int] = []
    for step in steps:
        if isinstance(step, Multiply):
            terms.append(step.term)
        elif isinstance(step, Repeat):
            terms += _terms(step.body)
    return terms
