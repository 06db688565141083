"""Graphs and designs that simple invariants do not tell apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, combinations, product
from random import Random
from typing import Any

import networkx as nx

__all__ = [
    "cfi",
    "chang",
    "cubic",
    "cyclic_blocks",
    "paley",
    "pasch_configurations",
    "pasch_switched",
    "rook",
    "shrikhande",
    "shuffled",
    "switched",
    "triangular",
]

Block = frozenset[int]
Vertex = Any


def shuffled(graph: nx.Graph, seed: int = 0) -> nx.Graph:
    """The graph with its vertices numbered, and listed, at random."""
    rng = Random(seed)
    numbers = list(range(len(graph)))
    rng.shuffle(numbers)
    renamed = nx.relabel_nodes(graph, dict(zip(graph, numbers, strict=True)))
    edges = list(renamed.edges)
    rng.shuffle(edges)
    result = nx.Graph()
    result.add_nodes_from(sorted(renamed))
    result.add_edges_from(edges)
    return result


def switched(graph: nx.Graph) -> nx.Graph:
    """Two disjoint edges ab, cd become ac, bd: all degrees stay.

    Of a strongly regular graph the result is none.
    """
    for (a, b), (c, d) in combinations(graph.edges, 2):
        is_free = not (graph.has_edge(a, c) or graph.has_edge(b, d))
        if len({a, b, c, d}) == 4 and is_free:
            result = graph.copy()
            result.remove_edges_from([(a, b), (c, d)])
            result.add_edges_from([(a, c), (b, d)])
            return result
    raise ValueError("no two edges of the graph can be switched")


def rook(n: int = 4) -> nx.Graph:
    """Moves of a rook on n x n squares; srg(16,6,2,2) for n = 4."""
    squares = product(range(n), repeat=2)
    return _graph(squares, lambda u, v: (u[0] == v[0]) != (u[1] == v[1]))


def shrikhande() -> nx.Graph:
    """The other srg(16,6,2,2).

    Source: Shrikhande, The uniqueness of the L2 association scheme (1959), as
    the Cayley graph of Z4 x Z4 of ±(1,0), ±(0,1), ±(1,1).
    """
    steps = {(1, 0), (3, 0), (0, 1), (0, 3), (1, 1), (3, 3)}
    return _graph(
        product(range(4), repeat=2),
        lambda u, v: ((u[0] - v[0]) % 4, (u[1] - v[1]) % 4) in steps,
    )


def paley(q: int) -> nx.Graph:
    """Numbers mod q, a prime 1 mod 4, that differ by a square (Paley 1933)."""
    squares = {x * x % q for x in range(1, q)}
    return _graph(range(q), lambda u, v: (u - v) % q in squares)


def triangular(n: int = 8) -> nx.Graph:
    """T(n): pairs of n things that meet; srg(28,12,6,4) for n = 8."""
    return _graph(combinations(range(n), 2), lambda u, v: len({*u, *v}) == 3)


def chang(which: int) -> nx.Graph:
    """Chang graph 0, 1 or 2: another srg(28,12,6,4).

    T(8) switched (Seidel) with respect to the edges of 4 K_2, C_8 or C_3 + C_5.

    Source: Chang, The uniqueness and nonuniqueness of the triangular
    association schemes (1959); Seidel, Strongly regular graphs (1967).
    """
    cycles = [[(0, 1), (2, 3), (4, 5), (6, 7)], [range(8)], [range(3), range(3, 8)]]
    pairs = {
        tuple(sorted((cycle[k - 1], cycle[k])))
        for cycle in cycles[which]
        for k in range(len(cycle))
    }
    graph = triangular(8)
    crossing = [(u, v) for u in pairs for v in graph if v not in pairs]
    old = [pair for pair in crossing if graph.has_edge(*pair)]
    graph.add_edges_from(crossing)
    graph.remove_edges_from(old)
    return graph


def cubic(n: int, seed: int = 0) -> nx.Graph:
    """A cycle of n vertices (n even) with chords at random; mostly no symmetry.

    Source: Bollobás and Chung, The diameter of a cycle plus a random matching
    (1988).
    """
    rng = Random(seed)
    graph = nx.cycle_graph(n)
    while set(dict(graph.degree).values()) != {3}:
        graph = nx.cycle_graph(n)
        ends = rng.sample(range(n), n)
        graph.add_edges_from(zip(ends[::2], ends[1::2], strict=True))
    return graph


def cfi(base: nx.Graph, *, twisted: bool = False) -> nx.Graph:
    """The graph of Cai, Fürer and Immerman over ``base``, or its twisted mate.

    Every vertex v of the base becomes the even subsets of its edges, and two
    ends (v, e, 0), (v, e, 1) for each edge e; a subset S is joined to the end
    (v, e, 1) if e is in S, and to (v, e, 0) if not. Ends of equal bits of one
    edge are joined; on one edge, if twisted, those of different bits.

    The two are not isomorphic if the base is connected and has no vertex of
    degree 1, and k-dimensional refinement does not tell them apart, for k the
    size of a separator of the base.

    Source: Cai, Fürer, Immerman, An optimal lower bound on the number of
    variables for graph identification (1992).
    """
    graph = nx.Graph()
    edges = [frozenset(edge) for edge in base.edges]
    for v in base:
        ends = [k for k, edge in enumerate(edges) if v in edge]
        sizes = range(0, len(ends) + 1, 2)
        subsets = chain.from_iterable(combinations(ends, size) for size in sizes)
        graph.add_edges_from(
            (("set", v, subset), ("end", v, k, k in subset))
            for subset in subsets
            for k in ends
        )
    for k, (u, v) in enumerate(map(sorted, edges)):
        twist = twisted and k == 0
        graph.add_edges_from(
            (("end", u, k, bit), ("end", v, k, bit != twist)) for bit in (False, True)
        )
    return graph


def cyclic_blocks(n: int, *base_blocks: Iterable[int]) -> list[Block]:
    """The translates mod n of some blocks: (0,1,3) mod 7 is the Fano plane.

    (0,1,4), (0,2,7) mod 13 is one of the two Steiner systems STS(13).
    """
    return [frozenset((x + k) % n for x in b) for b in base_blocks for k in range(n)]


def pasch_configurations(blocks: Iterable[Block]) -> list[tuple[Block, ...]]:
    """Every four blocks on six points: abc, ade, fbd, fce."""
    return [
        four for four in combinations(blocks, 4) if len(frozenset.union(*four)) == 6
    ]


def pasch_switched(blocks: list[Block]) -> list[Block]:
    """One Pasch configuration abc, ade, fbd, fce becomes fbc, fde, abd, ace.

    Of a Steiner triple system the result is one; the cyclic STS(13) becomes the
    other STS(13).

    Source: Mathon, Phelps, Rosa, Small Steiner triple systems (1983).
    """
    four = pasch_configurations(blocks)[0]
    a = min(frozenset.union(*four))
    (f,) = (
        point
        for point in frozenset.union(*four)
        if point != a and not any({a, point} <= block for block in four)
    )
    swap = {a: f, f: a}
    changed = [frozenset(swap.get(point, point) for point in block) for block in four]
    return [block for block in blocks if block not in four] + changed


def _graph(
    vertices: Iterable[Vertex], is_edge: Callable[[Vertex, Vertex], bool]
) -> nx.Graph:
    """The graph that joins the vertices of a symmetric relation."""
    graph = nx.Graph()
    graph.add_nodes_from(vertices)
    pairs = combinations(list(graph), 2)
    graph.add_edges_from(pair for pair in pairs if is_edge(*pair))
    return graph
