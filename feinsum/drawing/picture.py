"""The induced graph with words on it: what every format draws."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from feinsum.canonical import InducedGraph, induced_graph
from feinsum.ir import BatchedEinsum

__all__ = ["Picture", "Vertex", "picture_of"]


@dataclass(frozen=True)
class Vertex:
    """A vertex of a picture.

    Attributes:
        kind: a key of :data:`feinsum.drawing.kinds.KINDS`.
        name: whose vertex it is, for the reader; no part of the graph.
        data: what its color says beside the kind.
    """

    kind: str
    name: str = ""
    data: str = ""


@dataclass(frozen=True)
class Picture:
    """Vertices with words, by number, and the edges between them."""

    vertices: tuple[Vertex, ...]
    edges: tuple[tuple[int, int], ...]

    def of_kind(self, kind: str) -> set[int]:
        return {v for v, vertex in enumerate(self.vertices) if vertex.kind == kind}


def picture_of(einsum: BatchedEinsum) -> Picture:
    """The induced graph of ``einsum``, labelled with its names.

    >>> from feinsum.ir import array, einsum
    >>> picture = picture_of(einsum("ij->i", array("A", ("n", 4))))
    >>> [str(vertex.name) for vertex in picture.vertices if vertex.name]
    ['i', 'n', 'j', 'A']
    """
    graph = induced_graph(einsum)
    words = dict(_words(einsum, graph))
    vertices = (
        words.get(v) or Vertex(color[0], data=_number(color))
        for v, color in enumerate(graph.colors)
    )
    return Picture(tuple(vertices), tuple(graph.edges))


def _number(color: tuple[object, ...]) -> str:
    """The number in the color of an axis (its place) or of a times vertex."""
    return f"×{color[1]}" if color[0] == "times" else str(color[1])


def _words(einsum: BatchedEinsum, graph: InducedGraph) -> Iterator[tuple[int, Vertex]]:
    """The vertices that have a name in the einsum."""
    ties = _ties(graph)
    for index, v in graph.index_vertices.items():
        extent = einsum.extents[index]
        yield v, Vertex("index", index, f"{_place(einsum, index)}, {extent}")
        for param in ties.get((v, "size-param"), ()):
            yield param, Vertex("size-param", str(extent))
    for (name, _), v in graph.use_vertices.items():
        _, times, _, dtype = graph.colors[v]
        yield v, Vertex("use", name, dtype + f" ×{times}" * (times > 1))
        for array in ties.get((v, "array"), ()):
            yield array, Vertex("array", name)
    for k, v in enumerate(graph.row_vertices):
        yield v, Vertex("row", f"row {k}")


def _place(einsum: BatchedEinsum, index: str) -> str:
    is_free = index in einsum.output
    return f"output {einsum.output.index(index)}" if is_free else "sum"


def _ties(graph: InducedGraph) -> dict[tuple[int, str], list[int]]:
    """The neighbours of each vertex that are of a kind."""
    found: dict[tuple[int, str], list[int]] = {}
    for u, v in graph.edges:
        found.setdefault((u, graph.colors[v][0]), []).append(v)
        found.setdefault((v, graph.colors[u][0]), []).append(u)
    return found
