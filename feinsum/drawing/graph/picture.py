"""The induced graph with labels, and the appearance of each kind of vertex."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from feinsum.canonical import InducedGraph, build_induced_graph
from feinsum.ir import BatchedEinsum


@dataclass(frozen=True)
class VertexKind:
    """A kind of vertex.

    Attributes:
        title: its name in the legend.
        meaning: what else is part of its color; empty if nothing is.
        layer: its column, from the left.
        shape: the word of DOT for its outline.
        fill: its color; color-blind readers can distinguish the palette, and the shapes
            differ in print without color.
    """

    title: str
    meaning: str
    layer: int
    shape: str
    fill: str

    @property
    def legend(self) -> str:
        """The kind of vertex, and the meaning of its color.

        >>> KINDS["index"].legend
        'index: place in the output, extent'
        """
        return f"{self.title}: {self.meaning}" if self.meaning else self.title


KINDS: dict[str, VertexKind] = {
    "row": VertexKind("row", "", 0, "box", "#dddddd"),
    "times": VertexKind(
        "times", "how often the row multiplies it", 1, "diamond", "#ffffff"
    ),
    "array": VertexKind(
        "array", "ties its uses together", 1, "parallelogram", "#f4c9e2"
    ),
    "use": VertexKind(
        "use", "dtype, how often if more than once", 2, "rounded", "#fbd58a"
    ),
    "axis": VertexKind("axis", "place in its term", 3, "circle", "#f7f4a6"),
    "index": VertexKind(
        "index", "place in the output, extent", 4, "ellipse", "#a9d6f5"
    ),
    "size-param": VertexKind("size parameter", "", 5, "hexagon", "#94dcbf"),
}
"""By the first item of a color, in the order of the layers."""


@dataclass(frozen=True)
class Vertex:
    """A vertex of a picture.

    Attributes:
        kind: a key of :data:`KINDS`.
        name: label for the reader; no part of the graph.
        data: what its color contains besides the kind.
    """

    kind: str
    name: str = ""
    data: str = ""


@dataclass(frozen=True)
class Picture:
    """Labelled vertices by number, and the edges between them."""

    vertices: tuple[Vertex, ...]
    edges: tuple[tuple[int, int], ...]

    def list_kind(self, kind: str) -> set[int]:
        return {v for v, vertex in enumerate(self.vertices) if vertex.kind == kind}


def make_picture(einsum: BatchedEinsum) -> Picture:
    """Build the induced graph of ``einsum``, labelled with its names.

    >>> from feinsum.ir import array, einsum
    >>> picture = make_picture(einsum("ij->i", array("A", ("n", 4))))
    >>> [str(vertex.name) for vertex in picture.vertices if vertex.name]
    ['i', 'n', 'j', 'A']
    """
    graph = build_induced_graph(einsum)
    words = dict(_list_named_vertices(einsum, graph))
    vertices = (
        words.get(v) or Vertex(color[0], data=_format_number(color))
        for v, color in enumerate(graph.colors)
    )
    return Picture(tuple(vertices), tuple(graph.edges))


def _format_number(color: tuple[object, ...]) -> str:
    """Return the number in an axis's color (its place) or a times vertex's color."""
    return f"×{color[1]}" if color[0] == "times" else str(color[1])


def _list_named_vertices(
    einsum: BatchedEinsum, graph: InducedGraph
) -> Iterator[tuple[int, Vertex]]:
    """Yield the vertices that have a name in the einsum."""
    ties = _group_neighbours(graph)
    for index, v in graph.index_vertices.items():
        extent = einsum.extents[index]
        yield v, Vertex("index", index, f"{_index_role(einsum, index)}, {extent}")
        for param in ties.get((v, "size-param"), ()):
            yield param, Vertex("size-param", str(extent))
    for (name, _), v in graph.use_vertices.items():
        _, times, _, dtype = graph.colors[v]
        yield v, Vertex("use", name, dtype + f" ×{times}" * (times > 1))
        for array in ties.get((v, "array"), ()):
            yield array, Vertex("array", name)
    for k, v in enumerate(graph.row_vertices):
        yield v, Vertex("row", f"row {k}")


def _index_role(einsum: BatchedEinsum, index: str) -> str:
    is_free = index in einsum.output
    return f"output {einsum.output.index(index)}" if is_free else "sum"


def _group_neighbours(graph: InducedGraph) -> dict[tuple[int, str], list[int]]:
    """Group the neighbours of each vertex by kind."""
    groups: dict[tuple[int, str], list[int]] = {}
    for u, v in graph.edges:
        groups.setdefault((u, graph.colors[v][0]), []).append(v)
        groups.setdefault((v, graph.colors[u][0]), []).append(u)
    return groups
