"""The arrays of a nest's kernel: their names, and what their axes are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feinsum.nests import Nest, NestForm
from feinsum.nests.form import is_private

__all__ = [
    "CHUNK",
    "ENTRY",
    "FLAT",
    "ROUND",
    "TILED",
    "WIDE",
    "NestArrays",
    "Place",
    "apart",
    "axes_of",
    "buffer_places",
    "in_tile",
    "subscripted",
]

CHUNK = "%chunk"
"""In the place of an index: a chunk of the root, which threads take."""
ROUND = "%lane"
"""In the place of an index: the lane itself, of what is held for one vector only."""
ENTRY = "%entry"
"""In the place of an index: an entry of the tree."""
TILED = "%tiled"
"""In the place of the lanes' index: its entries in the tile, of buffers."""
FLAT = "%flat"
"""In the place of the lanes' index: its value, where an array has one axis for it."""
GAP = 16
"""Entries, at least, between the buffers of two chunks: two lines of the cache."""
WIDE = "int64"
"""Of the index of a node. Vectors of a row are then at fixed distances from its first
one; in fewer bits each would have an address of its own, as sums of these may wrap.
"""


@dataclass(frozen=True)
class Place:
    """An array, and what its axes are: indices, or what stands in their place."""

    name: str
    indices: tuple[str, ...] = ()


class NestArrays:
    """The arrays of a nest's kernel, with names of its own.

    Attributes:
        is_flat: whether the index of the lanes has one axis, as all others.
        has_start: whether the kernel writes what the result begins with.
        is_cleared: whether the kernel sets the result to zero first.
        has_copies: whether the kernel adds up copies of the result that it keeps.
    """

    is_flat = False
    has_start = False
    is_cleared = True
    has_copies = False

    def __init__(self, nest: Nest, form: NestForm) -> None:
        self.nest, self.form = nest, form

    def root(self) -> tuple[str, str]:
        """Where the nodes of the root begin, and end."""
        return "0", "nodes0"

    def n_chunks(self) -> str:
        """How many chunks of the root there are."""
        return "n_chunks"

    def chunk(self, chunk: str) -> tuple[str, str]:
        """Where the nodes of a chunk begin, and end."""
        return f"chunks[{chunk}]", f"chunks[{chunk} + 1]"

    def part(self, chunk: str) -> tuple[str, str]:
        """Where a chunk's rows, or entries, of the result begin, and end."""
        return f"rows[{chunk}]", f"rows[{chunk} + 1]"

    def n_entries(self) -> str:
        """How many entries the tree has."""
        return f"nodes{len(self.nest.network.levels) - 1}"

    def children(self, level: int, above: str) -> tuple[str, str]:
        """Where the nodes below a node of the level above begin, and end."""
        pointers = f"pointers{level - 1}"
        return f"{pointers}[{above}]", f"{pointers}[{above} + 1]"

    def index(self, level: int, node: str) -> str:
        """The index of a node."""
        return f"indices{level}[{node}]"

    def value(self, leaf: str) -> str:
        """The entry of a leaf."""
        return f"values[{leaf}]"

    def operand(self, position: int, at: Mapping[str, str]) -> str:
        """An entry of a dense operand, at values of indices."""
        term = self.nest.network.inputs[position]
        return subscripted(f"T{position}", term, at)

    def result(self, at: Mapping[str, str]) -> str:
        """An entry of the result."""
        if self.nest.network.has_sparse_output:
            return f"out[{at[ENTRY]}]"
        chunk = (CHUNK,) if self.form.has_copies else ()
        return subscripted("out", (*chunk, *self.nest.network.output), at)

    def scaled(self, value: str) -> str:
        """What is added to the result for a value."""
        return value

    def start(self, at: Mapping[str, str]) -> str:
        """With what an entry of the result begins, if this is written."""
        return "0"

    def extent(self, index: str) -> str:
        """The number of values of an index that the nest has no number for."""
        return f"extent_{index}"


def buffer_places(
    nest: Nest, form: NestForm, dense: Mapping[str, int]
) -> dict[int, Place]:
    """Where the result of each term but the last is kept; the axis of lanes is last.

    A number that both terms have within the loop over the lanes is one for each lane.
    What is too large to be private is there for each chunk.

    Args:
        dense: extents of the indices that the tree does not have, filled up.
    """
    found = {}
    for buffer in nest.buffers:
        producer, consumer = nest.path[buffer.producer], nest.path[buffer.consumer]
        axes = tuple(i for i in buffer.indices if i != form.lane)
        if form.lane in buffer.indices:
            axes = in_tile((*axes, form.lane), form)
        elif form.lane in producer.result.indices & consumer.indices:
            axes = (*axes, ROUND)
        if form.is_chunked and not is_private(buffer.indices, dense):
            axes = (CHUNK, *axes)
        found[buffer.producer] = Place(f"X{buffer.producer}", axes)
    return found


def in_tile(indices: tuple[str, ...], form: NestForm) -> tuple[str, ...]:
    """The axes of a buffer; that of the lanes has one tile, if there are any."""
    return tuple(TILED if form.tile and i == form.lane else i for i in indices)


def axes_of(
    indices: Iterable[str], extents: Mapping[str, str], form: NestForm
) -> tuple[tuple[str, ...], str | None]:
    """The shape of an array, and the tags of its axes; of lanes it has one more axis.

    >>> axes_of("ja", {"j": "extent_j", "a": "12"}, NestForm("a", 4))
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
    tags = [f"N{k}" for k in reversed(range(len(shape)))]
    return (*shape, str(form.lanes)), ",".join([*tags, "vec"])


def apart(shape: Sequence[Any]) -> tuple[Any, ...]:
    """The shape of the buffers of all chunks, with a gap after each of them.

    Threads that write to one line of the cache wait for each other.

    >>> apart(("n_chunks", "extent_k", "16")), apart((2, 5))
    (('n_chunks', 'extent_k + 16', '16'), (2, 21))
    """
    chunks, first, *others = shape
    wider = f"{first} + {GAP}" if isinstance(first, str) else first + GAP
    return (chunks, wider, *others)


def subscripted(name: str, indices: Iterable[str], at: Mapping[str, str]) -> str:
    places = ", ".join(at[index] for index in indices)
    return f"{name}[{places}]" if places else name
