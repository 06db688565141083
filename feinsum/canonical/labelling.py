"""Canonical labelling: nauty, for the vertices that color refinement leaves open.

A large graph is first refined. Complete sets of edges between two cells carry no
further information, so they are removed. The remaining components are labelled one by
one, and sorted by their certificates. So any number of interchangeable rows needs no
search::

    refined cells        {r0, r1}  {u0, u1}  {A}      edges r0-u0, r1-u1, u0-A, u1-A
    without complete     r0-u0 and r1-u1 are components with equal certificates, which
    sets (u-A)           may come in any order

Proof: the page ``docs/explanation/canonical-form.md``.

Color refinement gives the coarsest equitable partition, in a canonical order. nauty's
search is bounded in time; all callers go through this module.

Source: McKay and Piperno, Practical graph isomorphism II (2014), section 2;
Hopcroft's rule of the smaller half.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from importlib import metadata
from operator import itemgetter
from pathlib import Path
from typing import TypeAlias

import pynauty

from feinsum.canonical import search_process
from feinsum.canonical.search_process import run_nauty
from feinsum.errors import CanonicalizationError
from feinsum.processes import Worker, WorkerError, WorkerTimeoutError

SMALL = 32
"""Largest graph passed to nauty as a whole, because splitting it would take longer."""

Edges: TypeAlias = Sequence[tuple[int, int]]

Adjacency: TypeAlias = dict[int, list[int]]

Certificate: TypeAlias = tuple[list[int], list[tuple[int, int]]]
"""Certificate of a labelled component: the cell of each vertex, and its edges."""


def compute_places(
    colors: Sequence[Hashable], edges: Edges, time_limit_s: float | None = None
) -> list[int]:
    """Return the position of every vertex in the canonical labelling.

    Two colored graphs are isomorphic exactly if they are equal after their vertices are
    numbered by these positions. Vertices are in the order of their colors.

    Args:
        colors: the color of every vertex.
        edges: unordered pairs of vertices.
        time_limit_s: time limit of all nauty searches; see :class:`Deadline`.

    Raises:
        CanonicalizationError: if the searches take longer.

    >>> compute_places(["b", "a", "b"], [(0, 1)])
    [1, 0, 2]
    """
    cells = group_by_color(colors)
    if len(colors) <= SMALL:
        order = run_nauty(len(colors), cells, edges)
    else:
        order = _order_by_components(cells, edges, Deadline(time_limit_s))
    ranks = [0] * len(order)
    for rank, vertex in enumerate(order):
        ranks[vertex] = rank
    return ranks


def _order_by_components(
    cells: Sequence[set[int]], edges: Edges, deadline: Deadline
) -> list[int]:
    neighbours = list_neighbours(sum(map(len, cells)), edges)
    # After refinement most vertices are alone in their cell: nauty gets the others.
    cells = refine_cells(cells, neighbours)
    cell_of = number_cells(cells)
    undecided = _find_undecided(cells, cell_of, neighbours)
    labelled = [
        _label(component, cell_of, undecided, deadline)
        for component in _find_components(undecided)
    ]
    # Isomorphic components have equal certificates, so their order does not matter.
    labelled.sort(key=itemgetter(0))
    ordered: list[list[int]] = [list(cell) if len(cell) == 1 else [] for cell in cells]
    for _, component in labelled:
        for vertex in component:
            ordered[cell_of[vertex]].append(vertex)
    return [vertex for cell in ordered for vertex in cell]


def _find_undecided(
    cells: Sequence[set[int]], cell_of: list[int], neighbours: list[list[int]]
) -> Adjacency:
    """Find the vertices that share a cell, and the edges that distinguish them.

    All vertices of a cell have equally many neighbours in another cell, so any of them
    determines the number of edges between the cells. If more than half of all pairs
    have an edge, the pairs without one carry the same information, and are fewer.
    """
    undecided: Adjacency = {}
    for k, cell in enumerate(cells):
        if len(cell) == 1:
            continue
        counts = Counter(cell_of[w] for w in neighbours[next(iter(cell))])
        n_pairs = {
            neighbour_cell: len(cells[neighbour_cell]) - (neighbour_cell == k)
            for neighbour_cell in counts
        }
        sparse = {
            neighbour_cell
            for neighbour_cell, n in counts.items()
            if 2 * n <= n_pairs[neighbour_cell]
        }
        dense = [c for c, n in counts.items() if n_pairs[c] < 2 * n < 2 * n_pairs[c]]
        for vertex in cell:
            undecided[vertex] = [w for w in neighbours[vertex] if cell_of[w] in sparse]
            for neighbour_cell in dense:
                missing = cells[neighbour_cell].difference(
                    neighbours[vertex], (vertex,)
                )
                undecided[vertex] += missing
    return undecided


def _find_components(neighbours: Adjacency) -> Iterator[list[int]]:
    """Yield the vertices of each connected component."""
    seen: set[int] = set()
    for root in neighbours:
        if root in seen:
            continue
        seen.add(root)
        component = [root]
        # the loop also visits the vertices that it appends: a breadth-first search
        for vertex in component:
            unseen = [w for w in neighbours[vertex] if w not in seen]
            seen.update(unseen)
            component += unseen
        yield component


def _label(
    component: list[int],
    cell_of: list[int],
    neighbours: Adjacency,
    deadline: Deadline,
) -> tuple[Certificate, list[int]]:
    """Put a component's vertices in canonical order.

    The certificate is the same for isomorphic components.
    """
    component.sort(key=cell_of.__getitem__)
    colors = [cell_of[vertex] for vertex in component]
    # one vertex in each cell: the order of the cells is canonical without a search
    if len(set(colors)) < len(colors):
        local = {vertex: k for k, vertex in enumerate(component)}
        edges = [(local[v], local[w]) for v in component for w in neighbours[v]]
        once = [(u, v) for u, v in edges if u < v]
        order = search_order(len(colors), group_by_color(colors), once, deadline)
        component = [component[k] for k in order]
    local_rank = {vertex: k for k, vertex in enumerate(component)}
    edges = [(local_rank[v], local_rank[w]) for v in component for w in neighbours[v]]
    return (colors, sorted(edges)), component


CANONICALIZER = "nauty" + ".".join(metadata.version("pynauty").split(".")[:2])
"""Series of nauty releases with equal labellings; part of every workload key."""

MAX_VERTICES = 20_000
"""Largest graph that is passed to nauty, which crashes on one of 65,600 vertices."""

QUICK = 64
"""Largest graph that is searched in this process, where a search cannot be stopped."""

TIME_LIMIT_S = 10.0
"""Default time limit of all searches for one einsum."""

LARGEST_LIMIT_S = 1e6


class Deadline:
    """The time by which all searches for one einsum must end.

    Args:
        limit_s: seconds from now; None for :data:`TIME_LIMIT_S`.

    Raises:
        CanonicalizationError: if the limit is not a positive number of seconds.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = TIME_LIMIT_S if limit_s is None else limit_s
        if not 0 < self.limit_s <= LARGEST_LIMIT_S:
            raise CanonicalizationError(
                f"time limit {self.limit_s!r} s; expected up to {LARGEST_LIMIT_S:.0e}, "
                "and more than 0, by time_limit_s="
            )
        self.at_s = time.monotonic() + self.limit_s

    @property
    def left_s(self) -> float:
        """Remaining seconds, at least a millisecond."""
        return max(1e-3, self.at_s - time.monotonic())


