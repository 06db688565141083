"""The induced graph as text in the DOT language; needs no Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from feinsum.drawing.graph.layout import layers_of
from feinsum.drawing.graph.picture import KINDS, Kind, Picture, Vertex, picture_of
from feinsum.ir import BatchedEinsum, require_einsum

__all__ = ["dot_text"]


def dot_text(einsum: BatchedEinsum) -> str:
    """The induced graph of ``einsum`` in DOT, with a legend of its colors.

    The text is the same in every process.

    >>> from feinsum.ir import array, einsum
    >>> print(dot_text(einsum("i->i", array("x", 4))).splitlines()[0])
    graph "i->i of (x) with x[4]:<f8" {
    """
    picture = picture_of(require_einsum(einsum))
    lines = [
        f"graph {_quoted(str(einsum))} {{",
        '  graph [rankdir=LR, fontname="sans-serif"];',
        '  node [style=filled, fontname="sans-serif"];',
        *(f"  {_vertex(v, vertex)}" for v, vertex in enumerate(picture.vertices)),
        *_ranks(picture),
        *(f"  v{u} -- v{v};" for u, v in picture.edges),
        *_legend(picture),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _vertex(v: int, vertex: Vertex) -> str:
    label = "\\n".join(_escaped(text) for text in (vertex.name, vertex.data) if text)
    return f'v{v} [label="{label}", {_look(KINDS[vertex.kind])}];'


def _look(kind: Kind) -> str:
    if kind.shape == "rounded":
        return f'shape=box, style="filled,rounded", fillcolor="{kind.fill}"'
    return f'shape={kind.shape}, fillcolor="{kind.fill}"'


def _ranks(picture: Picture) -> Iterator[str]:
    for layer in layers_of(picture):
        yield f"  {{rank=same; {' '.join(f'v{v};' for v in layer)}}}"


def _legend(picture: Picture) -> Iterator[str]:
    yield "  subgraph cluster_legend {"
    yield '    label="kinds of vertices, and what else is part of their colors";'
    for name, kind in KINDS.items():
        if picture.of_kind(name):
            node = f"legend_{name.replace('-', '_')}"
            yield f'    {node} [label="", {_look(kind)}];'
            words = f"label={_quoted(kind.legend)}, shape=plain, style=solid"
            yield f"    {node}_text [{words}];"
            yield f"    {node} -- {node}_text [style=invis];"
    yield "  }"


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
