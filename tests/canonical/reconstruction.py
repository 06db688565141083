"""From the induced graph back to an einsum: nothing is lost in the graph."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from feinsum.canonical.graph import InducedGraph
from feinsum.ir import BatchedEinsum, Extent, IndexList, Operand, SizeParam
from feinsum.ir.operand import STORAGES


def reconstruct(graph: InducedGraph) -> BatchedEinsum:
    """An einsum of the class whose induced graph this is.

    It is found from colors and edges alone. Names are numbers of vertices.

    >>> from feinsum.canonical.graph import build_induced_graph
    >>> from feinsum.ir import array, einsum
    >>> graph = build_induced_graph(einsum("ij,j->i", array("A", ("N", 4)),
    ...     array("x", 4)))
    >>> print(reconstruct(graph))
    {i0}{i2}, {i2} -> {i0} of (A6 A7) with A6[N1,4]:<f8, A7[4]:<f8
    """
    return _Reconstruction(graph).einsum()


def stored(text: str) -> tuple[str, str]:
    """The storage and the dtype in the color of a use."""
    storage = next(s for s in reversed(STORAGES) if text.startswith(s))
    return storage, text.removeprefix(storage)


class _Reconstruction:
    """The vertices of each kind, and the neighbours of a vertex by kind."""

    def __init__(self, graph: InducedGraph) -> None:
        self.colors = graph.colors
        self.near: dict[tuple[int, str], list[int]] = defaultdict(list)
        for u, v in graph.edges:
            self.near[u, self.colors[v][0]].append(v)
            self.near[v, self.colors[u][0]].append(u)

    def einsum(self) -> BatchedEinsum:
        rows = [self.factors(row) for row in self.vertices("row")] or [self.only_row()]
        free = [v for v in self.vertices("index") if self.colors[v][1] >= 0]
        free.sort(key=lambda v: self.colors[v][1])
        return BatchedEinsum(
            tuple(f"i{v}" for v in free),
            tuple(self.term(use) for use in rows[0]),
            tuple(tuple(self.operand(use) for use in row) for row in rows),
        )

    def vertices(self, kind: str) -> list[int]:
        return [v for v, color in enumerate(self.colors) if color[0] == kind]

    def only_row(self) -> list[int]:
        """The uses of a batch of one row, as often as they are multiplied."""
        uses = [use for use in self.vertices("use") for _ in range(self.colors[use][1])]
        return sorted(uses, key=self.axis)

    def factors(self, row: int) -> list[int]:
        """The uses of a row, as often as it multiplies them, by term."""
        uses = list(self.near[row, "use"])
        for between in self.near[row, "times"]:
            uses += self.near[between, "use"] * self.colors[between][1]
        return sorted(uses, key=lambda use: (self.axis(use), not self.storage(use)))

    def storage(self, use: int) -> str:
        """How the operand of a use is stored."""
        return stored(self.colors[use][3])[0]

    def axis(self, use: int) -> int:
        """The first axis of the term of a use."""
        (axis,) = self.near[use, "axis"]
        return axis

    def term(self, use: int) -> IndexList:
        return tuple(f"i{index}" for index in self.indices(use))

    def indices(self, use: int) -> list[int]:
        """The indices along the path of axes that begins at the term of a use."""
        found = []
        path = [self.axis(use)]
        while path:
            (axis,) = path
            found += self.near[axis, "index"]
            place = self.colors[axis][1]
            path = [
                v for v in self.near[axis, "axis"] if self.colors[v][1] == place + 1
            ]
        return found

    def operand(self, use: int) -> Operand:
        array = next(iter(self.near[use, "array"]), use)
        shape = tuple(self.extent(index) for index in self.indices(use))
        storage, dtype = stored(self.colors[use][3])
        return Operand(f"A{array}", shape, np.dtype(dtype), storage)

    def extent(self, index: int) -> Extent:
        for param in self.near[index, "size-param"]:
            return SizeParam(f"N{param}")
        return self.colors[index][2]
