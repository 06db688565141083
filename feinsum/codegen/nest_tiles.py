"""Tiles of the lanes' index, with lanes possibly beyond its extent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Part", "parts"]


@dataclass(frozen=True)
class Part:
    """Tiles of the lanes' index, of one width.

    Attributes:
        begin: the number of the first tile.
        end: the number of the tile after the last one.
        width: entries of a tile.
        is_partial: whether lanes may be beyond the extent of their index.
    """

    begin: str
    end: str
    width: int
    is_partial: bool = False


def parts(extent: str, tile: int, lanes: int) -> Iterator[Part]:
    """Whole tiles; then whole vectors, and the one with lanes beyond the extent.

    Args:
        extent: of the index, as text for isl.
        tile: entries of a tile, a multiple of ``lanes``.
        lanes: entries of a vector.

    >>> for part in parts("n", 16, 4):
    ...     print(part.begin, "to", part.end, "by", part.width)
    0 to floor((n)/16) by 16
    4*floor((n)/16) to floor((n)/4) by 4
    floor((n)/4) to floor((n + 3)/4) by 4
    """
    tiles, vectors = f"floor(({extent})/{tile})", f"floor(({extent})/{lanes})"
    yield Part("0", tiles, tile)
    if tile > lanes:
        yield Part(f"{tile // lanes}*{tiles}", vectors, lanes)
    yield Part(vectors, f"floor(({extent} + {lanes - 1})/{lanes})", lanes, True)
