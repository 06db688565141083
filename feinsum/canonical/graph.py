"""The induced graph: a colored undirected graph that determines an einsum; and back.

===========  =======================  ==========================================
vertex       color                    neighbours
===========  =======================  ==========================================
index        output position, extent  its size parameter; the axes that carry it
size-param   --                       the indices that have it as extent
axis         place in its term        its index, if any; the next axis of its term
use          stored dtype, mult.      the first axis of its term; its rows
array        --                       its uses, where there are several
row          --                       the uses that the row multiplies
times        multiplicity             a row and a use that it multiplies m times
===========  =======================  ==========================================

The graph of ``ij,j->i`` with A[3,4] and x[4]::

    i (output 0, 3) --- axis 0 --- use of A (<f8, once)
                          |
    j (sum, 4) -------- axis 1
         +------------- axis 0 --- use of x (<f8, once)

A *term* is one of the distinct index lists; a *use* is an array together with a
term. A batch of one row has no row vertices: its multiplicities are colors of
its uses. Extents, dtypes, axis places and multiplicities are colors, so that
the graph stays small; nothing depends on names or order.

Source: paper, section 6 (induced graph), here in an undirected encoding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from feinsum.ir import BatchedEinsum, Extent, IndexList, Operand, SizeParam

Color: TypeAlias = tuple[str, int, int, str]
"""Kind of a vertex and its data; colors are totally ordered.

An index has its position in the output and its extent, -1 for none; a use its
multiplicity (0 in a batch of several rows) and dtype, with the storage ahead of it;
an axis its place and a ``times`` vertex its multiplicity.
"""

Use: TypeAlias = tuple[str, IndexList]
"""The name of an array together with an index list with which it is accessed."""

Row: TypeAlias = tuple[Operand, ...]


@dataclass(slots=True)
class InducedGraph:
    """Colors and edges, and the vertices that represent the parts of an einsum.

    Attributes:
        colors: one color per vertex.
        edges: unordered pairs of vertices.
        index_vertices, param_vertices, term_vertices, use_vertices, row_vertices:
            the vertex of each index, size parameter, term (its first axis), use and
            row (if b > 1).
    """

    colors: list[Color] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    index_vertices: dict[str, int] = field(default_factory=dict)
    param_vertices: dict[SizeParam, int] = field(default_factory=dict)
    term_vertices: dict[IndexList, int] = field(default_factory=dict)
    use_vertices: dict[Use, int] = field(default_factory=dict)
    row_vertices: list[int] = field(default_factory=list)


def build_induced_graph(einsum: BatchedEinsum) -> InducedGraph:
    """Build the induced graph of ``einsum``.

    Complexity: linear in the length of its notation and rows.

    >>> from feinsum.ir import array, einsum
    >>> e = einsum("ij,j->i", array("A", (3, 4)), array("x", 4))
    >>> graph = build_induced_graph(e)
    >>> len(graph.colors), len(graph.edges)
    (7, 6)
    """
    graph = InducedGraph()
    _add_indices(graph, einsum)
    for term in dict.fromkeys(einsum.inputs):
        _add_term(graph, term)
    counts = [_count_uses(einsum, row) for row in einsum.rows]
    _add_uses(graph, einsum, counts)
    if len(counts) > 1:
        _add_rows(graph, counts)
    return graph


def _add_indices(graph: InducedGraph, einsum: BatchedEinsum) -> None:
    extents: dict[str, Extent] = {}
    for term, operand in zip(einsum.inputs, einsum.rows[0], strict=True):
        extents.update(zip(term, operand.shape, strict=True))
    output_axis = {index: axis for axis, index in enumerate(einsum.output)}
    params = graph.param_vertices
    for index, extent in extents.items():
        vertex = graph.index_vertices[index] = len(graph.colors)
        axis = output_axis.get(index, -1)
        if not isinstance(extent, SizeParam):
            graph.colors.append(("index", axis, extent, ""))
            continue
        # A vertex marks equal extents, because keys do not contain names of sizes.
        graph.colors.append(("index", axis, -1, ""))
        if extent not in params:
            params[extent] = len(graph.colors)
            graph.colors.append(("size-param", 0, 0, ""))
        graph.edges.append((vertex, params[extent]))


def _add_term(graph: InducedGraph, term: IndexList) -> None:
    first_axis = axis = len(graph.colors)
    graph.term_vertices[term] = first_axis
    for index in term:
        graph.colors.append(("axis", axis - first_axis, 0, ""))
        graph.edges.append((graph.index_vertices[index], axis))
        axis += 1
    # Colors order the axes of a term; the path joins the axes of one term.
    graph.edges += pairwise(range(first_axis, axis))
    if not term:
        # the uses of a scalar need a vertex of their term, too
        graph.colors.append(("axis", 0, 0, ""))


def _count_uses(einsum: BatchedEinsum, row: Row) -> dict[Use, int]:
    """Count how many times a row multiplies each use."""
    times: dict[Use, int] = {}
    for operand, term in zip(row, einsum.inputs, strict=True):
        use = operand.name, term
        times[use] = times.get(use, 0) + 1
    return times


def _add_uses(
    graph: InducedGraph, einsum: BatchedEinsum, counts: list[dict[Use, int]]
) -> None:
    colors, edges, vertices = graph.colors, graph.edges, graph.use_vertices
    dtypes = {
        operand.name: f"{operand.storage}{operand.dtype.str}"
        for row in einsum.rows
        for operand in row
    }
    uses_of: dict[str, list[int]] = {}
    is_batch = len(counts) > 1
    for count in counts:
        for use, times in count.items():
            if use in vertices:
                continue
            name, term = use
            vertices[use] = vertex = len(colors)
            colors.append(("use", 0 if is_batch else times, 0, dtypes[name]))
            edges.append((graph.term_vertices[term], vertex))
            uses_of.setdefault(name, []).append(vertex)
    # A vertex joins the several uses of one array.
    for uses in uses_of.values():
        if len(uses) > 1:
            edges += [(len(colors), use) for use in uses]
            colors.append(("array", 0, 0, ""))


def _add_rows(graph: InducedGraph, counts: list[dict[Use, int]]) -> None:
    colors, edges = graph.colors, graph.edges
    for count in counts:
        row = len(colors)
        graph.row_vertices.append(row)
        colors.append(("row", 0, 0, ""))
        for use, times in count.items():
            vertex = graph.use_vertices[use]
            if times > 1:
                edges.append((vertex, len(colors)))
                vertex = len(colors)
                colors.append(("times", times, 0, ""))
            edges.append((row, vertex))
