"""The induced graph as DOT text, which needs no Graphviz, and as files of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from feinsum.drawing.graph.layout import list_layers
from feinsum.drawing.graph.picture import (
    KINDS,
    Picture,
    Vertex,
    VertexKind,
    make_picture,
)
from feinsum.drawing.plots import can_plot
from feinsum.errors import FeinsumError
from feinsum.extras import require_extra
from feinsum.ir import BatchedEinsum, require_einsum
from feinsum.words import make_inline_svg

SUFFIXES = (".svg", ".png", ".pdf", ".dot")
"""The formats of pictures, by the suffixes of their files."""


def draw(einsum: BatchedEinsum, path: str | Path) -> None:
    """Draw the induced graph of ``einsum`` into a file, which is overwritten.

    ``.dot`` is text for Graphviz; the other formats need matplotlib. The same
    einsum gives the same file, except for other releases of matplotlib.

    Raises:
        FeinsumError: for an unknown suffix, or if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise FeinsumError(
            f"cannot draw to {str(path)!r}; give a file that ends in "
            f"{', '.join(SUFFIXES)}"
        )
    target.write_bytes(_render(einsum, suffix))


def _render(einsum: BatchedEinsum, suffix: str) -> bytes:
    if suffix == ".dot":
        return write_dot(einsum).encode()
    with require_extra("matplotlib", "plots", f"a picture in {suffix}, unlike .dot,"):
        from feinsum.drawing.graph.figure import render
    return render(einsum, suffix.removeprefix("."))


def draw_svg(einsum: BatchedEinsum) -> str | None:
    """Draw the induced graph as SVG; return None if matplotlib is not installed."""
    if not can_plot():
        return None
    return make_inline_svg(_render(einsum, ".svg"))


def write_dot(einsum: BatchedEinsum) -> str:
    """Write the induced graph of ``einsum`` in DOT, with a legend of its colors.

    The text is the same in every process.

    >>> from feinsum.ir import array, einsum
    >>> print(write_dot(einsum("i->i", array("x", 4))).splitlines()[0])
    graph "i->i of (x) with x[4]:<f8" {
    """
    picture = make_picture(require_einsum(einsum))
    lines = [
        f"graph {_quote(str(einsum))} {{",
        '  graph [rankdir=LR, fontname="sans-serif"];',
        '  node [style=filled, fontname="sans-serif"];',
        *(f"  {_write_vertex(v, vertex)}" for v, vertex in enumerate(picture.vertices)),
        *_write_ranks(picture),
        *(f"  v{u} -- v{v};" for u, v in picture.edges),
        *_write_legend(picture),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _write_vertex(v: int, vertex: Vertex) -> str:
    label = "\\n".join(_escape(text) for text in (vertex.name, vertex.data) if text)
    return f'v{v} [label="{label}", {_look(KINDS[vertex.kind])}];'


def _look(kind: VertexKind) -> str:
    if kind.shape == "rounded":
        return f'shape=box, style="filled,rounded", fillcolor="{kind.fill}"'
    return f'shape={kind.shape}, fillcolor="{kind.fill}"'


def _write_ranks(picture: Picture) -> Iterator[str]:
    for layer in list_layers(picture):
        yield f"  {{rank=same; {' '.join(f'v{v};' for v in layer)}}}"


def _write_legend(picture: Picture) -> Iterator[str]:
    yield "  subgraph cluster_legend {"
    yield '    label="kinds of vertices, and what else is part of their colors";'
    for name, kind in KINDS.items():
        if picture.list_kind(name):
            node = f"legend_{name.replace('-', '_')}"
            yield f'    {node} [label="", {_look(kind)}];'
            words = f"label={_quote(kind.legend)}, shape=plain, style=solid"
            yield f"    {node}_text [{words}];"
            yield f"    {node} -- {node}_text [style=invis];"
    yield "  }"


def _quote(text: str) -> str:
    return f'"{_escape(text)}"'


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
