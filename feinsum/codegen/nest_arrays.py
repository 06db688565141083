"""The arrays of a nest's kernel: their names, axes and tiles.

With vectors of 4 lanes, an index of extent 10 has two axes, of 3 vectors and of 4
lanes; the last 2 lanes are padding. With tiles, buffers have only the vectors of one
tile ::

    index    0 1 2 3 | 4 5 6 7 | 8 9 . .
    vector      0         1         2
    tile of 8 lanes:  vectors 0 and 1, then vector 2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feinsum.nests import Nest, NestForm
from feinsum.nests.form import is_private

CHUNK = "%chunk"
"""Stands for an index: a chunk of the root, which one thread takes."""

ROUND = "%lane"
"""Stands for an index: the lane, in arrays of a single vector."""

ROW = "%row"
"""Stands for an index: the number of a row, if there are several."""

ENTRY = "%entry"
"""Stands for an index: an entry of the tree."""

TILED = "%tiled"
"""Stands for the lanes' index in buffers: its entries in the tile."""

FLAT = "%flat"
"""Stands for the lanes' index in arrays with one axis for it: its value."""

GAP = 16
"""Entries between the buffers of two chunks, at least: two cache lines."""

WIDE = "int64"
"""The dtype of subscripts. With 64 bits, the vectors of a row have constant offsets
from its first one. With fewer, each would need its own address, since sums may wrap.
"""


@dataclass(frozen=True)
class NestArray:
    """An array and its axes: indices, or their substitutes."""

    name: str
    indices: tuple[str, ...] = ()


class NestArrays:
    """The arrays of a nest's kernel, with the kernel's names.

    Attributes:
        is_flat: whether the lanes' index has one axis, like all others.
        has_start: whether the kernel writes the initial result.
        is_cleared: whether the kernel zeroes the result first.
        has_copies: whether the kernel keeps copies of the result and adds them up.
    """

    is_flat = False
    has_start = False
    is_cleared = True
    has_copies = False

    def __init__(self, nest: Nest, form: NestForm) -> None:
        self.nest, self.form = nest, form

    def root(self) -> tuple[str, str]:
        """Return the bounds of the root's nodes."""
        return "0", "nodes0"

    def n_chunks(self) -> str:
        """Return the number of chunks of the root."""
        return "n_chunks"

    def chunk(self, chunk: str) -> tuple[str, str]:
        """Return the bounds of the nodes of a chunk."""
        return f"chunks[{chunk}]", f"chunks[{chunk} + 1]"

    def part(self, chunk: str) -> tuple[str, str]:
        """Return the bounds of a chunk's rows, or entries, of the result."""
        return f"rows[{chunk}]", f"rows[{chunk} + 1]"

    def n_entries(self) -> str:
        """Return the number of entries of the tree."""
        return f"nodes{len(self.nest.network.levels) - 1}"

    def children(self, level: int, above: str) -> tuple[str, str]:
        """Return the bounds of the nodes below a node of the level above."""
        pointers = f"pointers{level - 1}"
        return f"{pointers}[{above}]", f"{pointers}[{above} + 1]"

    def index(self, level: int, node: str) -> str:
        """Return the index of a node."""
        return f"indices{level}[{node}]"

    def value(self, leaf: str) -> str:
        """Return the entry of a leaf."""
        return f"values[{leaf}]"

    def operand(self, position: int, values: Mapping[str, str]) -> str:
        """Return an entry of a dense operand, at values of indices."""
        term = self.nest.network.inputs[position]
        return format_subscript(get_dense_name(position, get_row(values)), term, values)

    def list_result_axes(self) -> tuple[str, ...]:
        """Return the axes of the result."""
        network = self.nest.network
        row = (ROW,) if network.n_rows > 1 else ()
        if network.has_sparse_output:
            return (*row, ENTRY)
        chunk = (CHUNK,) if self.form.has_copies else ()
        return (*chunk, *row, *network.output)

    def result(self, values: Mapping[str, str]) -> str:
        """Return an entry of the result."""
        return format_subscript("out", self.list_result_axes(), values)

    def scaled(self, value: str, values: Mapping[str, str]) -> str:
        """Return the term that a value adds to the result."""
        return value

    def start(self, values: Mapping[str, str]) -> str:
        """Return the initial value of an entry of the result, if it is written."""
        return "0"

    def extent(self, index: str) -> str:
        """Return the extent of an index that is an argument of the kernel."""
        return f"extent_{index}"


