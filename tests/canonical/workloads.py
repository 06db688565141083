"""The workloads of the golden keys, each with a name."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import networkx as nx

from feinsum.ir import BatchedEinsum, Operand, array, batched_einsum, einsum, generalize
from feinsum.suites import read_suite_documents
from tests.canonical import graphs as g
from tests.canonical import instances as e
from tests.canonical.test_cases import DIFFERENT, SAME

__all__ = ["random_einsum", "workloads"]

Named = tuple[str, BatchedEinsum]

DTYPES = ("<f4", "<f8", ">f8", "<c16", "<i4", "|b1")
N_RANDOM = 60


def workloads() -> Iterator[Named]:
    """Every workload that has a golden key; the names are unique."""
    yield from _tccg()
    yield from _dg()
    yield from _cases()
    yield from _batches()
    yield from _notations()
    yield from _extents_and_dtypes()
    yield from _hard()
    for seed in range(N_RANDOM):
        yield f"random {seed}", random_einsum(Random(seed))


def _tccg() -> Iterator[Named]:
    """Contractions of the TCCG suite, as given and with parameters for long extents."""
    for entry in read_suite_documents("tccg"):
        given = _contraction(entry, frozenset(), [["A", "B"]])
        yield f"tccg {entry['name']}", given
        general, sizes = generalize(given)
        if sizes:
            yield f"tccg {entry['name']} generalized", general


def _dg() -> Iterator[Named]:
    """Operators on elements, parametric as given; literal; and generalized again."""
    for entry in read_suite_documents("dgfem"):
        parametric = frozenset(entry["parametric"])
        literal = _contraction(entry, frozenset(), entry["args"])
        yield f"dg {entry['name']}", _contraction(entry, parametric, entry["args"])
        yield f"dg {entry['name']} literal", literal
        yield f"dg {entry['name']} generalized", generalize(literal)[0]


def _contraction(
    entry: dict[str, Any], parametric: frozenset[str], names: list[list[str]]
) -> BatchedEinsum:
    sizes = {i: i if i in parametric else n for i, n in entry["sizes"].items()}
    terms = entry["subscripts"].split("->")[0].split(",")
    shapes = [tuple(sizes[i] for i in term) for term in terms]
    dtype = entry.get("dtype", "float64")
    rows = [
        [array(name, shape, dtype) for name, shape in zip(row, shapes, strict=True)]
        for row in names
    ]
    return batched_einsum(entry["subscripts"], rows)


def _cases() -> Iterator[Named]:
    """What the canonical form must, and must not, tell apart."""
    for kind, cases in (("same", SAME), ("different", DIFFERENT)):
        for name, pair in cases.items():
            for side, einsum_ in zip(("left", "right"), pair, strict=True):
                yield f"{kind}: {name}, {side}", einsum_


def _batches() -> Iterator[Named]:
    """Batches of all sizes, of which rows share arrays in several ways."""
    for b in (*range(1, 9), 16, 32):
        yield f"gradients {b}", e.dg_batch(b)
        matrices = [array(f"A{k}", ("N", 4)) for k in range(b)]
        vectors = [array(f"x{k}", 4) for k in range(b)]
        one_matrix = [[matrices[0], x] for x in vectors]
        one_vector = [[A, vectors[0]] for A in matrices]
        own = [list(pair) for pair in zip(matrices, vectors, strict=True)]
        for how, rows in (("A", one_matrix), ("x", one_vector), ("nothing", own)):
            if b > 1 or how == "nothing":
                yield f"matvecs {b} sharing {how}", batched_einsum("ij,j->i", rows)
    for b in (2, 3, 8):
        yield f"gradients {b} of one field", e.dg_batch(b, same=b - 1)
        ring = [[array(f"x{k}", 4), array(f"x{(k + 1) % b}", 4)] for k in range(b)]
        yield f"products {b} in a ring", batched_einsum("i,i->i", ring)


def _notations() -> Iterator[Named]:
    """Diagonals, multiplicities, rank 0, many indices and names of any language."""
    square, cube = array("A", ("N", "N")), array("C", ("N", "N", "N"))
    x, y, s = array("x", "N"), array("y", "N"), array("s")
    yield "diagonal", einsum("ii->i", square)
    yield "trace", einsum("ii->", square)
    yield "diagonal of pairs", einsum("iij->ij", cube)
    yield "diagonal of outer pairs", einsum("iji->ij", cube)
    yield "trace of outer pairs", einsum("iji->j", cube)
    yield "diagonal of triples", einsum("iii->i", cube)
    yield "matrix times its diagonal", einsum("ij,ii->ij", square, square)
    yield "square and transpose", einsum("ij,ji->", square, square)
    for n in range(2, 5):
        yield f"power {n}", einsum(",".join("i" * n) + "->i", *[x] * n)
        yield f"power {n} and one", einsum(",".join("i" * (n + 1)), *[x] * n, y)
        yield f"sum of power {n}", einsum(",".join("i" * n) + "->", *[x] * n)
    rows = [[x, x, y], [y, y, x], [x, x, x]]
    yield "powers in a batch", batched_einsum("i,i,i->i", rows)
    yield "a row three times", batched_einsum("i,i->i", [[x, x]] * 3 + [[x, y]])
    yield "rank 0", einsum("->", s)
    yield "rank 0 squared", einsum(",->", s, s)
    yield "rank 0 batch", batched_einsum(",->", [[s, s], [s, array("t")]])
    yield "scaled vector", einsum(",i->i", s, x)
    yield "rank 9", einsum("abcdefghi->ihgfedcba", array("T", (2,) * 9))
    yield "chain of 40", e.chain(40)
    yield (
        "outer product of 30",
        einsum(
            ",".join(f"{{i{k}}}" for k in range(30))
            + "->"
            + "".join(f"{{i{k}}}" for k in range(30)),
            *[array(f"x{k}", 2) for k in range(30)],
        ),
    )
    yield (
        "names of any language",
        einsum(
            "{élément}{nœud}, {nœud} -> {élément}",
            array("Größe", ("число", 4)),
            array("ベクトル", 4),
        ),
    )
    yield "Greek indices", einsum("αβ,βγ->αγ", square, array("Δ", ("N", "N")))


def _extents_and_dtypes() -> Iterator[Named]:
    """Extents 0 and 1, long ones, ties between them; every kind of dtype."""
    for shape in ((0, 4), (4, 0), (0, 0), (1, 4), (4, 1), (1, 1), (10**9, 10**9)):
        operands = array("A", shape), array("x", shape[1])
        yield f"matvec of {shape[0]} x {shape[1]}", einsum("ij,j->i", *operands)
    for shape in (("N", "M"), ("N", 1), (0, "N"), ("N", 500)):
        yield (
            f"transpose of {shape[0]} x {shape[1]}",
            einsum("ij->ji", array("A", shape)),
        )
    for dtype in DTYPES:
        A, x = array("A", ("N", 4), dtype), array("x", 4, dtype)
        yield f"matvec of {dtype}", einsum("ij,j->i", A, x)
        mixed = [[A, x], [A, array("y", 4, "<f8")]]
        yield f"matvec of {dtype} and <f8", batched_einsum("ij,j->i", mixed)


def _hard() -> Iterator[Named]:
    """Small ones of the families that are hard to tell apart."""
    for n in (3, 4, 7, 12):
        yield f"ring {n}", e.ring(n)
        yield f"network K{n}", e.complete_network(n)
        yield f"network K{n} cyclic", e.cyclic_network(n)
        yield f"hadamard {n}", e.hadamard(n)
        yield f"scalars {n}", e.scalar_product(n)
        yield f"chain {n}", e.chain(n)
        yield f"chain {n} literal", e.chain(n, "literal")
        yield f"chain {n} alternating", e.chain(n, "alternating")
        yield f"chain {n} of one matrix", e.chain(n, same=True)
    for name, graph in (("rook", g.rook()), ("Shrikhande", g.shrikhande())):
        yield name, e.adjacency(graph)
        yield f"network {name}", e.network(graph)
        yield f"edges {name}", e.incidence_batch(graph.edges)
    for q in (13, 17):
        yield f"Paley {q}", e.adjacency(g.paley(q))
        yield f"Paley {q} switched", e.adjacency(g.switched(g.paley(q)))
    for twisted in (False, True):
        graph = g.cfi(nx.complete_graph(4), twisted=twisted)
        yield f"CFI K4{' twisted' * twisted}", e.adjacency(graph)
        yield f"edges CFI K4{' twisted' * twisted}", e.incidence_batch(graph.edges)
    sts = g.cyclic_blocks(13, (0, 1, 4), (0, 2, 7))
    yield "Fano", e.incidence_batch(g.cyclic_blocks(7, (0, 1, 3)))
    yield "no plane", e.incidence_batch(g.cyclic_blocks(7, (0, 1, 2)))
    yield "STS(13) cyclic", e.incidence_batch(sts)
    yield "STS(13) other", e.incidence_batch(g.pasch_switched(sts))


def random_einsum(rng: Random) -> BatchedEinsum:
    """A well-formed einsum with few kinds of everything, so with much to confuse."""
    extents = {
        i: rng.choice([1, 2, 3, "N", "M"]) for i in "ijklmn"[: rng.randint(1, 6)]
    }
    pool = [
        tuple(rng.choices(list(extents), k=rng.randint(0, 4)))
        for _ in range(rng.randint(1, 4))
    ]
    terms = [rng.choice(pool) for _ in range(rng.randint(1, 5))]
    bound = sorted({index for term in terms for index in term})
    output = rng.sample(bound, rng.randint(0, min(3, len(bound))))
    dtypes = {label: rng.choice(DTYPES) for label in "ABC"}

    def operand(term: tuple[str, ...]) -> Operand:
        label = rng.choice("ABC")
        shape = [extents[index] for index in term]
        return array("_".join([label, *map(str, shape)]), shape, dtypes[label])

    rows = tuple(
        tuple(operand(term) for term in terms) for _ in range(rng.randint(1, 4))
    )
    return BatchedEinsum(tuple(output), tuple(terms), rows)
