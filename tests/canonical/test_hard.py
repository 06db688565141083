"""Right keys for einsums that are large, symmetric or hard to tell apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from random import Random

import networkx as nx
import pytest

from feinsum.canonical import build_induced_graph, canonicalize
from feinsum.errors import CanonicalizationError
from feinsum.ir import BatchedEinsum
from tests.canonical import graphs as g
from tests.canonical import instances as e
from tests.canonical.respell import respelled

Build = Callable[[], BatchedEinsum]

LONG = pytest.mark.long

CYCLIC_STS = g.cyclic_blocks(13, (0, 1, 4), (0, 2, 7))
"""The cyclic one of the two Steiner triple systems on 13 points."""

BASES = {
    "K4": nx.complete_graph(4),
    "K33": nx.complete_bipartite_graph(3, 3),
    "cube": nx.cubical_graph(),
    "Petersen": nx.petersen_graph(),
    "K5": nx.complete_graph(5),
    "Heawood": nx.heawood_graph(),
    "Frucht": nx.frucht_graph(),
    "dodecahedron": nx.dodecahedral_graph(),
    "rigid14": g.cubic(14, 1),
    "rigid20": g.cubic(20, 1),
    "rigid28": g.cubic(28, 1),
}
"""What graphs of Cai, Fürer and Immerman are built over."""

LONG_BASES = {"Frucht", "dodecahedron", "rigid14", "rigid20", "rigid28"}

TOO_HARD = {"CFI rigid20", "CFI rigid20 twisted", "CFI rigid28", "CFI rigid28 twisted"}
"""Instances that may be refused, by an error; never a wrong key, never a hang."""


def neighbourhoods(is_complement: bool) -> list[list[int]]:
    """Of every vertex of ten small cubic graphs those near it, or all that are not.

    nauty alone is slow with the second, whose graph is connected and dense.
    """
    union = nx.disjoint_union_all([g.cubic(6, seed) for seed in range(10)])
    everyone = set(union)
    return [
        sorted(everyone - set(union[v]) if is_complement else union[v]) for v in union
    ]


GRAPHS: dict[str, Callable[[], nx.Graph]] = {
    "rook": g.rook,
    "Shrikhande": g.shrikhande,
    "C12": lambda: nx.cycle_graph(12),
    "C6+C6": lambda: nx.disjoint_union(nx.cycle_graph(6), nx.cycle_graph(6)),
    "T(8)": g.triangular,
    **{f"Chang {k}": lambda k=k: g.chang(k) for k in range(3)},
    **{f"Paley {q}": lambda q=q: g.paley(q) for q in (13, 17, 29)},
    **{f"Paley {q} switched": lambda q=q: g.switched(g.paley(q)) for q in (13, 17, 29)},
    **{f"CFI {b}": lambda b=b: g.cfi(BASES[b]) for b in BASES},
    **{f"CFI {b} twisted": lambda b=b: g.cfi(BASES[b], twisted=True) for b in BASES},
}

LONG_GRAPHS = {f"CFI {b}{mate}" for b in LONG_BASES for mate in ("", " twisted")}

EINSUMS: dict[str, Build] = {
    "ring 50": lambda: e.ring(50),
    "chain 50": lambda: e.chain(50),
    "chain 50 literal": lambda: e.chain(50, "literal"),
    "chain 50 alternating": lambda: e.chain(50, "alternating"),
    "chain 50 of one matrix": lambda: e.chain(50, same=True),
    "hadamard 60": lambda: e.hadamard(60),
    "hadamard 60 of one vector": lambda: e.hadamard(60, same=True),
    "scalars 50": lambda: e.scalar_product(50),
    "K12": lambda: e.complete_network(12),
    "K12 cyclic": lambda: e.cyclic_network(12),
    "DG 32": lambda: e.dg_batch(32),
    "DG 32, two alike": lambda: e.dg_batch(32, same=1),
    "DG 32, three alike": lambda: e.dg_batch(32, same=2),
    "network rook": lambda: e.network(g.rook()),
    "network Shrikhande": lambda: e.network(g.shrikhande()),
    "Fano": lambda: e.incidence_batch(g.cyclic_blocks(7, (0, 1, 3))),
    "no plane": lambda: e.incidence_batch(g.cyclic_blocks(7, (0, 1, 2))),
    "STS(13) cyclic": lambda: e.incidence_batch(CYCLIC_STS),
    "STS(13) other": lambda: e.incidence_batch(g.pasch_switched(CYCLIC_STS)),
    "neighbours": lambda: e.incidence_batch(neighbourhoods(False)),
    "no neighbours": lambda: e.incidence_batch(neighbourhoods(True)),
    "edges rook": lambda: e.incidence_batch(g.rook().edges),
    "edges Shrikhande": lambda: e.incidence_batch(g.shrikhande().edges),
    **{name: lambda b=build: e.adjacency(b()) for name, build in GRAPHS.items()},
}

MATES = [
    ("ring 50", "chain 50"),
    ("chain 50", "chain 50 literal", "chain 50 alternating", "chain 50 of one matrix"),
    ("hadamard 60", "hadamard 60 of one vector"),
    ("scalars 50", "hadamard 60"),
    ("K12", "K12 cyclic"),
    ("DG 32", "DG 32, two alike", "DG 32, three alike"),
    ("network rook", "network Shrikhande"),
    ("edges rook", "edges Shrikhande"),
    ("neighbours", "no neighbours"),
    ("Fano", "no plane"),
    ("STS(13) cyclic", "STS(13) other"),
]
"""Not isomorphic: of other sizes, extents or arrays, or as the tests below say."""

GRAPH_MATES = [
    ("rook", "Shrikhande"),
    ("C12", "C6+C6"),
    ("T(8)", "Chang 0", "Chang 1", "Chang 2"),
    *((f"Paley {q}", f"Paley {q} switched") for q in (13, 17, 29)),
    *((f"CFI {b}", f"CFI {b} twisted") for b in BASES),
]
"""Graphs of equal degrees that are not isomorphic."""

THOUSANDS: dict[str, Build] = {
    "chain": lambda: e.chain(1000),
    "ring": lambda: e.ring(1000),
    "hadamard": lambda: e.hadamard(1000),
    "hadamard of one vector": lambda: e.hadamard(1000, same=True),
    "rows": lambda: e.dg_batch(1000),
    "scalars": lambda: e.scalar_product(1000),
}


def marked(names: Iterable[str], long: Iterable[str]):
    """A parameter for each name; some of them only with ``-m long``."""
    return [pytest.param(name, marks=LONG if name in long else ()) for name in names]


def marked_mates(mates: Iterable[tuple[str, ...]]):
    """A parameter for each tuple of names."""
    return [
        pytest.param(names, marks=LONG if LONG_GRAPHS & {*names} else (), id=names[0])
        for names in mates
    ]


def keys(names: Iterable[str], einsums: Iterable[BatchedEinsum]) -> list[str]:
    """Their keys; those of instances that may be refused, and are, are left out."""
    found = []
    for name, einsum in zip(names, einsums, strict=True):
        try:
            found.append(canonicalize(einsum).key)
        except CanonicalizationError as error:
            if name not in TOO_HARD or "einsum" not in str(error):
                raise
    return found


@pytest.mark.parametrize("name", marked(EINSUMS, {"Paley 29 switched", *LONG_GRAPHS}))
def test_a_relabeling_has_the_same_key(name):
    """Other names and another order do not change the key of any instance."""
    einsum = EINSUMS[name]()
    spellings = [einsum, respelled(einsum, 1)]
    assert spellings[0] != spellings[1]
    assert len(set(keys([name] * 2, spellings))) <= 1


@pytest.mark.parametrize("name", marked(GRAPHS, {*[*GRAPHS][1::2], *LONG_GRAPHS}))
def test_a_graph_in_another_order_has_the_same_key(name):
    """The key of a graph does not depend on the numbers of its vertices."""
    graph = GRAPHS[name]()
    einsums = [e.adjacency(graph), e.adjacency(g.shuffled(graph, 7))]
    assert len(set(keys([name] * 2, einsums))) <= 1


@pytest.mark.parametrize("names", marked_mates(MATES + GRAPH_MATES))
def test_mates_have_different_keys(names):
    """Instances that are not isomorphic have different keys, however alike."""
    found = keys(names, [EINSUMS[name]() for name in names])
    assert len(set(found)) == len(found)
    assert len(found) == len(names) or TOO_HARD.issuperset(names)


@pytest.mark.parametrize("name", marked(THOUSANDS, {"scalars"}))
def test_a_thousand_operands_or_rows(name):
    """Neither depth nor size is a limit: the key of a thousand is that of a spelling.

    A form of so many can be applied, and is its own form.
    """
    einsum = THOUSANDS[name]()
    form = canonicalize(einsum)
    assert form.relabeling.apply(einsum) == form.einsum
    assert canonicalize(respelled(einsum, 2)).key == form.key


def test_threads_find_the_same_keys():
    """Eight threads at once, on spellings of many kinds, get the keys of one."""
    built = [(n, EINSUMS[n]()) for n in EINSUMS if n not in LONG_GRAPHS]
    small = [(n, x) for n, x in built if len(build_induced_graph(x).colors) < 320]
    assert len(small) >= 20
    expected = {name: canonicalize(einsum).key for name, einsum in small}

    def wrong_ones(seed: int) -> list[str]:
        rng = Random(seed)
        todo = [rng.choice(small) for _ in range(50)]
        spelled = [(name, respelled(einsum, seed)) for name, einsum in todo]
        return [n for n, einsum in spelled if canonicalize(einsum).key != expected[n]]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(wrong_ones, range(8))) == [[]] * 8
