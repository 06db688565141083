"""Families of einsums that are large, symmetric or hard to tell apart.

Their graphs are those of :mod:`tests.canonical.graphs`. Everything is a pure
function of its arguments, so that an instance is the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

import networkx as nx

from feinsum.ir import BatchedEinsum, IndexList, Operand, array

__all__ = [
    "adjacency",
    "chain",
    "complete_network",
    "cyclic_network",
    "dg_batch",
    "hadamard",
    "incidence_batch",
    "network",
    "ring",
    "scalar_product",
]

Extents = Literal["symbolic", "literal", "alternating"]


def ring(n: int) -> BatchedEinsum:
    """The trace of a product of n matrices, ``ab,bc,...,za->``: the cycle C_n.

    Its isomorphisms are the rotations; a reflection would transpose the matrices.
    """
    terms = [(f"i{k}", f"i{(k + 1) % n}") for k in range(n)]
    return _einsum(terms, [array(f"M{k}", ("N", "N")) for k in range(n)])


def chain(
    n: int, extents: Extents = "symbolic", *, same: bool = False
) -> BatchedEinsum:
    """A product of n matrices, ``ab,bc,...->az``: the directed path P_n.

    Args:
        n: number of factors.
        extents: all one size parameter, all one number, or two numbers in turn.
        same: whether all factors are one array (then extents do not alternate).
    """
    of: dict[str, tuple[int | str, int | str]] = {
        "symbolic": ("N", "N"),
        "literal": (4, 4),
        "alternating": (4, 5),
    }
    indices = [f"i{k}" for k in range(n + 1)]
    shapes = [(of[extents][k % 2], of[extents][(k + 1) % 2]) for k in range(n)]
    names = ["M" if same else f"M{k}" for k in range(n)]
    factors = [array(name, shape) for name, shape in zip(names, shapes, strict=True)]
    return _einsum(pairwise(indices), factors, (indices[0], indices[-1]))


def hadamard(n: int, *, same: bool = False) -> BatchedEinsum:
    """The product of n vectors of one index: a star with n interchangeable leaves."""
    vectors = [array("x" if same else f"x{k}", "N") for k in range(n)]
    return _einsum([("i",)] * n, vectors, ("i",))


def scalar_product(n: int) -> BatchedEinsum:
    """The product of the sums of n vectors, ``i,j,k,...->``: n disjoint edges."""
    return _einsum(
        [(f"i{k}",) for k in range(n)], [array(f"x{k}", "N") for k in range(n)]
    )


def complete_network(n: int) -> BatchedEinsum:
    """A tensor network over K_n; axes are in the order of the neighbours.

    The order of the axes breaks all symmetry.
    """
    return network(nx.complete_graph(n))


def cyclic_network(n: int) -> BatchedEinsum:
    """A tensor network over K_n; axis d of operand k goes to operand k + 1 + d.

    The rotations of the operands are isomorphisms (a circulant ordering).
    """
    terms = [tuple(_bond(k, (k + 1 + d) % n) for d in range(n - 1)) for k in range(n)]
    return _einsum(terms, [array(f"T{k}", ("N",) * (n - 1)) for k in range(n)])


def network(graph: nx.Graph) -> BatchedEinsum:
    """A tensor network: an operand for each vertex, an index for each edge.

    The axes of an operand are in the order of the neighbours, so isomorphic
    graphs can give einsums that are not; different graphs always do.
    """
    number = {vertex: k for k, vertex in enumerate(graph)}
    terms = [
        tuple(_bond(number[v], k) for k in sorted(number[w] for w in graph[v]))
        for v in graph
    ]
    tensors = [array(f"T{k}", ("N",) * len(term)) for k, term in enumerate(terms)]
    return _einsum(terms, tensors)


def adjacency(graph: nx.Graph) -> BatchedEinsum:
    """The number of homomorphisms of ``graph``: ``A[i,j] A[j,i]`` for each edge ij.

    An index for each vertex, one array for all edges, both orders of each pair:
    two of these einsums are isomorphic exactly if the graphs are. (Without
    isolated vertices, which no factor would mention.)

    Source: Lovász, Operations with structures (1967), for the sum itself.
    """
    assert min(degree for _, degree in graph.degree) > 0
    name = {vertex: f"i{k}" for k, vertex in enumerate(graph)}
    pairs = [(name[u], name[v]) for u, v in graph.edges]
    terms = [term for u, v in pairs for term in ((u, v), (v, u))]
    return _einsum(terms, [array("A", ("N", "N"))] * len(terms))


def dg_batch(b: int, *, same: int = 0) -> BatchedEinsum:
    """Gradients of b fields on elements, ``xre,rij,ej->xei``, of one J and D.

    The rows can be put in any order. The first ``same`` + 1 rows are of one field.
    """
    J, D = array("J", (3, 3, "E")), array("D", (3, 10, 10))
    fields = [array(f"u{max(0, k - same)}", ("E", 10)) for k in range(b)]
    terms = tuple(map(tuple, ("xre", "rij", "ej")))
    return BatchedEinsum(tuple("xei"), terms, tuple((J, D, u) for u in fields))


def incidence_batch(blocks: Iterable[Sequence[Any]]) -> BatchedEinsum:
    """A row for each block of a design: the product of the vectors of its points.

    Blocks have one size. Two of these batches are isomorphic exactly if the
    designs are: rows are blocks, and arrays are points.
    """
    listed = [tuple(block) for block in blocks]
    points = dict.fromkeys(point for block in listed for point in block)
    vectors = {point: array(f"x{k}", "N") for k, point in enumerate(points)}
    rows = tuple(tuple(vectors[point] for point in block) for block in listed)
    return BatchedEinsum(("i",), (("i",),) * len(rows[0]), rows)


def _bond(u: int, v: int) -> str:
    return f"i{min(u, v)}_{max(u, v)}"


def _einsum(
    terms: Iterable[IndexList], operands: Iterable[Operand], output: IndexList = ()
) -> BatchedEinsum:
    return BatchedEinsum(output, tuple(terms), (tuple(operands),))
