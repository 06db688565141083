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

A *term* is one of the distinct index lists; a *use* is an array together with a
term. A batch of one row has no row vertices: its multiplicities are colors of
its uses. Extents, dtypes, axis places and multiplicities are colors, so that
the graph stays small; nothing depends on names or order.

Source: paper, section 6 (induced graph), here in an undirected encoding.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from feinsum.ir import BatchedEinsum, Extent, IndexList, Operand, SizeParam, stored

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
    """Colors and edges, and which vertex stands for what.

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


def induced_graph(einsum: BatchedEinsum) -> InducedGraph:
    """The induced graph of ``einsum``.

    Complexity: linear in the length of its notation and rows.

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
    counts = [_multiplicities(einsum, row) for row in einsum.rows]
    _add_uses(graph, einsum, counts)
    if len(counts) > 1:
        _add_rows(graph, counts)
    return graph


def _add_indices(graph: InducedGraph, einsum: BatchedEinsum) -> None:
    extents: dict[str, Extent] = {}
    for term, operand in zip(einsum.inputs, einsum.rows[0], strict=True):
        extents.update(zip(term, operand.shape, strict=True))
    place_of = {index: place for place, index in enumerate(einsum.output)}
    params = graph.param_vertices
    for index, extent in extents.items():
        vertex = graph.index_vertices[index] = len(graph.colors)
        place = place_of.get(index, -1)
        if not isinstance(extent, SizeParam):
            graph.colors.append(("index", place, extent, ""))
            continue
        graph.colors.append(("index", place, -1, ""))
        if extent not in params:
            params[extent] = len(graph.colors)
            graph.colors.append(("size-param", 0, 0, ""))
        graph.edges.append((vertex, params[extent]))


def _add_term(graph: InducedGraph, term: IndexList) -> None:
    first = axis = len(graph.colors)
    graph.term_vertices[term] = first
    for index in term:
        graph.colors.append(("axis", axis - first, 0, ""))
        graph.edges.append((graph.index_vertices[index], axis))
        axis += 1
    graph.edges += pairwise(range(first, axis))
    if not term:
        # the uses of a scalar need the vertex of a term, too
        graph.colors.append(("axis", 0, 0, ""))


def _multiplicities(einsum: BatchedEinsum, row: Row) -> dict[Use, int]:
    """How many times a row multiplies each use."""
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


class _Reconstruction:
    """The vertices of each kind, and the neighbours of a vertex by kind."""

    def __init__(self, graph: InducedGraph) -> None:
        self.colors = graph.colors
        self.near: dict[tuple[int, str], list[int]] = defaultdict(list)
        for u, v in graph.edges:
            self.near[u, self.colors[v][0]].append(v)
            self.near[v, self.colors[u][0]].append(u)

    def einsum(self) -> BatchedEinsum:
        rows = [self.factors(row) for row in self.vertices("row")] or [self.only_row()]
        free = [v for v in self.vertices("index") if self.colors[v][1] >= 0]
        free.sort(key=lambda v: self.colors[v][1])
        return BatchedEinsum(
            tuple(f"i{v}" for v in free),
            tuple(self.term(use) for use in rows[0]),
            tuple(tuple(self.operand(use) for use in row) for row in rows),
        )

    def vertices(self, kind: str) -> list[int]:
        return [v for v, color in enumerate(self.colors) if color[0] == kind]

    def only_row(self) -> list[int]:
        """The uses of a batch of one row, as often as they are multiplied."""
        uses = [use for use in self.vertices("use") for _ in range(self.colors[use][1])]
        return sorted(uses, key=self.axis)

    def factors(self, row: int) -> list[int]:
        """The uses of a row, as often as it multiplies them, by term."""
        uses = list(self.near[row, "use"])
        for between in self.near[row, "times"]:
            uses += self.near[between, "use"] * self.colors[between][1]
        return sorted(uses, key=lambda use: (self.axis(use), not self.storage(use)))

    def storage(self, use: int) -> str:
        """How the operand of a use is stored."""
        return stored(self.colors[use][3])[0]

    def axis(self, use: int) -> int:
        """The first axis of the term of a use."""
        (axis,) = self.near[use, "axis"]
        return axis

    def term(self, use: int) -> IndexList:
        return tuple(f"i{index}" for index in self.indices(use))

    def indices(self, use: int) -> list[int]:
        """The indices along the path of axes that begins at the term of a use."""
        found = []
        path = [self.axis(use)]
        while path:
            (axis,) = path
            found += self.near[axis, "index"]
            place = self.colors[axis][1]
            path = [
                v for v in self.near[axis, "axis"] if self.colors[v][1] == place + 1
            ]
        return found

    def operand(self, use: int) -> Operand:
        array = next(iter(self.near[use, "array"]), use)
        shape = tuple(self.extent(index) for index in self.indices(use))
        storage, dtype = stored(self.colors[use][3])
        return Operand(f"A{array}", shape, np.dtype(dtype), storage)

    def extent(self, index: int) -> Extent:
        for param in self.near[index, "size-param"]:
            return SizeParam(f"N{param}")
        return self.colors[index][2]
