"""The form of a nest's kernel: vectors along one index, chunks of the root, statements.

Most important, sums stay in registers. That, and not the order of loops, makes a nest
several times as fast as compiled plain loops.

:func:`lower_nest` turns a nest into statements. It zeroes a buffer in the innermost
loop around both its producer and its consumer, before the producer's own loops. If the
producer has no further loop there, its product is assigned instead. For
``ijk,ja,ka->ia``::

    for i, j:
        X[:] = 0                                  Reset
        for k, a:  X[a] += T[i,j,k]*C[k,a]        Multiply, added
        for a:     out[i,a] += X[a]*B[j,a]

Source: Kanakagiri and Solomonik 2024 (SpTTN), section 3.2 and algorithm 2, which does
not cover the second case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from feinsum.errors import InvalidEinsumError
from feinsum.nests.cost import Operations
from feinsum.nests.nest import Forest, Nest, Order, list_terms
from feinsum.nests.networks import Network, Sizes, find_consumers
from feinsum.words import format_count

MOST_PRIVATE = 2**15
"""Entries of a buffer that is private to a thread; larger ones are arguments."""

MOST_REGISTERS = 16
"""Most vectors of a sum in registers: AVX2 has as many."""

FEW_PRODUCTS = 1 << 14
"""Multiply-adds that one thread computes in a few microseconds."""

CHUNKS_PER_THREAD = 8
"""Chunks per thread if chunks need no memory."""

COPIES_BYTES = 2**28
"""Largest size of the copies of a result and large buffers together."""

PRODUCTS_PER_ENTRY = 4
"""Products for each entry of the copies, below which adding copies costs too much."""


@dataclass(frozen=True)
class NestForm:
    """How the loops of a nest are executed.

    Attributes:
        lane: the dense index that is vectorized; empty for none.
        lanes: entries of a vector. The extent of ``lane`` is padded to a multiple.
        is_chunked: whether threads take chunks of the root's nodes.
        has_copies: whether each chunk has its own result; they are added up afterwards.
        tile: entries of the lanes' index in an iteration of the outermost loop; 0 for
            all. The tree is read once for each tile.

    Raises:
        InvalidEinsumError: with the rule ``nest``, for lanes without an index or an
            index without lanes, or copies without chunks.
    """

    lane: str = ""
    lanes: int = 1
    is_chunked: bool = False
    has_copies: bool = False
    tile: int = 0

    def __post_init__(self) -> None:
        if self.tile and (
            self.tile < self.lanes or self.tile % self.lanes or not self.lane
        ):
            raise InvalidEinsumError(
                f"a tile of {format_count(self.tile, 'entry')}; expected a "
                "multiple of the "
                f"{self.lanes} lanes of an index",
                rules=("nest",),
            )
        if (self.lanes not in (2, 4, 8, 16)) if self.lane else self.lanes != 1:
            raise InvalidEinsumError(
                f"{self.lanes} lanes of {self.lane!r}; expected 2, 4, 8 or 16 of an "
                "index, or 1 of none",
                rules=("nest",),
            )
        if self.has_copies and not self.is_chunked:
            raise InvalidEinsumError(
                "copies of the result need a chunked root", rules=("nest",)
            )

    def check(self, nest: Nest) -> None:
        """Refuse a nest that does not support this form.

        Raises:
            InvalidEinsumError: with the rule ``nest``.
        """
        if self.lane and self.lane not in find_lane_indices(nest):
            raise InvalidEinsumError(
                f"{self.lane!r} has no lanes in this nest: expected a dense index, the "
                "last of every array that has it, with loops that have none within; "
                f"such are {sorted(find_lane_indices(nest))}",
                rules=("nest",),
            )
        if self.is_chunked and not is_divisible(nest):
            raise InvalidEinsumError(
                "the root of this nest is not divided: it has several outermost loops, "
                "or none over nodes of the tree",
                rules=("nest",),
            )
        if self.is_chunked and not self.has_copies and not is_apart(nest.network):
            raise InvalidEinsumError(
                "chunks of this nest add to the same entries; use copies",
                rules=("nest",),
            )

    def filled(self, extents: Mapping[str, int]) -> dict[str, int]:
        """Return the extents, the lane's padded to a multiple of the lanes or tile.

        >>> NestForm("a", 4).filled({"i": 9, "a": 10})
        {'i': 9, 'a': 12}
        """
        step = self.tile or self.lanes
        return {
            index: -(-extent // step) * step if index == self.lane else extent
            for index, extent in extents.items()
        }


def find_lane_indices(nest: Nest) -> frozenset[str]:
    """Return the indices along which a nest can be vectorized.

    These are the dense indices that are the last one of every array with them, and
    whose loops contain products but no further loops.

    >>> from feinsum.nests.networks import parse_network, build_path
    >>> ttmc = parse_network("ijk,jr,ks->irs")
    >>> path = build_path(ttmc, [(0, 2), (3, 1)])
    >>> sorted(find_lane_indices(Nest(ttmc, path, (tuple("ijks"), tuple("ijrs")))))
    ['s']
    """
    network = nest.network
    # the values of the tree do not count: they are read one by one, even with lanes
    arrays = [term for p, term in enumerate(network.inputs) if p != network.sparse]
    if not network.has_sparse_output:
        arrays.append(network.output)
    dense = network.indices.difference(network.levels)
    last = {i for i in dense if all(i not in a or a[-1] == i for a in arrays)}
    inner = {
        step.index
        for step in _list_statements(lower_nest(nest))
        if isinstance(step, Repeat)
        and not all(isinstance(body, Multiply) for body in step.body)
    }
    return frozenset(last - inner)


def is_divisible(nest: Nest) -> bool:
    """Return whether the nest is a single loop over the nodes of the root."""
    steps = lower_nest(nest)
    return len(steps) == 1 and isinstance(steps[0], Repeat) and steps[0].level == 0


def is_apart(network: Network) -> bool:
    """Return whether different nodes of the root add to different entries."""
    return network.has_sparse_output or network.levels[0] in network.output


def choose_form(
    nest: Nest,
    sizes: Sizes,
    *,
    item_bytes: int = 8,
    vector_bytes: int = 32,
    n_threads: int = 1,
    copies_bytes: int = COPIES_BYTES,
) -> NestForm:
    """Choose the form in which a nest is likely to be fastest.

    Args:
        nest: the nest to compute, of real numbers or, with ``vector_bytes=0``, others.
        sizes: extents, and the profile of the tree.
        item_bytes: size of an entry.
        vector_bytes: size of a vector register.
        n_threads: number of threads that take chunks.
        copies_bytes: maximum size of copies of the result and large buffers together.

    >>> from feinsum.nests.networks import parse_network, build_path
    >>> mttkrp = parse_network("ijk,ia,ja->ka")
    >>> path = build_path(mttkrp, [(1, 2), (3, 0)])
    >>> nest = Nest(mttkrp, path, (tuple("ija"), tuple("ijka")))
    >>> sizes = Sizes({"i": 90, "j": 80, "k": 70, "a": 32}, (90, 900, 9000))
    >>> choose_form(nest, sizes, n_threads=2)
    NestForm(lane='a', lanes=4, is_chunked=True, has_copies=True, tile=0)
    """
    # dense vectors pay even on one thread; chunks need a root with several nodes
    form = _with_lanes(nest, sizes, vector_bytes // item_bytes)
    is_many = n_threads > 1 and sizes.nodes and sizes.nodes[0] > 1
    if not (is_many and is_divisible(nest)):
        return form
    buffers = sum(_list_large_buffers(nest, form, sizes))
    copies = 0
    if not is_apart(nest.network):
        copies = _count_result_entries(nest.network, sizes.extents)
    # a product and its addition count as two operations
    products = Operations(nest.network, sizes).least(nest.path) / 2
    # copies are cleared and added up: that must not take longer than the products
    has_room = n_threads * (buffers + copies) * item_bytes <= copies_bytes
    if has_room and products >= PRODUCTS_PER_ENTRY * n_threads * copies:
        return replace(form, is_chunked=True, has_copies=copies > 0)
    return form


def _with_lanes(nest: Nest, sizes: Sizes, most: int) -> NestForm:
    """Choose lanes along the longest index, and short vectors for few entries."""
    longest = max(
        sorted(find_lane_indices(nest)), key=lambda i: sizes.extents[i], default=""
    )
    lanes = min(most, 16)
    # at most half a vector of padding, to limit the wasted work
    while longest and lanes > 1 and lanes >= 2 * sizes.extents[longest]:
        lanes //= 2
    return NestForm(longest, lanes) if longest and lanes > 1 else NestForm()


def is_private(indices: Order, extents: Mapping[str, int], n_rows: int = 1) -> bool:
    """Return whether a buffer is small for any tree.

    Args:
        indices: indices of the buffer.
        extents: extents of the indices that the tree does not have.
        n_rows: number of rows, which have a buffer each.
    """
    is_fixed = all(index in extents for index in indices)
    return is_fixed and n_rows * prod(extents[i] for i in indices) <= MOST_PRIVATE


def choose_n_chunks(nest: Nest, form: NestForm, sizes: Sizes, n_threads: int) -> int:
    """Return the number of chunks of the root: one per thread if they need memory.

    Otherwise there are more chunks than threads: a thread that finishes early takes
    another one. A small computation is one chunk on the calling thread, since waking
    another thread would take longer.
    """
    n_products = Operations(nest.network, sizes).least(nest.path) / 2
    if not form.is_chunked or n_products <= FEW_PRODUCTS:
        return 1
    needs_memory = form.has_copies or any(_list_large_buffers(nest, form, sizes))
    return n_threads * (1 if needs_memory else CHUNKS_PER_THREAD)


def count_needed_bytes(
    nest: Nest, form: NestForm, sizes: Sizes, item_bytes: int, n_chunks: int
) -> int:
    """Return the bytes of the result's copies and the large buffers together."""
    entries = sum(_list_large_buffers(nest, form, sizes))
    if form.has_copies:
        extents = form.filled(sizes.extents)
        entries += _count_result_entries(nest.network, extents)
    return entries * item_bytes * (n_chunks if form.is_chunked else 1)


