"""The canonical form of a batched einsum and the key of its workload.

Source: paper, section 6 (algorithm 3).
"""

from __future__ import annotations

import hashlib
import string
from dataclasses import dataclass
from functools import cached_property
from typing import NewType

from constantdict import constantdict

from feinsum.canonical.graph import InducedGraph, induced_graph
from feinsum.canonical.nauty import CANONICALIZER, canonical_places
from feinsum.canonical.relabeling import Relabeling
from feinsum.ir import BatchedEinsum, IndexList, require_einsum, to_text

__all__ = [
    "FORM_VERSION",
    "CanonicalForm",
    "WorkloadKey",
    "canonicalize",
    "canonicalize_einsum",
]

FORM_VERSION = "fe1"
"""Version of the canonical form; part of every workload key."""

WorkloadKey = NewType("WorkloadKey", str)
"""Names a class of isomorphic batched einsums: version, canonicalizer, digest."""


@dataclass(frozen=True)
class CanonicalForm:
    """The normal form of a class of isomorphic batched einsums.

    Attributes:
        einsum: the canonical einsum; equal for isomorphic einsums.
        relabeling: the isomorphism from the given einsum to :attr:`einsum`.
    """

    einsum: BatchedEinsum
    relabeling: Relabeling

    @cached_property
    def text(self) -> str:
        """The canonical einsum as text: what the key digests."""
        return to_text(self.einsum)

    @cached_property
    def key(self) -> WorkloadKey:
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:40]
        return WorkloadKey(f"{FORM_VERSION}-{CANONICALIZER}-{digest}")


def canonicalize(einsum: BatchedEinsum) -> CanonicalForm:
    """The canonical form of ``einsum``.

    Einsums that differ in names, in the order of rows or in the order of the
    operands (of each row on its own) have equal canonical forms; any others
    have different ones.

    Complexity: that of nauty on a graph with a vertex per index, axis of a
    distinct term, use and row; exponential in the worst case only.

    Source: paper, section 6, algorithm 3.

    >>> from feinsum.ir import array, einsum
    >>> A, B = array("A", (3, 4)), array("B", (4, 5))
    >>> first, second = einsum("ij,jk", A, B), einsum("zw,Yz->Yw", B, A)
    >>> canonicalize(first).key == canonicalize(second).key
    True
    """
    graph = induced_graph(require_einsum(einsum))
    places = canonical_places(graph.colors, graph.edges)
    relabeling = _relabeling(einsum, graph, places)
    return CanonicalForm(relabeling.apply(einsum), relabeling)


def canonicalize_einsum(einsum: BatchedEinsum) -> BatchedEinsum:
    """The canonical einsum alone; the name is the paper's.

    >>> from feinsum.ir import array, einsum
    >>> print(canonicalize_einsum(einsum("pq->q", array("M", (3, 4)))).subscripts)
    ba->a
    """
    return canonicalize(einsum).einsum


def _relabeling(
    einsum: BatchedEinsum, graph: InducedGraph, places: list[int]
) -> Relabeling:
    """Order everything by the places of vertices, and name it in that order."""
    rows = tuple(range(einsum.batch_size))
    if graph.row_vertices:
        rows = tuple(sorted(rows, key=lambda k: places[graph.row_vertices[k]]))
    positions = tuple(_positions(einsum, graph, places, row) for row in rows)
    terms = [einsum.inputs[p] for p in positions[0]]
    indices = dict.fromkeys((*einsum.output, *(i for term in terms for i in term)))
    operands = dict.fromkeys(
        einsum.rows[row][p].name
        for row, order in zip(rows, positions, strict=True)
        for p in order
    )
    params = dict.fromkeys(
        extent.name
        for index in indices
        if not isinstance(extent := einsum.extents[index], int)
    )
    return Relabeling(
        constantdict(zip(indices, _index_names(len(indices)), strict=True)),
        constantdict({name: f"A{k}" for k, name in enumerate(operands)}),
        constantdict({name: f"N{k}" for k, name in enumerate(params)}),
        rows,
        positions,
    )


def _positions(
    einsum: BatchedEinsum, graph: InducedGraph, places: list[int], row: int
) -> tuple[int, ...]:
    """The positions of one row: by the place of the term, then of the use."""
    operands = einsum.rows[row]

    def place(p: int) -> tuple[int, int]:
        term = einsum.inputs[p]
        use = operands[p], term
        return places[graph.term_vertices[term]], places[graph.use_vertices[use]]

    return tuple(sorted(range(einsum.n_operands), key=place))


def _index_names(n: int) -> IndexList:
    if n <= len(string.ascii_lowercase):
        return tuple(string.ascii_lowercase[:n])
    return tuple(f"i{k}" for k in range(n))
