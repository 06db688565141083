"""The text of a nest's kernel: its domains and its lines.

:func:`feinsum.nests.lower` gives the statements of a nest, each in its loops. The
writer writes a line for each, with the values of indices in scope (``at``): for a loop
over nodes, the loaded index; for an index with lanes, the vector and the lane. A small
result of a loop is summed in registers first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, TypeAlias

import loopy as lp
import numpy as np
from pytools import UniqueNameGenerator

from feinsum.codegen.nest_arrays import (
    CHUNK,
    ENTRY,
    FLAT,
    ROUND,
    ROW,
    TILED,
    WIDE,
    NestArray,
    NestArrays,
    Part,
    axes_of,
    buffer_places,
    in_tile,
    parts,
    subscripted,
)
from feinsum.nests import Multiply, Nest, NestForm, Repeat, Reset, Step, lower
from feinsum.nests.form import MOST_REGISTERS
from feinsum.nests.network import Tensor

Bounds: TypeAlias = tuple[str, str]
"""Where a loop begins, and where it ends."""


@dataclass(frozen=True)
class Start:
    """In place of a step: write the initial value of the result."""


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
    part: Part = field(init=False)
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
            self._whole(0, {}, ("0", self.of.n_entries()) if is_sparse else None)
            return
        chunk = self._loop("chunk", "0", self.of.n_chunks(), 0, "g.0")
        self.root = self._between(*self.of.chunk(chunk), 1, ("first", "past"))
        if self.of.has_copies:
            chunk = self._wide("copy", chunk, 1)
            self._each_entry(1, {CHUNK: chunk}, lambda depth, at: self._line(
                depth, f"{self.of.result(at)} = 0"
            ))  # fmt: skip
        part = None
        if self.of.is_cleared and not self.form.has_copies:
            part = self._between(*self.of.part(chunk), 1, ("row", "past_row"))
        self._whole(1, {CHUNK: chunk}, part)
        self._line(0, "end")
        if self.of.has_copies:
            # the sum over copies needs the copies of all chunks
            self._line(0, "... gbarrier")
            self._each_entry(0, {}, self._sum_copies, "g.0")

    def _whole(self, depth: int, at: dict[str, str], part: Bounds | None) -> None:
        """Initial values of the result, if any, and all statements.

        Args:
            part: rows, or entries, of the result that are cleared; None for all.
        """
        before = len(self.lines)
        self._tiles(lower(self.nest), depth, at)
        after, self.lines = self.lines[before:], self.lines[:before]
        if self.of.is_cleared:
            after = self._cleared(after, depth, at, part)
        elif self.of.has_start and not self.is_written_once:
            self._started(depth, at)
        self.lines += after

    def _started(self, depth: int, at: dict[str, str]) -> None:
        """Write the initial value of each entry of the result."""
        network = self.nest.network
        body: tuple[Any, ...] = (Start(),)
        for level, index in reversed([*enumerate(network.levels)]):
            if network.has_sparse_output or index in network.output:
                body = (Repeat(index, level, body),)
        self._write(body, depth, at, {})

    def _cleared(
        self, after: list[str], depth: int, at: dict[str, str], part: Bounds | None
    ) -> list[str]:
        """Lines with the result set to zero ahead of them; of a tile, within its loop.

        Entries of the tree are all assigned, if one is: then there is no need.
        """
        network = self.nest.network
        if network.has_sparse_output and self.is_written_once:
            return after
        if self.tile and self.form.lane in network.output:
            # after[0] opens the loop over tiles
            self.lines.append(after[0])
            self._clear(depth + 1, at, part)
            return after[1:]
        self._clear(depth, at, part)
        return after

    def _clear(self, depth: int, at: dict[str, str], part: Bounds | None) -> None:
        """Set the result to zero, or a part of its rows.

        Its loops are not unrolled: compilers know memory that is set to zero.
        """
        network, inside = self.nest.network, depth
        if part:
            axis = ENTRY if network.has_sparse_output else network.levels[0]
            at = at | {axis: self._loop("cleared", *part, depth)}
            inside += 1
        for index in self.result.indices:
            if index == ROW:
                continue
            if index == self.form.lane:
                count = self._size(index) // self.form.lanes
                outer = self._loop(f"{index}_vector", "0", str(count), inside)
                at, inside = self._lane_loop(outer, inside + 1, at, "vec")
            elif index not in at:
                iname = self._loop(index, "0", self._extent(index), inside)
                at, inside = at | {index: iname}, inside + 1
        for inner in self._each_row(at):
            self._line(inside, f"{self._text(self.result, inner)} = 0")
        self._close(inside, depth)

    def _each_row(self, at: dict[str, str]) -> Iterator[dict[str, str]]:
        """The values of indices, for one row after the other."""
        if not self.rows:
            yield at
            return
        for row in range(self.nest.network.n_rows):
            yield at | {ROW: str(row)}

    def _begin(self, depth: int, at: dict[str, str]) -> None:
        """Write the initial value of the result, at all of its dense indices."""
        self._each_entry(depth, at, lambda inside, inner: self._line(
            inside, f"{self.of.result(inner)} = {self.of.start(inner)}"
        ))  # fmt: skip

    def _sum_copies(self, depth: int, at: dict[str, str]) -> None:
        """Add an entry of all copies to that of the result."""
        total = self._temporary("total", ())
        self._zero(total, depth, at)
        chunk = self._loop("chunk", "0", self.of.n_chunks(), depth)
        copy = self._wide("copy", chunk, depth + 1)
        self._add(total, self.of.result(at | {CHUNK: copy}), depth + 1, at)
        self._line(depth, "end")
        value = self.of.scaled(total.name, at)
        self._line(depth, f"{self.of.result(at)} = {self.of.start(at)} + {value}")

    def _each_entry(
        self, depth: int, at: dict[str, str], write: Any, tag: str = ""
    ) -> None:
        """Loops over the indices of the result that have no value yet, and all rows.

        Args:
            tag: of the outermost loop.
        """
        inside = depth
        for index in self.nest.network.output:
            if index not in at:
                iname = self._loop(index, "0", self.of.extent(index), inside, tag)
                at, inside, tag = at | {index: iname, FLAT: iname}, inside + 1, ""
        for inner in self._each_row(at):
            write(inside, inner)
        self._close(inside, depth)

    def _between(self, begin: str, end: str, depth: int, names: Bounds) -> Bounds:
        """Variables with the first node and the one after the last."""
        first, past = map(self.unique, names)
        self._line(depth, f"<> {first} = {begin}")
        self._line(depth, f"<> {past} = {end}")
        return first, past

    def _tiles(self, steps: tuple[Step, ...], depth: int, at: dict[str, str]) -> None:
        """All statements, for one tile of the lanes after the other."""
        if not self.form.tile:
            self._body(steps, depth, at, {})
            return
        whole = self.part
        extent = self.of.extent(self.form.lane)
        in_turn = parts(extent, whole.width, self.form.lanes)
        for part in in_turn if whole.is_partial else (whole,):
            self.part = part
            self.tile = self._loop("tile", part.begin, part.end, depth)
            self._body(steps, depth + 1, at, {})
            self._line(depth, "end")
        self.part = whole

    def _body(
        self,
        steps: tuple[Step, ...],
        depth: int,
        at: dict[str, str],
        node: dict[int, str],
    ) -> None:
        """The body of a loop; a result complete after the loop is accumulated apart."""
        left = self._left(steps, at)
        # results with open sparse indices, or too large for registers, are added to in
        # memory
        if left is None:
            self._write(steps, depth, at, node)
            return
        axes = (*self.rows, *in_tile(left, self.form))
        self.total = self._temporary("total", axes)
        self._zero(self.total, depth, at)
        self._write(steps, depth, at, node)
        total, self.total = self.total, None
        self._over(total.indices, depth, at, lambda inside, inner: self._put(
            self.result, self._text(total, inner), inside, inner
        ), is_vector=not self.of.is_flat)  # fmt: skip

    def _left(
        self, steps: tuple[Step, ...], at: dict[str, str]
    ) -> tuple[str, ...] | None:
        """The axes of a sum that stays in registers; None if it does not, or is one."""
        network, last = self.nest.network, len(self.nest.path) - 1
        if self.total or network.has_sparse_output or last not in _terms(steps):
            return None
        left = tuple(i for i in network.output if i not in at)
        # registers need extents that are known now
        is_fixed = all(index in self.dense for index in left)
        within = [i for i in self.nest.orders[last] if i not in at]
        if not is_fixed or all(index in left for index in within):
            return None
        entries = prod(self._size(i) for i in (*self.rows, *left))
        lanes = self.form.lanes if self.form.lane in left else 1
        return left if entries <= lanes * MOST_REGISTERS else None

    def _write(
        self,
        steps: tuple[Step, ...],
        depth: int,
        at: dict[str, str],
        node: dict[int, str],
    ) -> None:
        """Write statements.

        Args:
            steps: to write.
            depth: of the loops around them.
            at: the value of the index of each of these loops.
            node: the number of the node at each level of these loops.
        """
        for step in steps:
            match step:
                case Start():
                    self._begin(depth, at)
                case Reset(term):
                    self._zero(self.buffers[term], depth, at)
                case Multiply(term, is_assigned):
                    target = self._target(term)
                    for row in self._each_row(at):
                        self._multiply(term, target, is_assigned, depth, row, node)
                case Repeat(index, None, body) if index == self.form.lane:
                    self._vectors(body, depth, at, node)
                case Repeat(index, None, body):
                    iname = self._loop(index, "0", self._extent(index), depth)
                    self._body(body, depth + 1, at | {index: iname}, node)
                    self._line(depth, "end")
                case Repeat(index, int(level), body):
                    self._walk(index, level, body, depth, at, node)

    def _walk(
        self,
        index: str,
        level: int,
        body: tuple[Step, ...],
        depth: int,
        at: dict[str, str],
        node: dict[int, str],
    ) -> None:
        """A loop over the nodes of a level below a node of the level above."""
        # the root's loop is over a chunk of its nodes, if there are chunks
        begin, end = self.root
        if level:
            bounds = self.of.children(level, node[level - 1])
            names = f"begin{level}", f"end{level}"
            begin, end = self._between(*bounds, depth, names)
        iname = self._loop(f"node{level}", begin, end, depth)
        value = self.of.index(level, iname)
        if value != iname:
            # see WIDE: loaded once, as a 64-bit factor of every subscript below
            value = self._wide(f"{index}_0", value, depth + 1)
        inside = at | {index: value, ENTRY: iname}
        self._body(body, depth + 1, inside, node | {level: iname})
        self._line(depth, "end")

    def _vectors(
        self,
        body: tuple[Step, ...],
        depth: int,
        at: dict[str, str],
        node: dict[int, str],
    ) -> None:
        """Products along the lanes; those that add up to one entry add up by lanes."""
        sums = {}
        for term in _terms(body):
            # a scalar has no lanes: sums of each lane are kept apart, and added after
            # the loop
            if not {self.form.lane, ROUND, TILED}.intersection(
                self._target(term).indices
            ):
                sums[term] = self._temporary("lanes", (*self.rows, ROUND))
                self._zero(sums[term], depth, at)
        outer, inside = self._vector_loop(self.form.lane, depth)
        inner, within = at, inside
        if not self.of.is_flat:
            inner, within = self._lane_loop(outer, inside, at, "vec")
        for step in body:
            assert isinstance(step, Multiply)
            target = sums.get(step.term) or self._target(step.term)
            is_assigned = step.is_assigned and step.term not in sums
            product = step.term, target, is_assigned
            for row in self._each_row(inner):
                if self.of.is_flat:
                    self._from_flat(*product, inside, outer, row, node)
                else:
                    self._multiply(*product, within, row, node)
        self._close(within, depth)
        for term, lanes in sums.items():
            iname = self._loop("lane", "0", str(self.form.lanes), depth, "unr")
            for row in self._each_row(at):
                value = self._text(lanes, row | {ROUND: iname})
                self._add(self._target(term), value, depth + 1, row)
            self._line(depth, "end")

    def _from_flat(
        self,
        number: int,
        target: NestArray,
        is_assigned: bool,
        depth: int,
        outer: str,
        at: dict[str, str],
        node: dict[int, str],
    ) -> None:
        """A product of arrays without vectors: by lanes, or fetched into vectors."""
        if target == self.result:
            inner, inside = self._lane_loop(outer, depth, at, "unr")
            self._multiply(number, target, is_assigned, inside, inner, node)
            self._close(inside, depth)
            return
        term = self.nest.path[number]
        for tensor in (term.left, term.right):
            self._fetch(tensor, depth, outer, at)
        inner, inside = self._lane_loop(outer, depth, at, "vec")
        self._multiply(number, target, is_assigned, inside, inner, node)
        self._close(inside, depth)
        self.fetched = {}

    def _fetch(
        self, tensor: Tensor, depth: int, outer: str, at: dict[str, str]
    ) -> None:
        """A vector of entries of an operand without any, and zeros beyond its end."""
        position = next(iter(tensor.inputs))
        is_one = len(tensor.inputs) == 1 and position != self.nest.network.sparse
        if not is_one or self.form.lane not in self.nest.network.inputs[position]:
            return
        vector = self._temporary("fetched", (ROUND,))
        inner, inside = self._lane_loop(outer, depth, at, "unr")
        read = self.of.operand(position, inner)
        if self.part.is_partial:
            read = (
                f"({read} if {inner[FLAT]} < {self.of.extent(self.form.lane)} else 0)"
            )
        self._line(inside, f"{self._text(vector, inner)} = {read}")
        self._close(inside, depth)
        self.fetched[position] = vector

    def _multiply(
        self,
        number: int,
        target: NestArray,
        is_assigned: bool,
        depth: int,
        at: dict[str, str],
        node: dict[int, str],
    ) -> None:
        term = self.nest.path[number]
        value = f"{self._read(term.left, at, node)}*{self._read(term.right, at, node)}"
        if is_assigned:
            self._line(depth, f"{self._text(target, at)} = {value}")
        else:
            self._put(target, value, depth, at)

    def _target(self, number: int) -> NestArray:
        """Where the product of a term goes."""
        return self.buffers.get(number) or self.total or self.result

    @property
    def result(self) -> NestArray:
        return NestArray("out", self.of.result_axes())

    def _read(self, tensor: Tensor, at: dict[str, str], node: dict[int, str]) -> str:
        network = self.nest.network
        if len(tensor.inputs) > 1:
            return self._text(self.buffers[self.makers[tensor.inputs]], at)
        (position,) = tensor.inputs
        if position == network.sparse:
            return self.of.value(node[len(network.levels) - 1])
        if position in self.fetched:
            return self._text(self.fetched[position], at)
        return self.of.operand(position, at)

    def _whole_part(self) -> Part:
        """All tiles, or all of the lanes' index if there are none."""
        tile = self.form.tile
        n_tiles = self.dense[self.form.lane] // tile if tile else 1
        return Part("0", str(n_tiles), tile, self._is_filled_up())

    def _is_filled_up(self) -> bool:
        """Whether there are lanes beyond the extent of their index."""
        lane = self.form.lane
        is_read_in_place = bool(lane) and self.of.is_flat
        return is_read_in_place and self.of.extent(lane) != str(self.dense[lane])

    def _zero(self, array: NestArray, depth: int, at: dict[str, str]) -> None:
        indices = [index for index in array.indices if index != CHUNK]
        self._over(indices, depth, at, lambda inside, inner: self._line(
            inside, f"{self._text(array, inner)} = 0"
        ))  # fmt: skip

    def _over(
        self,
        indices: Iterable[str],
        depth: int,
        at: dict[str, str],
        write: Any,
        *,
        is_vector: bool = True,
    ) -> None:
        """Loops over all entries of an array, around what is written for each row.

        Args:
            is_vector: whether the lanes are computed as vectors, or one by one.
        """
        inside, axes = depth, tuple(indices)
        for index in axes:
            if index != ROW:
                lanes = "vec" if is_vector else "unr"
                inside, at = self._open(index, inside, at, lanes)
        for inner in self._each_row(at) if ROW in axes else (at,):
            write(inside, inner)
        self._close(inside, depth)

    def _open(
        self, index: str, depth: int, at: dict[str, str], lanes: str = "vec"
    ) -> tuple[int, dict[str, str]]:
        """A loop over an extent, two of them for lanes.

        Returns:
            Its depth, and the values of indices in it.
        """
        if index not in (self.form.lane, ROUND, TILED):
            iname = self._loop(index, "0", self._extent(index), depth)
            return depth + 1, at | {index: iname}
        outer = ""
        if index != ROUND:
            outer, depth = self._vector_loop(index, depth)
        inner, inside = self._lane_loop(outer, depth, at, lanes)
        return inside, inner

    def _vector_loop(self, index: str, depth: int) -> tuple[str, int]:
        """The loop over the vectors of the lanes' index, and the depth within it."""
        count = self._size(index) // self.form.lanes
        # unrolled, the compiler keeps every vector of the tile in a register
        tag = "unr_hint" if 1 < count <= MOST_REGISTERS else ""
        name = f"{self.form.lane}_vector"
        return self._loop(name, "0", str(count), depth, tag), depth + 1

    def _lane_loop(
        self, outer: str, depth: int, at: dict[str, str], tag: str
    ) -> tuple[dict[str, str], int]:
        """The loop over the lanes of a vector; the values of indices, and the depth."""
        lane, n = self.form.lane, self.form.lanes
        inner = self._loop(f"{lane}_lane", "0", str(n), depth, tag)
        within = f"{outer}, {inner}" if outer else inner
        first = f"{self._size(lane) // n}*{self.tile} + " if self.tile else ""
        whole = f"{first}{within}" if outer else inner
        flat = f"{n}*({first}{outer}) + {inner}" if outer else inner
        names = {lane: whole, TILED: within, ROUND: inner, FLAT: flat}
        return at | names, depth + 1

    def _size(self, index: str) -> int:
        """The extent of a dense index, or that of a tile of it; or the rows."""
        if index == ROW:
            return self.nest.network.n_rows
        if index in (self.form.lane, TILED) and self.form.tile:
            return self.part.width
        return self.dense[index]

    def _close(self, inside: int, depth: int) -> None:
        for level in reversed(range(depth, inside)):
            self._line(level, "end")

    def _loop(self, name: str, begin: str, end: str, depth: int, tag: str = "") -> str:
        iname: str = self.unique(name)
        self.domains.append(f"{{[{iname}]: {begin} <= {iname} < {end}}}")
        if tag:
            self.tags[iname] = tag
        self._line(depth, f"for {iname}")
        return iname

    def _wide(self, name: str, value: str, depth: int) -> str:
        """A variable for a factor of subscripts."""
        name = self.unique(name)
        self._line(depth, f"<{WIDE}> {name} = {value}")
        return name

    def _temporary(self, name: str, indices: tuple[str, ...]) -> NestArray:
        array = NestArray(self.unique(name), indices)
        self.temporaries.append(self.private_array(array))
        return array

    def private_array(self, array: NestArray) -> Any:
        """The variable of what each iteration has for itself."""
        extents = {i: str(self._size(i)) for i in array.indices if i != ROUND}
        shape, tags = axes_of(array.indices, extents, self.form)
        return lp.TemporaryVariable(
            array.name, dtype=self.dtype, shape=shape, dim_tags=tags
        )

    def _put(
        self, array: NestArray, value: str, depth: int, at: dict[str, str]
    ) -> None:
        """Add a value; to an entry of the result that gets no other, assign it.

        Memory that is read before it is first written is fetched twice: the system has
        pages of zeros to read, and makes those to write.
        """
        network = self.nest.network
        output_indices = network.levels if network.has_sparse_output else network.output
        is_only = array == self.result and {*at} & network.indices <= {*output_indices}
        # a tile of an index that is summed over has a part of each sum
        is_only = is_only and (not self.tile or self.form.lane in network.output)
        is_whole = is_only and (self.of.has_start or self.of.is_cleared)
        self.is_written_once |= is_whole
        self._add(array, value, depth, at, is_first=is_whole)

    def _add(
        self,
        array: NestArray,
        value: str,
        depth: int,
        at: dict[str, str],
        *,
        is_first: bool = False,
    ) -> None:
        if array != self.result:
            target = self._text(array, at)
            self._line(depth, f"{target} = {target} + {value}")
            return
        target = self.of.result(at)
        value = value if self.of.has_copies else self.of.scaled(value, at)
        start = f"{target} + "
        if is_first:
            start = f"{self.of.start(at)} + " if self.of.has_start else ""
        has_lane = self.form.lane in self.nest.network.output and ROUND in at
        is_guarded = has_lane and self.part.is_partial
        if is_guarded:
            self._line(depth, f"if {at[FLAT]} < {self.of.extent(self.form.lane)}")
        self._line(depth, f"{target} = {start}{value}")
        if is_guarded:
            self._line(depth, "end")

    def _text(self, array: NestArray, at: Mapping[str, str]) -> str:
        return subscripted(array.name, array.indices, at)

    def _extent(self, index: str) -> str:
        extent = self.dense.get(index)
        return self.of.extent(index) if extent is None else str(extent)

    def _line(self, depth: int, text: str) -> None:
        self.lines.append("  " * depth + text)


def _terms(steps: Iterable[Step]) -> list[int]:
    terms: list[int] = []
    for step in steps:
        if isinstance(step, Multiply):
            terms.append(step.term)
        elif isinstance(step, Repeat):
            terms += _terms(step.body)
    return terms
