"""Color refinement: the coarsest equitable partition, in a canonical order.

Source: McKay and Piperno, Practical graph isomorphism II (2014), section 2;
Hopcroft's rule of the smaller half.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import TypeAlias

__all__ = ["adjacency", "cell_numbers", "color_cells", "refined"]

Neighbours: TypeAlias = Sequence[Sequence[int]]
Cells: TypeAlias = Sequence[set[int]]


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


def cell_numbers(cells: Cells) -> list[int]:
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


def refined(cells: Cells, neighbours: Neighbours) -> list[set[int]]:
    """Split cells until all vertices of one have as many neighbours in any other.

    What is split, and in what order, depends on places of cells and on numbers of
    vertices and neighbours only: isomorphic graphs are refined alike.

    Complexity: O(m log n) for m edges and n vertices.

    >>> path = [[1], [0, 2], [1, 3], [2]]
    >>> refined([{0, 1, 2, 3}], path)
    [{0, 3}, {1, 2}]
    """
    partition = _Partition(cells)
    while partition.splitters and len(partition.cells) < len(neighbours):
        splitter = partition.next_splitter()
        touched = partition.by_count(_counts(splitter, neighbours))
        for first in sorted(touched):
            partition.split(first, touched[first])
    return [partition.cells[first] for first in sorted(partition.cells)]


def _counts(splitter: set[int], neighbours: Neighbours) -> dict[int, int]:
    """How many neighbours every vertex has in a cell, where it has any."""
    counts: dict[int, int] = {}
    for vertex in splitter:
        for near in neighbours[vertex]:
            counts[near] = counts.get(near, 0) + 1
    return counts


class _Partition:
    """Cells in order, each known by the number of vertices before it.

    Attributes:
        cells: the vertices of each cell.
        start: for every vertex its cell.
        splitters: cells by which others may still have to be split, in order.
    """

    def __init__(self, cells: Cells) -> None:
        self.cells: dict[int, set[int]] = {}
        self.start = [0] * sum(map(len, cells))
        n_before = 0
        for cell in cells:
            self.cells[n_before] = set(cell)
            for vertex in cell:
                self.start[vertex] = n_before
            n_before += len(cell)
        self.splitters = deque(self.cells)
        self._is_waiting = set(self.splitters)

    def next_splitter(self) -> set[int]:
        first = self.splitters.popleft()
        self._is_waiting.discard(first)
        return self.cells[first]

    def by_count(self, counts: dict[int, int]) -> dict[int, dict[int, set[int]]]:
        """The counted vertices of each cell that could be split, by their count."""
        touched: dict[int, dict[int, set[int]]] = {}
        for vertex, count in counts.items():
            first = self.start[vertex]
            if len(self.cells[first]) > 1:
                touched.setdefault(first, {}).setdefault(count, set()).add(vertex)
        return touched

    def split(self, first: int, by_count: dict[int, set[int]]) -> None:
        """Split a cell by the counts of its vertices; those of no count come first.

        One part need not split others if the whole cell did already; it is the
        largest, and the first of the largest, so that numbers do not matter.
        """
        parts = self._parts(first, by_count)
        if first not in self._is_waiting:
            parts.remove(max(parts, key=lambda part: len(self.cells[part])))
        new = [part for part in parts if part not in self._is_waiting]
        self.splitters += new
        self._is_waiting.update(new)

    def _parts(self, first: int, by_count: dict[int, set[int]]) -> list[int]:
        """Make the parts; vertices of no count are never looked at one by one."""
        cell = self.cells[first]
        parts = [part for _, part in sorted(by_count.items())]
        for part in parts:
            cell -= part
        if not cell:
            self.cells[first] = parts.pop(0)
        begins = [first]
        for part in parts:
            first += len(self.cells[begins[-1]])
            begins.append(first)
            self.cells[first] = part
            for vertex in part:
                self.start[vertex] = first
        return begins
