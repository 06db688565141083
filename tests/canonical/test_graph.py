"""The induced graph determines the einsum, and nothing in it depends on names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feinsum.canonical import InducedGraph, build_induced_graph
from feinsum.ir import BatchedEinsum
from tests.canonical.reconstruction import reconstruct
from tests.canonical.test_oracles import is_isomorphic_by_search, is_isomorphic_by_vf2
from tests.strategies import counts, einsums


@counts(150, 20_000)
@given(einsums(), st.randoms(use_true_random=False))
def test_graph_determines_the_einsum(e: BatchedEinsum, random: st.Random) -> None:
    """What is reconstructed from colors and edges alone is isomorphic to the einsum.

    The vertices are renumbered and all else that the graph knows is thrown away.
    """
    found = reconstruct(anonymous(build_induced_graph(e), random))
    assert is_isomorphic_by_vf2(found, e)


@given(einsums(n_indices=4, n_terms=3, n_rows=2), st.randoms(use_true_random=False))
def test_reconstruction_by_the_definition(e: BatchedEinsum, random: st.Random) -> None:
    """The same law, with the definition of isomorphism as the judge."""
    found = reconstruct(anonymous(build_induced_graph(e), random))
    assert is_isomorphic_by_search(found, e)


@given(einsums())
def test_edges_are_simple(e: BatchedEinsum) -> None:
    """No vertex is its own neighbour, and no edge is there twice: nauty sees all."""
    edges = [frozenset(edge) for edge in build_induced_graph(e).edges]
    assert all(len(edge) == 2 for edge in edges)
    assert len(set(edges)) == len(edges)


def anonymous(graph: InducedGraph, random: st.Random) -> InducedGraph:
    """The colors and edges of a graph whose vertices have other numbers."""
    new = list(range(len(graph.colors)))
    random.shuffle(new)
    colors = dict(zip(new, graph.colors, strict=True))
    edges = [(new[v], new[u]) for u, v in graph.edges]
    random.shuffle(edges)
    return InducedGraph([colors[v] for v in range(len(new))], edges)