def _list_large_buffers(nest: Nest, form: NestForm, sizes: Sizes) -> Iterator[int]:
    """Yield the number of entries of each buffer that is not private."""
    # buffers with an axis of the tree are never private: its extent depends on the tree
    extents, n_rows = form.filled(sizes.extents), nest.network.n_rows
    dense = {i: n for i, n in extents.items() if i not in nest.network.level_of}
    for buffer in nest.buffers:
        if not is_private(buffer.indices, dense, n_rows):
            yield n_rows * prod(extents[i] for i in buffer.indices)


def _count_result_entries(network: Network, extents: Mapping[str, int]) -> int:
    """Return the number of entries of the dense results of all rows."""
    return network.n_rows * prod(extents[i] for i in network.output)


def _list_statements(steps: tuple[NestStatement, ...]) -> Iterator[NestStatement]:
    for step in steps:
        yield step
        if isinstance(step, Repeat):
            yield from _list_statements(step.body)


@dataclass(frozen=True)
class Reset:
    """Zero the buffer that a term fills."""

    term: int


@dataclass(frozen=True)
class Multiply:
    """The product of a term's operands: assigned to its result, or added to it."""

    term: int
    is_assigned: bool


@dataclass(frozen=True)
class Repeat:
    """A loop.

    Attributes:
        index: its index.
        level: of the tree, if the loop runs over the children of the node of the level
            above; None if it runs over the extent.
        body: the repeated statements.
    """

    index: str
    level: int | None
    body: tuple[NestStatement, ...]