def search_order(
    n_vertices: int,
    cells: Sequence[set[int]],
    edges: Sequence[tuple[int, int]],
    deadline: Deadline,
) -> list[int]:
    """Order the vertices 0, 1, ... as in the canonical labelling.

    nauty's worst case is exponential: a graph of more than :data:`QUICK` vertices is
    searched in a separate process, which is stopped at the deadline.

    Args:
        n_vertices: the number of vertices.
        cells: the vertices of each color, in the order of the colors.
        edges: unordered pairs of vertices, none twice.
        deadline: when the search must end.

    Raises:
        CanonicalizationError: if the search takes longer or the graph is too large.
    """
    if n_vertices <= QUICK:
        return run_nauty(n_vertices, cells, edges)
    if n_vertices > MAX_VERTICES:
        raise CanonicalizationError(
            f"color refinement leaves {n_vertices} vertices undecided, nauty takes at "
            f"most {MAX_VERTICES}; split the batch or the product"
        )
    # in a frozen application, sys.executable is the application, not an interpreter
    if sys.executable is None or getattr(sys, "frozen", False):
        raise _make_search_error(
            n_vertices, "needs a Python interpreter, but none was found"
        )
    limit_s = deadline.left_s
    # the worker ends itself a second later, in case this process cannot stop it
    request = [limit_s + 1, n_vertices, [sorted(cell) for cell in cells], edges]
    # -P: modules in the folder of the script must not shadow others
    command = [sys.executable, "-P", search_process.__file__]
    # a child does not inherit sys.path, by which this process may have found pynauty
    env = os.environ | {"PYTHONPATH": str(Path(pynauty.__file__).parents[1])}
    try:
        with Worker(command, env=env) as worker:
            order: list[int] = json.loads(worker.request(json.dumps(request), limit_s))
    except OSError as error:
        raise _make_search_error(
            n_vertices, f"could not be started ({error})"
        ) from None
    except WorkerTimeoutError:
        raise _make_search_error(
            n_vertices,
            f"was stopped after {deadline.limit_s:g} s; split the batch or the "
            "product, or raise time_limit_s= of canonicalize",
        ) from None
    except WorkerError as error:
        raise _make_search_error(n_vertices, str(error)) from None
    except ValueError:
        raise _make_search_error(n_vertices, "gave an unreadable answer") from None
    return order


def _make_search_error(n_vertices: int, failure: str) -> CanonicalizationError:
    return CanonicalizationError(f"nauty's search on {n_vertices} vertices {failure}")


