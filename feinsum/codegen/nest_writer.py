"""The text of a nest's kernel: its domains and its lines.

:func:`feinsum.nests.lower_nest` gives the statements of a nest, each in its loops. The
writer writes a line for each, with the values that indices have in its scope: in a loop
over nodes, the loaded index; for an index with lanes, the vector and the lane. It sums
a small result of a loop in registers and then adds it to the array.
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
    format_subscript,
    get_axes,
    list_buffers,
    replace_lane_by_tile,
    split_into_tiles,
)
from feinsum.nests import (
    Multiply,
    Nest,
    NestForm,
    NestStatement,
    Repeat,
    Reset,
    lower_nest,
)
from feinsum.nests.form import MOST_REGISTERS
from feinsum.nests.networks import Factor

Bounds: TypeAlias = tuple[str, str]
"""Where a loop begins, and where it ends."""


@dataclass(frozen=True)
class Start:
    """A step that writes the initial value of the result."""


@dataclass(frozen=True)
class Scope:
    """The loops around a statement, and the values of their indices.

    Attributes:
        depth: the number of loops and conditions around it.
        values: the value of the index of each of these loops.
        node: the number of the node at each level of these loops.
    """

    depth: int = 0
    values: Mapping[str, str] = constantdict()
    node: Mapping[int, str] = constantdict()

    def within(self, values: Mapping[str, str] = constantdict()) -> Scope:
        """Return the scope one loop deeper, with further values of indices."""
        return replace(self, depth=self.depth + 1, values={**self.values, **values})


@dataclass
class Writer:
    """Writes the statements of a nest, each for one row after the other.

    Attributes:
        nest: the nest to write.
        dense: padded extents of the indices that the tree does not have.
        form: how its loops are executed.
        dtype: dtype of entries.
        domains: domains of the loops written so far.
        lines: lines written so far.
        tags: tags of loops, by iname.
        temporaries: private arrays other than buffers: sums in registers.
        total: the sum in registers to which the last term adds; None if it adds to the
            result.
        root: bounds of the nodes of the root.
        tile: the loop over tiles of the lanes; empty if there is none.
        lane_tiles: the tiles of the lanes' index that are being written.
        arrays: names and axes of operands and result.
        fetched: vectors of entries of operands, by position.
        used_names: names that its loops and temporaries must not have.
        is_written_once: whether each entry of the result is assigned once, with its
            final value.
        has_vector_sums: whether the lanes of a vector are summed by one instruction,
            for which the writer leaves a mark.
        vector_sums: each vector to be summed, in C, by the id of its instruction.
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
    lane_tiles: LaneTiles = field(init=False)
    arrays: NestArrays | None = None
    used_names: Collection[str] = ()
    fetched: dict[int, NestArray] = field(default_factory=dict)
    is_written_once: bool = False
    has_vector_sums: bool = False
    vector_sums: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.unique = UniqueNameGenerator(set(self.used_names))
        self.access = self.arrays or NestArrays(self.nest, self.form)
        self.buffers = {
            term: replace(buffer, name=self.unique(buffer.name))
            for term, buffer in list_buffers(self.nest, self.form, self.dense).items()
        }
        self.rows = (ROW,) if self.nest.network.n_rows > 1 else ()
        lane, tile = self.form.lane, self.form.tile
        n_tiles = self.dense[lane] // tile if tile else 1
        # read in place, some lanes may be beyond the extent of their index
        has_extent = bool(lane) and self.access.is_flat
        is_partial = has_extent and self.access.extent(lane) != str(self.dense[lane])
        self.lane_tiles = LaneTiles("0", str(n_tiles), tile, is_partial)
        self.producers = {
            term.result.inputs: number for number, term in enumerate(self.nest.path)
        }

    def write(self) -> None:
        """Write the whole nest."""
        self.root = self.access.root()
        if not self.form.is_chunked:
            is_sparse = self.nest.network.has_sparse_output
            self._write_all(
                Scope(), ("0", self.access.n_entries()) if is_sparse else None
            )
            return
        with self._loop("chunk", "0", self.access.n_chunks(), Scope(), "g.0") as chunk:
            scope = Scope().within()
            self.root = self._define_bounds(
                *self.access.chunk(chunk), scope, ("first", "past")
            )
            if self.access.has_copies:
                chunk = self._define_wide("copy", chunk, scope)
            scope = replace(scope, values={CHUNK: chunk})
            if self.access.has_copies:
                with self._loop_over_entries(scope) as entries:
                    for entry in entries:
                        self._line(entry, f"{self.access.result(entry.values)} = 0")
            cleared = None
            if self.access.is_cleared and not self.form.has_copies:
                bounds = self.access.part(chunk)
                cleared = self._define_bounds(*bounds, scope, ("row", "past_row"))
            self._write_all(scope, cleared)
        if self.access.has_copies:
            # the copies of all chunks must be complete before they are added
            self._line(Scope(), "... gbarrier")
            with self._loop_over_entries(Scope(), "g.0") as entries:
                for entry in entries:
                    self._sum_copies(entry)

    def _write_all(self, scope: Scope, cleared: Bounds | None) -> None:
        """Write the initial values of the result, if any, and all statements.

        Args:
            scope: the scope around them.
            cleared: rows, or entries, of the result to clear; None for all.
        """
        # only these statements tell whether the result needs initial values, which come
        # before them
        before = len(self.lines)
        self._write_tiles(lower_nest(self.nest), scope)
        written, self.lines = self.lines[before:], self.lines[:before]
        if self.access.is_cleared:
            written = self._clear_first(written, scope, cleared)
        elif self.access.has_start and not self.is_written_once:
            self._write_start(scope)
        self.lines += written

    def _write_start(self, scope: Scope) -> None:
        """Write the initial value of each entry of the result."""
        network = self.nest.network
        body: tuple[Any, ...] = (Start(),)
        for level, index in reversed([*enumerate(network.levels)]):
            if network.has_sparse_output or index in network.output:
                body = (Repeat(index, level, body),)
        self._write(body, scope)

    def _clear_first(
        self, written: list[str], scope: Scope, cleared: Bounds | None
    ) -> list[str]:
        """Write lines that zero the result, before the others; return the others.

        A result in tiles is zeroed inside the loop over tiles. A result with the
        entries of the tree needs no zeros if entries are assigned: then all are.
        """
        network = self.nest.network
        if network.has_sparse_output and self.is_written_once:
            return written
        if self.tile and self.form.lane in network.output:
            # written[0] opens the loop over tiles
            self.lines.append(written[0])
            self._clear(scope.within(), cleared)
            return written[1:]
        self._clear(scope, cleared)
        return written

    def _clear(self, scope: Scope, cleared: Bounds | None) -> None:
        """Zero the result, or some of its rows.

        The loops are not unrolled: compilers recognize loops that set memory to zero.
        """
        network = self.nest.network
        with ExitStack() as loops:
            if cleared:
                axis = ENTRY if network.has_sparse_output else network.levels[0]
                iname = loops.enter_context(self._loop("cleared", *cleared, scope))
                scope = scope.within({axis: iname})
            for index in self.result.indices:
                if index == ROW:
                    continue
                if index == self.form.lane:
                    count = str(self._size(index) // self.form.lanes)
                    name = f"{index}_vector"
                    outer = loops.enter_context(self._loop(name, "0", count, scope))
                    lanes = self._open_lane_loop(outer, scope.within(), "vec")
                    scope = loops.enter_context(lanes)
                elif index not in scope.values:
                    loop = self._loop(index, "0", self._extent(index), scope)
                    scope = scope.within({index: loops.enter_context(loop)})
            for row in self._list_rows(scope):
                self._line(row, f"{self._text(self.result, row)} = 0")

    def _list_rows(self, scope: Scope) -> list[Scope]:
        """Return the scope of each row."""
        if not self.rows:
            return [scope]
        numbers = range(self.nest.network.n_rows)
        return [
            replace(scope, values={**scope.values, ROW: str(row)}) for row in numbers
        ]

    def _sum_copies(self, scope: Scope) -> None:
        """Add an entry of all copies to the entry of the result."""
        total = self._declare_temporary("total", ())
        self._zero(total, scope)
        with self._loop("chunk", "0", self.access.n_chunks(), scope) as chunk:
            inner = scope.within()
            copy = self._define_wide("copy", chunk, inner)
            self._add(total, self.access.result({**scope.values, CHUNK: copy}), inner)
        value = self.access.scaled(total.name, scope.values)
        start = self.access.start(scope.values)
        self._line(scope, f"{self.access.result(scope.values)} = {start} + {value}")

    @contextmanager
    def _loop_over_entries(self, scope: Scope, tag: str = "") -> Iterator[list[Scope]]:
        """Open loops over the result's remaining indices; yield the scopes of all rows.

        Args:
            scope: the scope around the loops.
            tag: tag of the outermost loop.
        """
        with ExitStack() as loops:
            for index in self.nest.network.output:
                if index not in scope.values:
                    loop = self._loop(index, "0", self.access.extent(index), scope, tag)
                    iname = loops.enter_context(loop)
                    scope, tag = scope.within({index: iname, FLAT: iname}), ""
            yield self._list_rows(scope)

    def _define_bounds(
        self, begin: str, end: str, scope: Scope, names: Bounds
    ) -> Bounds:
        """Define variables for the bounds of a loop: first, and one past the last."""
        first, past = map(self.unique, names)
        self._line(scope, f"<> {first} = {begin}")
        self._line(scope, f"<> {past} = {end}")
        return first, past

    def _write_tiles(self, steps: tuple[NestStatement, ...], scope: Scope) -> None:
        """Write all statements, in a loop over tiles of the lanes if there are any."""
        if not self.form.tile:
            self._body(steps, scope)
            return
        all_tiles = self.lane_tiles
        extent = self.access.extent(self.form.lane)
        tiles_by_width = split_into_tiles(extent, all_tiles.width, self.form.lanes)
        for tiles in tiles_by_width if all_tiles.is_partial else (all_tiles,):
            self.lane_tiles = tiles
            with self._loop("tile", tiles.begin, tiles.end, scope) as self.tile:
                self._body(steps, scope.within())
        self.lane_tiles = all_tiles

    def _body(self, steps: tuple[NestStatement, ...], scope: Scope) -> None:
        """Write a loop's body; it sums in registers a result that it completes."""
        axes = self._find_axes_of_sum(steps, scope)
        # otherwise, statements add to the result in memory
        if axes is None:
            self._write(steps, scope)
            return
        total = self._declare_temporary(
            "total", (*self.rows, *replace_lane_by_tile(axes, self.form))
        )
        self._zero(total, scope)
        self.total = total
        self._write(steps, scope)
        self.total = None
        with self._loop_over(
            total.indices, scope, is_vector=not self.access.is_flat
        ) as rows:
            for row in rows:
                self._put(self.result, self._text(total, row), row)

    def _find_axes_of_sum(
        self, steps: tuple[NestStatement, ...], scope: Scope
    ) -> tuple[str, ...] | None:
        """Return the axes of a sum that stays in registers; None if there is none."""
        network, last = self.nest.network, len(self.nest.path) - 1
        if self.total or network.has_sparse_output or last not in _list_terms(steps):
            return None
        axes = tuple(i for i in network.output if i not in scope.values)
        # registers need extents that are known when the kernel is built
        is_fixed = all(index in self.dense for index in axes)
        within = [i for i in self.nest.orders[last] if i not in scope.values]
        if not is_fixed or all(index in axes for index in within):
            return None
        entries = prod(self._size(i) for i in (*self.rows, *axes))
        lanes = self.form.lanes if self.form.lane in axes else 1
        return axes if entries <= lanes * MOST_REGISTERS else None

    def _write(self, steps: tuple[NestStatement, ...], scope: Scope) -> None:
        """Write statements in a scope."""
        for step in steps:
            match step:
                case Start():
                    with self._loop_over_entries(scope) as entries:
                        for entry in entries:
                            start = self.access.start(entry.values)
                            self._line(
                                entry, f"{self.access.result(entry.values)} = {start}"
                            )
                case Reset(term):
                    self._zero(self.buffers[term], scope)
                case Multiply(term, is_assigned):
                    target = self._target(term)
                    for row in self._list_rows(scope):
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
        self, index: str, level: int, body: tuple[NestStatement, ...], scope: Scope
    ) -> None:
        """Write a loop over the children of the current node of the level above."""
        # with chunks, the root's loop runs over a chunk of its nodes
        begin, end = self.root
        if level:
            bounds = self.access.children(level, scope.node[level - 1])
            names = f"begin{level}", f"end{level}"
            begin, end = self._define_bounds(*bounds, scope, names)
        with self._loop(f"node{level}", begin, end, scope) as iname:
            value = self.access.index(level, iname)
            if value != iname:
                # see WIDE: loaded once, as a 64-bit factor of every subscript below
                value = self._define_wide(f"{index}_0", value, scope.within())
            inner = scope.within({index: value, ENTRY: iname})
            self._body(body, replace(inner, node={**scope.node, level: iname}))

    def _vectors(self, body: tuple[NestStatement, ...], scope: Scope) -> None:
        """Write products along the lanes; a sum to a scalar is per lane at first."""
        sums = {}
        for term in _list_terms(body):
            # a scalar has no lanes: each lane has its own sum, and they are added after
            # the loop
            if not {self.form.lane, ROUND, TILED}.intersection(
                self._target(term).indices
            ):
                sums[term] = self._declare_temporary("lanes", (*self.rows, ROUND))
                self._zero(sums[term], scope)
        with (
            self._open_vector_loop(self.form.lane, scope) as (outer, vector),
            ExitStack() as loops,
        ):
            inner = vector
            if not self.access.is_flat:
                inner = loops.enter_context(self._open_lane_loop(outer, vector, "vec"))
            for step in body:
                assert isinstance(step, Multiply)
                target = sums.get(step.term) or self._target(step.term)
                is_assigned = step.is_assigned and step.term not in sums
                for row in self._list_rows(inner):
                    if self.access.is_flat:
                        self._multiply_flat(step.term, target, is_assigned, outer, row)
                    else:
                        self._multiply(step.term, target, is_assigned, row)
        for term, lanes in sums.items():
            if self.has_vector_sums:
                for row in self._list_rows(scope):
                    self._add(self._target(term), self._sum_vector(lanes, row), row)
                continue
            count = str(self.form.lanes)
            with self._loop("lane", "0", count, scope, "unr") as iname:
                for row in self._list_rows(scope.within()):
                    lane = replace(row, values={**row.values, ROUND: iname})
                    self._add(self._target(term), self._text(lanes, lane), row)

    def _sum_vector(self, lanes: NestArray, scope: Scope) -> str:
        """Write the sum over the lanes of a vector; return the name of the sum."""
        total = self._declare_temporary("lane_sum", ()).name
        # Loopy has no text for a whole vector: its first lane is the mark
        first = replace(scope, values={**scope.values, ROUND: "0"})
        self._line(scope, f"{total} = {self._text(lanes, first)} {{id={total}}}")
        row = f"[{scope.values[ROW]}]" if self.rows else ""
        self.vector_sums[total] = f"{lanes.name}{row}"
        return total

    def _multiply_flat(
        self,
        number: int,
        target: NestArray,
        is_assigned: bool,
        outer: str,
        scope: Scope,
    ) -> None:
        """Multiply arrays without vectors: lane by lane, or as fetched vectors."""
        if target == self.result:
            with self._open_lane_loop(outer, scope, "unr") as lane:
                self._multiply(number, target, is_assigned, lane)
            return
        term = self.nest.path[number]
        for tensor in (term.left, term.right):
            self._fetch(tensor, outer, scope)
        with self._open_lane_loop(outer, scope, "vec") as lane:
            self._multiply(number, target, is_assigned, lane)
        self.fetched = {}

    def _fetch(self, tensor: Factor, outer: str, scope: Scope) -> None:
        """Fetch entries of an operand without lanes into a vector, padded by zeros."""
        position = next(iter(tensor.inputs))
        is_one = len(tensor.inputs) == 1 and position != self.nest.network.sparse
        if not is_one or self.form.lane not in self.nest.network.inputs[position]:
            return
        vector = self._declare_temporary("fetched", (ROUND,))
        with self._open_lane_loop(outer, scope, "unr") as lane:
            read = self.access.operand(position, lane.values)
            if self.lane_tiles.is_partial:
                extent = self.access.extent(self.form.lane)
                read = f"({read} if {lane.values[FLAT]} < {extent} else 0)"
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
        return NestArray("out", self.access.list_result_axes())

    def _read(self, tensor: Factor, scope: Scope) -> str:
        network = self.nest.network
        if len(tensor.inputs) > 1:
            return self._text(self.buffers[self.producers[tensor.inputs]], scope)
        (position,) = tensor.inputs
        if position == network.sparse:
            return self.access.value(scope.node[len(network.levels) - 1])
        if position in self.fetched:
            return self._text(self.fetched[position], scope)
        return self.access.operand(position, scope.values)

    def _zero(self, array: NestArray, scope: Scope) -> None:
        indices = [index for index in array.indices if index != CHUNK]
        with self._loop_over(indices, scope) as rows:
            for row in rows:
                self._line(row, f"{self._text(array, row)} = 0")

    @contextmanager
    def _loop_over(
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
                    loop = self._open_entry_loops(index, scope, tag)
                    scope = loops.enter_context(loop)
            yield self._list_rows(scope) if ROW in axes else [scope]

    @contextmanager
    def _open_entry_loops(self, index: str, scope: Scope, tag: str) -> Iterator[Scope]:
        """Open a loop over an extent, or two of them for lanes."""
        if index not in (self.form.lane, ROUND, TILED):
            with self._loop(index, "0", self._extent(index), scope) as iname:
                yield scope.within({index: iname})
            return
        if index == ROUND:
            with self._open_lane_loop("", scope, tag) as lane:
                yield lane
            return
        with (
            self._open_vector_loop(index, scope) as (outer, vector),
            self._open_lane_loop(outer, vector, tag) as lane,
        ):
            yield lane

    @contextmanager
    def _open_vector_loop(
        self, index: str, scope: Scope
    ) -> Iterator[tuple[str, Scope]]:
        """Open the loop over the vectors of the lanes; yield it and its scope."""
        count = self._size(index) // self.form.lanes
        # unrolled, the compiler keeps every vector of the tile in a register
        tag = "unr_hint" if 1 < count <= MOST_REGISTERS else ""
        name = f"{self.form.lane}_vector"
        with self._loop(name, "0", str(count), scope, tag) as outer:
            yield outer, scope.within()

    @contextmanager
    def _open_lane_loop(self, outer: str, scope: Scope, tag: str) -> Iterator[Scope]:
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
            vector = f"{first}{within}" if outer else inner
            flat = f"{n}*({first}{outer}) + {inner}" if outer else inner
            yield scope.within({lane: vector, TILED: within, ROUND: inner, FLAT: flat})

    def _size(self, index: str) -> int:
        """Return the extent of a dense index, or of its tile, or the number of rows."""
        if index == ROW:
            return self.nest.network.n_rows
        if index in (self.form.lane, TILED) and self.form.tile:
            return self.lane_tiles.width
        return self.dense[index]

    @contextmanager
    def _loop(
        self, name: str, begin: str, end: str, scope: Scope, tag: str = ""
    ) -> Iterator[str]:
        """Write a loop around the lines of the ``with`` block; yield its iname."""
        iname: str = self.unique(name)
        self.domains.append(f"{{[{iname}]: {begin} <= {iname} < {end}}}")
        if tag:
            self.tags[iname] = tag
        self._line(scope, f"for {iname}")
        yield iname
        self._line(scope, "end")

    def _define_wide(self, name: str, value: str, scope: Scope) -> str:
        """Define a 64-bit variable for a factor of subscripts."""
        name = self.unique(name)
        self._line(scope, f"<{WIDE}> {name} = {value}")
        return name

    def _declare_temporary(self, name: str, indices: tuple[str, ...]) -> NestArray:
        array = NestArray(self.unique(name), indices)
        self.temporaries.append(self.declare_private_array(array))
        return array

    def declare_private_array(self, array: NestArray) -> Any:
        """Declare the variable of an array that is private to each iteration."""
        extents = {i: str(self._size(i)) for i in array.indices if i != ROUND}
        shape, tags = get_axes(array.indices, extents, self.form)
        return lp.TemporaryVariable(
            array.name, dtype=self.dtype, shape=shape, dim_tags=tags
        )

    def _put(self, array: NestArray, value: str, scope: Scope) -> None:
        """Add a value to an entry; assign it if the entry gets no other value.

        New memory that is read before it is written costs two page faults: the system
        maps a shared page of zeros for the read, and a page of its own for the write.
        """
        network = self.nest.network
        output = network.levels if network.has_sparse_output else network.output
        indices = network.indices.intersection(scope.values)
        is_only = array == self.result and indices.issubset(output)
        # if the tiled index is summed, each tile adds to every entry
        is_only = is_only and (not self.tile or self.form.lane in network.output)
        is_whole = is_only and (self.access.has_start or self.access.is_cleared)
        self.is_written_once |= is_whole
        self._add(array, value, scope, is_first=is_whole)

    def _add(
        self, array: NestArray, value: str, scope: Scope, *, is_first: bool = False
    ) -> None:
        if array != self.result:
            target = self._text(array, scope)
            self._line(scope, f"{target} = {target} + {value}")
            return
        target = start = self.access.result(scope.values)
        if not self.access.has_copies:
            value = self.access.scaled(value, scope.values)
        if is_first:
            start = self.access.start(scope.values) if self.access.has_start else ""
        if start:
            value = f"{start} + {value}"
        has_lane = self.form.lane in self.nest.network.output and ROUND in scope.values
        is_guarded = has_lane and self.lane_tiles.is_partial
        if is_guarded:
            extent = self.access.extent(self.form.lane)
            self._line(scope, f"if {scope.values[FLAT]} < {extent}")
        self._line(scope, f"{target} = {value}")
        if is_guarded:
            self._line(scope, "end")

    def _text(self, array: NestArray, scope: Scope) -> str:
        return format_subscript(array.name, array.indices, scope.values)

    def _extent(self, index: str) -> str:
        extent = self.dense.get(index)
        return self.access.extent(index) if extent is None else str(extent)

    def _line(self, scope: Scope, text: str) -> None:
        self.lines.append("  " * scope.depth + text)


def _list_terms(steps: Iterable[NestStatement]) -> list[int]:
    terms: list[int] = []
    for step in steps:
        if isinstance(step, Multiply):
            terms.append(step.term)
        elif isinstance(step, Repeat):
            terms += _list_terms(step.body)
    return terms
