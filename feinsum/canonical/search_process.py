"""nauty's search, as a function and as a process that can be stopped.

As a script it serves one request of a :class:`feinsum.processes.Worker`: it reads a
graph as JSON and writes the order of its vertices. It imports only pynauty and the
standard library, so that it starts quickly, and ends itself at its time limit, even if
its parent process has ended.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence

import pynauty


class _Graph(pynauty.Graph):  # type: ignore[misc]
    """A graph without pynauty's checks, which take longer than nauty itself."""

    def __init__(
        self,
        n_vertices: int,
        cells: Sequence[set[int]],
        adjacency: dict[int, list[int]],
    ) -> None:
        self.number_of_vertices = n_vertices
        self.directed = False
        self._adjacency_dict = adjacency
        self._vertex_coloring = cells if len(cells) > 1 else []


def run_nauty(
    n_vertices: int, cells: Sequence[set[int]], edges: Sequence[tuple[int, int]]
) -> list[int]:
    """Order the vertices as in nauty's canonical labelling.

    ``cells`` are those of each color, in the order of the colors; no edge is listed
    twice.

    >>> run_nauty(3, [{1}, {0, 2}], [(0, 1)])
    [1, 0, 2]
    """
    adjacency: dict[int, list[int]] = {}
    # one direction of each edge: pynauty adds the other one
    for u, v in edges:
        if u in adjacency:
            adjacency[u].append(v)
        else:
            adjacency[u] = [v]
    order: list[int] = pynauty.canon_label(_Graph(n_vertices, cells, adjacency))
    return order


if __name__ == "__main__":
    # standard input is the worker's socket, for requests and answers
    with open(0, encoding="utf-8", closefd=False) as requests:
        limit_s, n, cells, edges = json.loads(requests.readline())
    signal.setitimer(signal.ITIMER_REAL, limit_s)  # the signal ends the process
    order = run_nauty(n, [set(cell) for cell in cells], edges)
    with open(0, "w", encoding="utf-8", closefd=False) as answers:
        answers.write(json.dumps(order) + "\n")
