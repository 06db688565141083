"""The one door to nauty (through pynauty): canonical labelling of a graph.

Source: McKay and Piperno, Practical graph isomorphism II (2014).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pynauty

from feinsum.errors import CanonicalizationError

__all__ = ["CANONICALIZER", "MAX_VERTICES", "canonical_places"]

MAX_VERTICES = 20_000
"""Largest graph that is given to nauty, which a graph of 65,600 vertices crashes."""

CANONICALIZER = "nauty2.8"
"""Series of nauty releases that label alike; part of every workload key."""


def canonical_places(
    colors: Sequence[Hashable], edges: Sequence[tuple[int, int]]
) -> list[int]:
    """The place of every vertex in the canonical labelling.

    Two colored graphs are isomorphic exactly if placing their vertices so
    makes them equal. Vertices come in the order of their colors.

    Raises:
        CanonicalizationError: if the graph has over :data:`MAX_VERTICES` vertices.

    >>> canonical_places(["b", "a", "b"], [(0, 1)])
    [1, 0, 2]
    """
    if len(colors) > MAX_VERTICES:
        raise CanonicalizationError(
            f"the graph of the einsum has {len(colors)} vertices, at most "
            f"{MAX_VERTICES} can be labelled; split the batch or the product"
        )
    adjacency: dict[int, list[int]] = {}
    for u, v in edges:
        adjacency.setdefault(u, []).append(v)
    cells: dict[Hashable, set[int]] = {}
    for vertex, color in enumerate(colors):
        cells.setdefault(color, set()).add(vertex)
    ordered = [cells[color] for color in sorted(cells)]  # type: ignore[type-var]
    graph = pynauty.Graph(
        len(colors), directed=False, adjacency_dict=adjacency, vertex_coloring=ordered
    )
    places = [0] * len(colors)
    for place, vertex in enumerate(pynauty.canon_label(graph)):
        places[vertex] = place
    return places