def list_buffers(
    nest: Nest, form: NestForm, dense: Mapping[str, int]
) -> dict[int, NestArray]:
    """Return the buffers of all terms but the last, by term.

    The axis of lanes is last. If there are several rows, their axis is before it.
    A scalar that both terms access inside the loop over lanes has one entry per lane.
    Each chunk has its own copy of buffers that are too large to be private.

    Args:
        nest: the nest, which determines the terms and buffers.
        form: vectorization and parallel loops of the nest.
        dense: padded extents of the indices that the tree does not have.
    """
    buffers, n_rows = {}, nest.network.n_rows
    for buffer in nest.buffers:
        producer, consumer = nest.path[buffer.producer], nest.path[buffer.consumer]
        axes = tuple(i for i in buffer.indices if i != form.lane)
        if n_rows > 1:
            axes = (*axes, ROW)
        if form.lane in buffer.indices:
            axes = replace_lane_by_tile((*axes, form.lane), form)
        # one entry per lane: they are summed once after the loop, not for each vector
        elif form.lane in producer.result.indices & consumer.indices:
            axes = (*axes, ROUND)
        # chunks run at the same time
        if form.is_chunked and not is_private(buffer.indices, dense, n_rows):
            axes = (CHUNK, *axes)
        buffers[buffer.producer] = NestArray(f"X{buffer.producer}", axes)
    return buffers


def replace_lane_by_tile(indices: tuple[str, ...], form: NestForm) -> tuple[str, ...]:
    """Return the axes of a buffer, whose lanes cover one tile if there are tiles."""
    return tuple(TILED if form.tile and i == form.lane else i for i in indices)


def get_axes(
    indices: Iterable[str], extents: Mapping[str, str], form: NestForm
) -> tuple[tuple[str, ...], str | None]:
    """Return an array's shape and the tags of its axes, with an extra axis for lanes.

    >>> get_axes("ja", {"j": "extent_j", "a": "12"}, NestForm("a", 4))
    (('extent_j', '3', '4'), 'N1,N0,vec')
    """
    shape: list[str] = []
    has_lanes = False
    for index in indices:
        if index in (form.lane, TILED):
            shape.append(str(int(extents[index]) // form.lanes))
        elif index != ROUND:
            shape.append(extents[index])
        has_lanes = has_lanes or index in (form.lane, TILED, ROUND)
    if not has_lanes:
        return tuple(shape), None
    # in C order, with the lanes as a vector
    tags = [f"N{k}" for k in reversed(range(len(shape)))]
    return (*shape, str(form.lanes)), ",".join([*tags, "vec"])


def pad_chunks(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Pad the buffer of each chunk by a gap.

    It avoids false sharing: threads that write to one cache line delay each other.

    >>> pad_chunks(("n_chunks", "extent_k", "16")), pad_chunks((2, 5))
    (('n_chunks', 'extent_k + 16', '16'), (2, 21))
    """
    chunks, first, *inner = shape
    wider = f"{first} + {GAP}" if isinstance(first, str) else first + GAP
    return (chunks, wider, *inner)


def get_dense_name(position: int, row: int = 0) -> str:
    """Return the name of a dense operand, with a suffix in all rows but the first."""
    return f"T{position}_row{row}" if row else f"T{position}"


def get_row(values: Mapping[str, str]) -> int:
    """Return the number of the row, given values of indices; 0 for a single row."""
    return int(values.get(ROW, "0"))


def format_subscript(
    name: str, indices: Iterable[str], values: Mapping[str, str]
) -> str:
    subscripts = ", ".join(values[index] for index in indices)
    return f"{name}[{subscripts}]" if subscripts else name


@dataclass(frozen=True)
class LaneTiles:
    """Tiles of the lanes' index, of one width.

    Attributes:
        begin: the number of the first tile.
        end: the number of the tile after the last one.
        width: entries of a tile.
        is_partial: whether lanes may be beyond the extent of their index.
    """

    begin: str
    end: str
    width: int
    is_partial: bool = False


def split_into_tiles(extent: str, tile: int, lanes: int) -> Iterator[LaneTiles]:
    """Yield full tiles, full vectors, and the vector with lanes beyond the extent.

    Args:
        extent: extent of the index, in isl's syntax.
        tile: entries of a tile, a multiple of ``lanes``.
        lanes: entries of a vector.

    >>> for part in split_into_tiles("n", 16, 4):
    ...     print(part.begin, "to", part.end, "by", part.width)
    0 to floor((n)/16) by 16
    4*floor((n)/16) to floor((n)/4) by 4
    floor((n)/4) to floor((n + 3)/4) by 4
    """
    tiles, vectors = f"floor(({extent})/{tile})", f"floor(({extent})/{lanes})"
    yield LaneTiles("0", tiles, tile)
    if tile > lanes:
        yield LaneTiles(f"{tile // lanes}*{tiles}", vectors, lanes)
    yield LaneTiles(vectors, f"floor(({extent} + {lanes - 1})/{lanes})", lanes, True)
