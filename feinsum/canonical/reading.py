"""From the places of the vertices to the relabeling that they stand for."""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import partial
from itertools import chain

from constantdict import constantdict

from feinsum.canonical.graph import InducedGraph
from feinsum.canonical.relabeling import Relabeling
from feinsum.ir import BatchedEinsum, SizeParam

__all__ = ["canonical_relabeling"]


def canonical_relabeling(
    einsum: BatchedEinsum, graph: InducedGraph, places: Sequence[int]
) -> Relabeling:
    """Order everything by the places of vertices, and name it in that order.

    Rows come in the order of their vertices, the operands of a row in that of
    their terms and uses; all names in the order of first use.
    """
    rows = list(range(einsum.batch_size))
    if graph.row_vertices:
        rows.sort(key=lambda row: places[graph.row_vertices[row]])
    positions = _positions(einsum, graph, places, rows)
    indices = tuple(
        dict.fromkeys(chain(einsum.output, *[einsum.inputs[p] for p in positions[0]]))
    )
    operands: dict[str, str] = {}
    for row, order in zip(rows, positions, strict=True):
        for p in order:
            name = einsum.rows[row][p].name
            if name not in operands:
                operands[name] = f"A{len(operands)}"
    params: dict[str, str] = {}
    for index in indices:
        extent = einsum.extents[index]
        if isinstance(extent, SizeParam) and extent.name not in params:
            params[extent.name] = f"N{len(params)}"
    return Relabeling(
        constantdict(dict(zip(indices, _index_names(len(indices)), strict=True))),
        constantdict(operands),
        constantdict(params),
        tuple(rows),
        positions,
    )


def _positions(
    einsum: BatchedEinsum,
    graph: InducedGraph,
    places: Sequence[int],
    rows: Sequence[int],
) -> tuple[tuple[int, ...], ...]:
    """The positions of each row: by the place of the term, then of the use."""
    inputs = einsum.inputs
    place = [places[graph.term_vertices[term]] for term in inputs]
    order = tuple(sorted(range(len(inputs)), key=place.__getitem__))
    if len(graph.term_vertices) == len(inputs):
        return (order,) * len(rows)

    def place_of_use(row: int, p: int) -> tuple[int, int]:
        use = einsum.rows[row][p].name, inputs[p]
        return place[p], places[graph.use_vertices[use]]

    return tuple(tuple(sorted(order, key=partial(place_of_use, row))) for row in rows)


def _index_names(n: int) -> Sequence[str]:
    letters = string.ascii_lowercase
    return letters[:n] if n <= len(letters) else [f"i{k}" for k in range(n)]