Neighbours: TypeAlias = Sequence[Sequence[int]]

Cells: TypeAlias = Sequence[set[int]]


def group_by_color(colors: Sequence[Hashable]) -> list[set[int]]:
    """Return the vertices of each color, in the order of the colors.

    >>> group_by_color(["b", "a", "b"])
    [{1}, {0, 2}]
    """
    cells: dict[Hashable, set[int]] = {}
    for vertex, color in enumerate(colors):
        if color in cells:
            cells[color].add(vertex)
        else:
            cells[color] = {vertex}
    return [cells[color] for color in sorted(cells)]  # type: ignore[type-var]


def number_cells(cells: Cells) -> list[int]:
    """Return the cell number of every vertex.

    >>> number_cells([{1}, {0, 2}])
    [1, 0, 1]
    """
    numbers = [0] * sum(map(len, cells))
    for k, cell in enumerate(cells):
        for vertex in cell:
            numbers[vertex] = k
    return numbers


def list_neighbours(
    n_vertices: int, edges: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """Return the neighbours of every vertex.

    >>> list_neighbours(3, [(0, 1), (1, 2)])
    [[1], [0, 2], [1]]
    """
    neighbours: list[list[int]] = [[] for _ in range(n_vertices)]
    for u, v in edges:
        neighbours[u].append(v)
        neighbours[v].append(u)
    return neighbours


def refine_cells(cells: Cells, neighbours: Neighbours) -> list[set[int]]:
    """Split cells until vertices of a cell have equally many neighbours in any other.

    The splits and their order depend only on positions of cells and on numbers of
    vertices and neighbours, so isomorphic graphs get the same refinement.

    Complexity: O(m log n) for m edges and n vertices.

    >>> path = [[1], [0, 2], [1, 3], [2]]
    >>> refine_cells([{0, 1, 2, 3}], path)
    [{0, 3}, {1, 2}]
    """
    partition = _Partition(cells)
    while partition.splitters and len(partition.cells) < len(neighbours):
        splitter = partition.pop_splitter()
        touched = partition.group_by_count(_count_neighbours(splitter, neighbours))
        # sorted: the order of the dict depends on vertex numbers, which must not matter
        for first in sorted(touched):
            partition.split(first, touched[first])
    return [partition.cells[first] for first in sorted(partition.cells)]


def _count_neighbours(splitter: set[int], neighbours: Neighbours) -> dict[int, int]:
    """Count each vertex's neighbours in a cell; omit vertices with none."""
    counts: dict[int, int] = {}
    for vertex in splitter:
        for near in neighbours[vertex]:
            counts[near] = counts.get(near, 0) + 1
    return counts


class _Partition:
    """Ordered cells, each identified by the number of vertices before it.

    Attributes:
        cells: the vertices of each cell.
        start: the cell of every vertex.
        splitters: the cells, in order, by which others may still have to be split.
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
        # first in, first out: the order of splits is a part of the canonical form
        self.splitters = deque(self.cells)
        self._is_waiting = set(self.splitters)

    def pop_splitter(self) -> set[int]:
        first = self.splitters.popleft()
        self._is_waiting.discard(first)
        return self.cells[first]

    def group_by_count(self, counts: dict[int, int]) -> dict[int, dict[int, set[int]]]:
        """Group the counted vertices of each cell that can be split by their counts."""
        touched: dict[int, dict[int, set[int]]] = {}
        for vertex, count in counts.items():
            first = self.start[vertex]
            if len(self.cells[first]) > 1:
                touched.setdefault(first, {}).setdefault(count, set()).add(vertex)
        return touched

    def split(self, first: int, by_count: dict[int, set[int]]) -> None:
        """Split a cell by the counts of its vertices; vertices without one come first.

        If the whole cell was a splitter before, all parts but one need to be splitters.
        The one left out is the largest, to save work, and the first of the largest, so
        that the choice does not depend on the numbering of vertices.
        """
        begins = self._make_parts(first, by_count)
        if first not in self._is_waiting:
            begins.remove(max(begins, key=lambda part: len(self.cells[part])))
        new_splitters = [
            first_vertex
            for first_vertex in begins
            if first_vertex not in self._is_waiting
        ]
        self.splitters += new_splitters
        self._is_waiting.update(new_splitters)

    def _make_parts(self, first: int, by_count: dict[int, set[int]]) -> list[int]:
        """Make the parts without a loop over the vertices that have no count."""
        cell = self.cells[first]
        vertex_sets = [vertices for _, vertices in sorted(by_count.items())]
        for vertices in vertex_sets:
            cell -= vertices
        if not cell:
            self.cells[first] = vertex_sets.pop(0)
        begins = [first]
        for vertices in vertex_sets:
            first += len(self.cells[begins[-1]])
            begins.append(first)
            self.cells[first] = vertices
            for vertex in vertices:
                self.start[vertex] = first
        return begins
