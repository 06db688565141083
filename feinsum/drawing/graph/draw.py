"""Writing a picture of the induced graph to a file."""

from __future__ import annotations

from pathlib import Path

from feinsum.drawing.graph.dot import dot_text
from feinsum.drawing.plots import can_plot
from feinsum.errors import FeinsumError
from feinsum.extras import requiring
from feinsum.ir import BatchedEinsum
from feinsum.reprs import inline_svg

__all__ = ["SUFFIXES", "draw", "svg_of"]

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
    target.write_bytes(_rendered(einsum, suffix))


def _rendered(einsum: BatchedEinsum, suffix: str) -> bytes:
    if suffix == ".dot":
        return dot_text(einsum).encode()
    with requiring("matplotlib", "plots", f"a picture in {suffix}, unlike .dot,"):
        from feinsum.drawing.graph.figure import render
    return render(einsum, suffix.removeprefix("."))


def svg_of(einsum: BatchedEinsum) -> str | None:
    """The induced graph as SVG; None where matplotlib is not installed."""
    if not can_plot():
        return None
    return inline_svg(_rendered(einsum, ".svg"))
