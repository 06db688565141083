"""The induced graph: a colored undirected graph that determines an einsum.

===========  =======================  ==========================================
vertex       color                    neighbours
===========  =======================  ==========================================
index        output position, extent  its size parameter; the axes that carry it
size param   --                       the indices that have it as extent
axis         place in its term        its index; the next axis of the same term
use          dtype, multiplicity      the first axis of its term; its rows
array        --                       its uses, where there are several
row          --                       the uses that the row multiplies
times        multiplicity             a row and a use that it multiplies m times
===========  =======================  ==========================================

A *term* is one of the distinct index lists; a *use* is an array together with a
term. A batch of one row has no row vertices: its multiplicities are colors of
its uses. Extents, dtypes, axis places and multiplicities are colors, so that
the graph stays small; nothing depends on names or order.

Source: paper, section 6 (induced graph), here in an undirected encoding.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from feinsum.ir import BatchedEinsum, Extent, IndexList, Operand, SizeParam

__all__ = ["Color", "InducedGraph", "Use", "induced_graph"]

Color: TypeAlias = tuple[str, int, int, str]
"""Kind of a vertex and its data; colors are totally ordered."""

Use: TypeAlias = tuple[Operand, IndexList]
"""An array together with the index list with which it is accessed."""


@dataclass
class InducedGraph:
    """Colors and edges, and which vertex stands for what.

    Attributes:
        colors: one color per vertex.
        edges: unordered pairs of vertices.
        index_vertices, use_vertices, term_vertices, row_vertices: the vertex of
            each index, use, term (its first axis) and row (if b > 1).
    """

    colors: list[Color] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    index_vertices: dict[str, int] = field(default_factory=dict)
    term_vertices: dict[IndexList, int] = field(default_factory=dict)
    use_vertices: dict[Use, int] = field(default_factory=dict)
    row_vertices: list[int] = field(default_factory=list)

    def add_vertex(self, kind: str, x: int = 0, y: int = 0, text: str = "") -> int:
        self.colors.append((kind, x, y, text))
        return len(self.colors) - 1


def induced_graph(einsum: BatchedEinsum) -> InducedGraph:
    """The induced graph of ``einsum``.

    >>> from feinsum.ir import array, einsum
    >>> e = einsum("ij,j->i", array("A", (3, 4)), array("x", 4))
    >>> graph = induced_graph(e)
    >>> len(graph.colors), len(graph.edges)
    (7, 6)
    """
    graph = InducedGraph()
    _add_indices(graph, einsum)
    for term in dict.fromkeys(einsum.inputs):
        _add_term(graph, term)
    counts = [Counter(zip(row, einsum.inputs, strict=True)) for row in einsum.rows]
    _add_uses(graph, counts)
    if len(counts) > 1:
        _add_rows(graph, counts)
    return graph


def _add_indices(graph: InducedGraph, einsum: BatchedEinsum) -> None:
    params: dict[SizeParam, int] = {}
    place = {index: k for k, index in enumerate(einsum.output)}
    for index, extent in einsum.extents.items():
        vertex = graph.add_vertex("index", place.get(index, -1), _fixed(extent))
        graph.index_vertices[index] = vertex
        if isinstance(extent, SizeParam):
            if extent not in params:
                params[extent] = graph.add_vertex("size-param")
            graph.edges.append((vertex, params[extent]))


def _fixed(extent: Extent) -> int:
    return -1 if isinstance(extent, SizeParam) else extent


def _add_term(graph: InducedGraph, term: IndexList) -> None:
    axes = [graph.add_vertex("axis", k) for k in range(max(1, len(term)))]
    graph.term_vertices[term] = axes[0]
    graph.edges += pairwise(axes)
    graph.edges += (
        (axis, graph.index_vertices[index])
        for axis, index in zip(axes, term, strict=False)
    )


def _add_uses(graph: InducedGraph, counts: list[Counter[Use]]) -> None:
    uses_of: dict[Operand, list[int]] = {}
    only_row = counts[0] if len(counts) == 1 else Counter()
    for use in dict.fromkeys(use for count in counts for use in count):
        operand, term = use
        vertex = graph.add_vertex("use", only_row[use], 0, operand.dtype.str)
        graph.use_vertices[use] = vertex
        graph.edges.append((vertex, graph.term_vertices[term]))
        uses_of.setdefault(operand, []).append(vertex)
    for uses in uses_of.values():
        if len(uses) > 1:
            tie = graph.add_vertex("array")
            graph.edges += ((tie, use) for use in uses)


def _add_rows(graph: InducedGraph, counts: list[Counter[Use]]) -> None:
    for count in counts:
        row = graph.add_vertex("row")
        graph.row_vertices.append(row)
        for use, times in count.items():
            vertex = graph.use_vertices[use]
            if times > 1:
                between = graph.add_vertex("times", times)
                graph.edges.append((vertex, between))
                vertex = between
            graph.edges.append((row, vertex))
