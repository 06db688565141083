"""The canonical order of everything in an einsum, and the names that follow from it."""

from __future__ import annotations

import string
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from constantdict import constantdict

from feinsum.canonical.graph import InducedGraph
from feinsum.canonical.relabeling import Relabeling
from feinsum.ir import BatchedEinsum, IndexList, Operand, SizeParam
from feinsum.ir.operand import operand_text
from feinsum.ir.text import join_text

__all__ = [
    "CanonicalOrder",
    "canonical_order",
    "canonical_relabeling",
    "canonical_text",
]


class CanonicalOrder(NamedTuple):
    """The order of the canonical einsum, in the terms of the given one.

    Attributes:
        rows: numbers of rows.
        positions: for each of these rows the positions of its operands.
        indices, operands, size_params: in the order of first use.
    """

    rows: tuple[int, ...]
    positions: tuple[tuple[int, ...], ...]
    indices: IndexList
    operands: tuple[Operand, ...]
    size_params: tuple[SizeParam, ...]


def canonical_order(
    einsum: BatchedEinsum, graph: InducedGraph, places: Sequence[int]
) -> CanonicalOrder:
    """Order rows by their vertices, and the operands of a row by terms and uses."""
    rows = list(range(einsum.batch_size))
    if graph.row_vertices:
        rows.sort(key=lambda row: places[graph.row_vertices[row]])
    positions = _positions(einsum, graph, places, rows)
    terms = [einsum.inputs[p] for p in positions[0]]
    indices = tuple(dict.fromkeys(chain(einsum.output, *terms)))
    operands: dict[str, Operand] = {}
    for row, order in zip(rows, positions, strict=True):
        factors = einsum.rows[row]
        for p in order:
            operands.setdefault(factors[p].name, factors[p])
    return CanonicalOrder(
        tuple(rows),
        positions,
        indices,
        tuple(operands.values()),
        _size_params(einsum, indices) if graph.param_vertices else (),
    )


def _size_params(
    einsum: BatchedEinsum, indices: Sequence[str]
) -> tuple[SizeParam, ...]:
    """The size parameters that are extents of the indices, in their order."""
    extents = [einsum.extents[index] for index in indices]
    return tuple(dict.fromkeys([n for n in extents if isinstance(n, SizeParam)]))


def _positions(
    einsum: BatchedEinsum,
    graph: InducedGraph,
    places: Sequence[int],
    rows: Sequence[int],
) -> tuple[tuple[int, ...], ...]:
    """The positions of each row: by the place of the term, then of the use.

    In a batch, a sparse operand is ahead of dense ones with its term, so that it has
    one position in all rows.
    """
    inputs = einsum.inputs
    place = [places[graph.term_vertices[term]] for term in inputs]
    by_term = tuple(sorted(range(len(inputs)), key=place.__getitem__))
    if len(graph.term_vertices) == len(inputs):
        return (by_term,) * len(rows)

    def by_term_and_use(row: int) -> tuple[int, ...]:
        operands = einsum.rows[row]
        names = [operand.name for operand in operands]
        uses = [graph.use_vertices[use] for use in zip(names, inputs, strict=True)]
        is_late = [len(rows) > 1 and not operand.storage for operand in operands]
        return tuple(
            sorted(by_term, key=lambda p: (place[p], is_late[p], places[uses[p]]))
        )

    return tuple([by_term_and_use(row) for row in rows])


def canonical_relabeling(order: CanonicalOrder) -> Relabeling:
    """The relabeling that puts an einsum into its canonical order and names."""
    names = _canonical_names(order)
    indices, operands, size_params = map(constantdict, names)
    return Relabeling(indices, operands, size_params, order.rows, order.positions)


def canonical_text(einsum: BatchedEinsum, order: CanonicalOrder) -> str:
    """The text of the canonical einsum, without making it."""
    index, array, param = _canonical_names(order)
    operands = [
        operand_text(
            array[operand.name],
            [
                param[n.name] if isinstance(n, SizeParam) else str(n)
                for n in operand.shape
            ],
            operand.dtype,
            operand.storage,
        )
        for operand in order.operands
    ]
    return join_text(
        [[index[i] for i in einsum.inputs[p]] for p in order.positions[0]],
        [index[i] for i in einsum.output],
        operands,
        [
            [array[einsum.rows[row][p].name] for p in positions]
            for row, positions in zip(order.rows, order.positions, strict=True)
        ],
    )


def _canonical_names(
    order: CanonicalOrder,
) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """The new names of indices, operands and size parameters: they tell the order."""
    n, letters = len(order.indices), string.ascii_lowercase
    indices = letters[:n] if n <= len(letters) else [f"i{k}" for k in range(n)]
    return (
        dict(zip(order.indices, indices, strict=True)),
        {operand.name: f"A{k}" for k, operand in enumerate(order.operands)},
        {param.name: f"N{k}" for k, param in enumerate(order.size_params)},
    )
