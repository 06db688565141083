"""Pictures of the induced graph of an einsum: as DOT text, SVG, PNG or PDF."""

from feinsum.drawing.dot import dot_text
from feinsum.drawing.draw import SUFFIXES, draw

__all__ = ["SUFFIXES", "dot_text", "draw"]
