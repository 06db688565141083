"""Color refinement: the coarsest equitable partition, in a canonical order.

Source: McKay and Piperno, Practical graph isomorphism II (2014), section 2;
Hopcroft's rule of the smaller half.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence

__all__ = ["adjacency", "cell_numbers", "color_cells", "refined"]

Partition = dict[int, set[int]]
"""Cells of vertices in order, each under the number of vertices before it."""


def color_cells(colors: Sequence[Hashable]) -> list[set[int]]:
    """The vertices of each color, in the order of the colors.

    >>> color_cells(["b", "a", "b"])
    [{1}, {0, 2}]
    """
    cells: dict[Hashable, set[int]] = {}
    for vertex, color in enumerate(colors):
        if color in cells:
            cells[color].add(vertex)
        else:
            cells[color] = {vertex}
    return [cells[color] for color in sorted(cells)]  # type: ignore[type-var]


def cell_numbers(cells: Sequence[set[int]]) -> list[int]:
    """For every vertex the number of its cell.

    >>> cell_numbers([{1}, {0, 2}])
    [1, 0, 1]
    """
    numbers = [0] * sum(map(len, cells))
    for k, cell in enumerate(cells):
        for vertex in cell:
            numbers[vertex] = k
    return numbers


def adjacency(n_vertices: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """For every vertex its neighbours.

    >>> adjacency(3, [(0, 1), (1, 2)])
    [[1], [0, 2], [1]]
    """
    neighbours: list[list[int]] = [[] for _ in range(n_vertices)]
    for u, v in edges:
        neighbours[u].append(v)
        neighbours[v].append(u)
    return neighbours


def refined(
    cells: Sequence[set[int]], neighbours: Sequence[Sequence[int]]
) -> list[set[int]]:
    """Split cells until all vertices of one have as many neighbours in any other.

    What is split, and in what order, depends on numbers of vertices and of
    neighbours only: isomorphic graphs are refined alike.

    Complexity: O(m log n) for m edges and n vertices.

    >>> path = [[1], [0, 2], [1, 3], [2]]
    >>> refined([{0, 1, 2, 3}], path)
    [{0, 3}, {1, 2}]
    """
    partition: Partition = {}
    start = [0] * len(neighbours)
    n_before = 0
    for cell in cells:
        partition[n_before] = set(cell)
        for vertex in cell:
            start[vertex] = n_before
        n_before += len(cell)
    waiting = deque(partition)
    is_waiting = set(waiting)
    while waiting and len(partition) < len(neighbours):
        splitter = waiting.popleft()
        is_waiting.discard(splitter)
        counts: dict[int, int] = {}
        for vertex in partition[splitter]:
            for near in neighbours[vertex]:
                counts[near] = counts.get(near, 0) + 1
        touched: dict[int, dict[int, set[int]]] = {}
        for vertex, count in counts.items():
            first = start[vertex]
            if len(partition[first]) > 1:
                touched.setdefault(first, {}).setdefault(count, set()).add(vertex)
        for first in sorted(touched):
            parts = _split(partition, start, first, touched[first])
            if first not in is_waiting:
                parts.remove(max(parts, key=lambda part: len(partition[part])))
            new = [part for part in parts if part not in is_waiting]
            waiting += new
            is_waiting.update(new)
    return [partition[first] for first in sorted(partition)]


def _split(
    partition: Partition, start: list[int], first: int, by_count: dict[int, set[int]]
) -> list[int]:
    """Split one cell by numbers of neighbours; where its parts begin.

    The untouched vertices come first, and are never looked at one by one.
    """
    cell = partition[first]
    parts = [part for _, part in sorted(by_count.items())]
    for part in parts:
        cell -= part
    if not cell:
        partition[first] = parts.pop(0)
    begins = [first]
    for part in parts:
        first += len(partition[begins[-1]])
        begins.append(first)
        partition[first] = part
        for vertex in part:
            start[vertex] = first
    return begins