NestStatement: TypeAlias = Reset | Multiply | Repeat


def lower_nest(nest: Nest) -> tuple[NestStatement, ...]:
    """Lower a nest to its statements.

    A loop runs over nodes of the tree if it is inside the loops of all levels above,
    even if it does not contain the sparse operand: only these nodes matter, since the
    sparse operand multiplies the results elsewhere.

    >>> from feinsum.nests.networks import parse_network, build_path
    >>> sums = parse_network("ij,j,j->i")
    >>> nest = Nest(sums, build_path(sums, [(0, 1), (3, 2)]), (("i", "j"),) * 2)
    >>> lower_nest(nest)[0].body[0].body
    (Multiply(term=0, is_assigned=True), Multiply(term=1, is_assigned=False))
    """
    consumer_of = {
        k: c for k, c in enumerate(find_consumers(nest.path)) if c is not None
    }
    return tuple(_lower_forest(nest, consumer_of, nest.forest, frozenset()))


def _lower_forest(
    nest: Nest, consumer_of: Mapping[int, int], forest: Forest, around: frozenset[str]
) -> Iterator[NestStatement]:
    for node in forest:
        terms = list_terms(node)
        leaving = [t for t in terms if t in consumer_of and consumer_of[t] not in terms]
        begun = [
            t for t in leaving if any(consumer_of[t] in list_terms(n) for n in forest)
        ]
        # without a further loop, each product is the whole sum: no reset is needed
        if isinstance(node, int):
            yield Multiply(node, is_assigned=bool(begun))
            continue
        yield from map(Reset, begun)
        level = nest.network.get_level(around, node.index)
        body = _lower_forest(nest, consumer_of, node.body, around | {node.index})
        yield Repeat(node.index, level, tuple(body))
