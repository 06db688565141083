"""Canonical labelling: nauty, called on what color refinement leaves undecided.

A large graph is first refined. Edges between two cells that are all there say
nothing but that, and are set aside; what is left falls into components, which
are labelled one by one and put in the order of what they then are. So
interchangeable rows need no search, however many there are. Proof: the page
``docs/explanation/canonical-form.md``.

Source: McKay and Piperno, Practical graph isomorphism II (2014).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from operator import itemgetter
from typing import TypeAlias

from feinsum.canonical.refinement import (
    adjacency,
    cell_numbers,
    color_cells,
    refined,
)
from feinsum.canonical.search import Deadline, bounded_order
from feinsum.canonical.search_process import searched_order

__all__ = ["canonical_places"]

SMALL = 32
"""Largest graph that nauty gets as it is: taking it apart would take longer."""

Edges: TypeAlias = Sequence[tuple[int, int]]
Neighbours: TypeAlias = dict[int, list[int]]
Certificate: TypeAlias = tuple[list[int], list[tuple[int, int]]]
"""Certificate of a labelled component: the cell of each vertex, and its edges."""


def canonical_places(
    colors: Sequence[Hashable], edges: Edges, time_limit_s: float | None = None
) -> list[int]:
    """The place of every vertex in the canonical labelling.

    Two colored graphs are isomorphic exactly if placing their vertices so
    makes them equal. Vertices come in the order of their colors.

    Args:
        time_limit_s: how long all searches of nauty may take; see :class:`Deadline`.

    Raises:
        CanonicalizationError: if they take longer.

    >>> canonical_places(["b", "a", "b"], [(0, 1)])
    [1, 0, 2]
    """
    cells = color_cells(colors)
    if len(colors) <= SMALL:
        order = searched_order(len(colors), cells, edges)
    else:
        order = _order_by_components(cells, edges, Deadline(time_limit_s))
    places = [0] * len(order)
    for place, vertex in enumerate(order):
        places[vertex] = place
    return places


def _order_by_components(
    cells: Sequence[set[int]], edges: Edges, deadline: Deadline
) -> list[int]:
    neighbours = adjacency(sum(map(len, cells)), edges)
    cells = refined(cells, neighbours)
    cell_of = cell_numbers(cells)
    undecided = _undecided(cells, cell_of, neighbours)
    labelled = [
        _labelled(component, cell_of, undecided, deadline)
        for component in _components(undecided)
    ]
    labelled.sort(key=itemgetter(0))
    ordered: list[list[int]] = [list(cell) if len(cell) == 1 else [] for cell in cells]
    for _, component in labelled:
        for vertex in component:
            ordered[cell_of[vertex]].append(vertex)
    return [vertex for cell in ordered for vertex in cell]


def _undecided(
    cells: Sequence[set[int]], cell_of: list[int], neighbours: list[list[int]]
) -> Neighbours:
    """The vertices that share a cell, and the edges that tell them apart.

    A vertex has as many neighbours in a cell as any other of its own cell, so one
    vertex tells how many edges there are between two cells. Where they are more
    than half of all pairs, the pairs without an edge tell as much, and are fewer.
    """
    undecided: Neighbours = {}
    for k, cell in enumerate(cells):
        if len(cell) == 1:
            continue
        counts = Counter(cell_of[w] for w in neighbours[next(iter(cell))])
        n_pairs = {other: len(cells[other]) - (other == k) for other in counts}
        sparse = {other for other, n in counts.items() if 2 * n <= n_pairs[other]}
        dense = [c for c, n in counts.items() if n_pairs[c] < 2 * n < 2 * n_pairs[c]]
        for vertex in cell:
            undecided[vertex] = [w for w in neighbours[vertex] if cell_of[w] in sparse]
            for other in dense:
                missing = cells[other].difference(neighbours[vertex], (vertex,))
                undecided[vertex] += missing
    return undecided


def _components(neighbours: Neighbours) -> Iterator[list[int]]:
    """The vertices of each connected component."""
    seen: set[int] = set()
    for root in neighbours:
        if root in seen:
            continue
        seen.add(root)
        component = [root]
        for vertex in component:
            new = [w for w in neighbours[vertex] if w not in seen]
            seen.update(new)
            component += new
        yield component


def _labelled(
    component: list[int],
    cell_of: list[int],
    neighbours: Neighbours,
    deadline: Deadline,
) -> tuple[Certificate, list[int]]:
    """A component's vertices in canonical order, and what they then are."""
    component.sort(key=cell_of.__getitem__)
    colors = [cell_of[vertex] for vertex in component]
    if len(set(colors)) < len(colors):
        local = {vertex: k for k, vertex in enumerate(component)}
        edges = [(local[v], local[w]) for v in component for w in neighbours[v]]
        once = [(u, v) for u, v in edges if u < v]
        order = bounded_order(len(colors), color_cells(colors), once, deadline)
        component = [component[k] for k in order]
    place = {vertex: k for k, vertex in enumerate(component)}
    edges = [(place[v], place[w]) for v in component for w in neighbours[v]]
    return (colors, sorted(edges)), component
