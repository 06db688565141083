"""DISTAL's commands: the schedules of its tables, and what is refused."""

from __future__ import annotations

import pytest

from benchmarks.papers.distal import start_commands
from benchmarks.papers.schedules import make_named_plan
from feinsum.errors import PlanError
from tests.distributed.cases import by_numpy, einsum_of, operands_of

PRODUCT = einsum_of("ij,jk->ik", i=24, j=24, k=24)
MTTKRP = einsum_of("ijk,ja,ka->ia", i=8, j=8, k=8, a=5)


def on_square(q: int):
    """The first lines of Cannon, PUMMA and SUMMA."""
    begun = start_commands(PRODUCT).distribute(
        ["i", "k"], ["io", "ko"], ["ii", "ki"], [q, q]
    )
    return begun.format("A", "ij->ij").format("B", "jk->jk").format("out", "ik->ik")


def summa(q: int):
    made = on_square(q).split("j", "jo", "ji", 24 // q)
    made = made.reorder("io", "ko", "jo", "ii", "ki", "ji")
    return made.communicate(["out"], "ko").communicate(["A", "B"], "jo")


def turned(q: int, by: list[str]):
    made = on_square(q).divide("j", "jo", "ji", q)
    made = made.reorder("io", "ko", "jo", "ii", "ki", "ji").rotate("jo", by, "js")
    return made.communicate(["out"], "ko").communicate(["A", "B"], "js")


def johnson(q: int):
    made = start_commands(PRODUCT).distribute(
        ["i", "k", "j"], ["io", "ko", "jo"], ["ii", "ki", "ji"], [q, q, q]
    )
    made = made.communicate(["A", "B", "out"], "jo").substitute(["ii", "ki", "ji"])
    return made.format("A", "ij->i0j").format("B", "jk->0kj")


def solomonik(q: int, c: int):
    made = start_commands(PRODUCT).distribute(
        ["i", "k", "j"], ["io", "ko", "jo"], ["ii", "ki", "ji"], [q, q, c]
    )
    made = made.divide("ji", "jt", "jr", q // c)
    made = made.reorder("jt", "ii", "ki", "jr").rotate("jt", ["io", "ko"], "js")
    made = made.communicate(["A", "B"], "js").communicate(["out"], "jo")
    return made.format("A", "ij->ij0").format("B", "jk->jk0")


def ballard(grid: list[int]):
    made = start_commands(MTTKRP).distribute(
        ["i", "j", "k"], ["io", "jo", "ko"], ["ii", "ji", "ki"], grid
    )
    made = made.communicate(["A", "B", "C", "out"], "ko")
    made = made.format("A", "xyz->xyz").format("B", "ya->0y0")
    return made.format("C", "za->00z")


TABLE = {
    "summa": (summa(3), 9),
    "pumma": (turned(3, ["io"]), 9),
    "cannon": (turned(3, ["io", "ko"]), 9),
    "johnson": (johnson(2), 8),
    "2.5d": (solomonik(2, 2), 8),
    "ballard": (ballard([2, 2, 2]), 8),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_tables_of_the_paper(name):
    """Its commands give the schedule that is made by name."""
    written, processes = TABLE[name]
    einsum = written.einsum
    made = written.plan()
    named = make_named_plan(name, einsum, processes=processes)
    assert made.schedules[0].machine == named.schedules[0].machine
    assert made.schedules[0].axes == named.schedules[0].axes
    assert made.counts == named.counts
    operands = operands_of(einsum)
    assert (made.simulate(operands) == by_numpy(einsum, operands)).all()


@pytest.mark.parametrize(
    ("subscripts", "indices", "grid", "moved"),
    [
        ("ijk,k->ij", ["i", "j"], [2, 4], 7 * 8),
        ("ijk,kl->ijl", ["i"], [8], 7 * 64),
        ("ijk,ijk->", ["i", "j", "k"], [2, 2, 2], 7),
    ],
)
def test_other_kernels_of_the_paper(subscripts, indices, grid, moved):
    """TTV and TTM fetch the small operand, an inner product reduces 7 scalars."""
    einsum = einsum_of(subscripts, every=8)
    outer, inner = [f"{i}o" for i in indices], [f"{i}i" for i in indices]
    made = start_commands(einsum).distribute(indices, outer, inner, grid).plan()
    assert made.counts.moved == moved
    operands = operands_of(einsum)
    assert (made.simulate(operands) == by_numpy(einsum, operands)).all()


def test_a_product_is_computed_where_it_is_needed():
    """The Khatri-Rao product of MTTKRP as a statement, without messages of its own."""
    written = start_commands(MTTKRP).distribute(["i"], ["io"], ["ii"], [4])
    first = written.precompute(["B", "C"], "W").plan()
    assert [str(g) for g in first.groups] == [
        "W[j,a,k] = B[j,a] * C[k,a]",
        "out[i,a] = A[i,j,k] * W[j,a,k]",
    ]
    assert first.counts.moved == written.plan().counts.moved
    operands = operands_of(MTTKRP)
    found = first.simulate(operands)["out"]
    assert (found == by_numpy(MTTKRP, operands)).all()


P = start_commands(PRODUCT)
WRONG = {
    "leaf": (lambda: johnson(2).substitute(["ii", "ki", "ji"], "fe2-0"), "the leaf is"),
    "few": (lambda: johnson(2).plan(processes=7), "needs 8 processes"),
    "unknown": (lambda: P.divide("z", "zo", "zi", 2), "no loop 'z'"),
    "taken": (lambda: P.divide("i", "k", "ii", 2), "called 'k' already"),
    "parts": (lambda: P.divide("i", "io", "ii", 0), "expected 1 or more"),
    "size": (lambda: P.split("i", "io", "ii", 0), "expected 1 or more"),
    "outer": (lambda: P.divide("i", "a", "b", 2).divide("a", "c", "d", 2), "below it"),
    "collapsed": (lambda: P.collapse("i", "k", "f").divide("f", "a", "b", 2), "boxes"),
    "apart": (lambda: P.collapse("i", "j", "f"), "not adjacent"),
    "twice": (lambda: P.reorder("i", "i"), "twice"),
    "undivided": (lambda: P.distribute(["i"]), "divide it"),
    "lengths": (lambda: P.distribute(["i"], ["io"], ["ii"], [2, 2]), "lengths"),
    "tensor": (lambda: P.communicate(["Z"], "i"), "no such tensor"),
    "not distributed": (lambda: P.rotate("j", ["i"], "js"), "not distributed"),
    "rotate collapsed": (
        lambda: (
            P.divide("i", "a", "b", 2).divide("k", "c", "d", 2).divide("j", "e", "g", 2)
            .reorder("a", "c", "b", "d", "e", "g").collapse("a", "c", "f")
            .distribute(["f"]).rotate("e", ["f"], "s")
        ),
        "which is collapsed",
    ),
    "inner": (lambda: johnson(2).substitute(["io"]), "not the innermost"),
    "order": (
        lambda: (
            P.divide("i", "io", "ii", 2).reorder("k", "io").distribute(["io"]).plan()
        ),
        "reorder them",
    ),
    "changed": (lambda: johnson(2).divide("io", "a", "b", 2), "counts parts"),
    "fetched once": (
        lambda: summa(3).communicate(["A"], "ko").plan(),
        "cannot be fetched only at ko",
    ),
    "two in time": (
        lambda: summa(3).divide("ii", "a", "b", 2).communicate(["out"], "a").plan(),
        "expected one",
    ),
    "product": (lambda: P.precompute(["A"], "W"), "expected operands"),
    "summed": (
        lambda: start_commands(einsum_of("ijk,jk,ka->ia", every=4))
        .distribute(["j"], ["jo"], ["ji"], [2])
        .precompute(["A", "B"], "W")
        .plan(),
        "its sum over j is distributed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_no_plan_can_be_is_refused(name):
    """With what is wrong and what can be done."""
    make, words = WRONG[name]
    with pytest.raises((ValueError, PlanError), match=words):
        make()
