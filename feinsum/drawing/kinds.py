"""How each kind of vertex is drawn, and what the legend says of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KINDS", "Kind"]


@dataclass(frozen=True)
class Kind:
    """A kind of vertex.

    Attributes:
        title: its name in the legend.
        meaning: what else is part of its color; empty if nothing is.
        layer: its column, from the left.
        shape: the word of DOT for its outline.
        fill: its color; the palette is told apart by color-blind readers, and
            the shapes are in print without color.
    """

    title: str
    meaning: str
    layer: int
    shape: str
    fill: str

    @property
    def legend(self) -> str:
        """What it is, and what its color says.

        >>> KINDS["index"].legend
        'index: place in the output, extent'
        """
        return f"{self.title}: {self.meaning}" if self.meaning else self.title


KINDS: dict[str, Kind] = {
    "row": Kind("row", "", 0, "box", "#dddddd"),
    "times": Kind("times", "how often the row multiplies it", 1, "diamond", "#ffffff"),
    "array": Kind("array", "ties its uses together", 1, "parallelogram", "#f4c9e2"),
    "use": Kind("use", "dtype, how often if more than once", 2, "rounded", "#fbd58a"),
    "axis": Kind("axis", "place in its term", 3, "circle", "#f7f4a6"),
    "index": Kind("index", "place in the output, extent", 4, "ellipse", "#a9d6f5"),
    "size-param": Kind("size parameter", "", 5, "hexagon", "#94dcbf"),
}
"""By the first item of a color, in the order of the layers."""
