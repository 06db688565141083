"""Bounds of programs: shared arrays count once, and no schedule moves less."""

from __future__ import annotations

import random

import pytest

from feinsum.bounds import FastMemory, MemoryLevel, compute_bound, compute_least_bytes
from feinsum.bounds.programs import bound_program_traffic, count_compulsory_bytes
from feinsum.errors import BoundError
from feinsum.ir import array, einsum
from feinsum.ir.text import program_from_text
from tests.bounds.simulate import least_moved, nest

ENTRY = 8
LEVELS = [MemoryLevel("fast", 1000 * ENTRY), MemoryLevel("slow", None)]

BICG = """\
A[m,n]:<f8
p[n]:<f8
r[m]:<f8
q[i] = sum x0 * x1 : A[i,j], p[j]
s[j] = sum x0 * x1 : A[i,j], r[i]
-> q, s
"""
GESUMMV = """\
A[n,n]:<f8
B[n,n]:<f8
x[n]:<f8
u[i] = sum x0 * x1 : A[i,j], x[j]
v[i] = sum x0 * x1 : B[i,j], x[j]
y[i] = map 1.5 * x0 + 1.2 * x1 : u[i], v[i]
-> y
"""
MVT = """\
A[n,n]:<f8
b[n]:<f8
c[n]:<f8
u[i] = sum x0 * x1 : A[i,j], b[j]
v[i] = sum x0 * x1 : A[j,i], c[j]
-> u, v
"""
ATTENTION = """\
X[n,n]:<f8
A[n,n]:<f8
B[n,n]:<f8
C[n,n]:<f8
Q[i,k] = sum x0 * x1 : X[i,j], A[j,k]
K[i,k] = sum x0 * x1 : X[i,j], B[j,k]
V[i,k] = sum x0 * x1 : X[i,j], C[j,k]
-> Q, K, V
"""
THREE_PRODUCTS = """\
A[n,n]:<f8
B[n,n]:<f8
C[n,n]:<f8
D[n,n]:<f8
E[i,k] = sum x0 * x1 : A[i,j], B[j,k]
F[i,k] = sum x0 * x1 : C[i,j], D[j,k]
G[i,k] = sum x0 * x1 : E[i,j], F[j,k]
-> G
"""


def moved(text: str, n_entries: int = 1000, **sizes: int) -> float:
    """The bound of a program, in entries."""
    program = program_from_text(text)
    memory = FastMemory(n_entries * ENTRY)
    (path,) = bound_program_traffic(program, sizes, [memory])
    return path.n_bytes / ENTRY


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        # the orders of magnitude of the table of Kwasniewski et al. 2021
        (BICG, lambda n: n * n + 4 * n),
        (MVT, lambda n: n * n + 4 * n),
        (GESUMMV, lambda n: 2 * n * n + 2 * n),
    ],
    ids=["bicg", "mvt", "gesummv"],
)
def test_statements_that_share_a_matrix_read_it_once(text, entries):
    """Products with vectors use each entry of a matrix a constant number of times."""
    sizes = dict.fromkeys("mn", 700)
    program = program_from_text(text)
    names = {param.name for param in program.size_params}
    sizes = {name: n for name, n in sizes.items() if name in names}
    assert moved(text, **sizes) == entries(700)


def test_products_of_one_form_move_as_much_as_so_many_products():
    """Up to the operand that they share, whose loads are few against the rest."""
    A, B = array("A", (500, 500)), array("B", (500, 500))
    one = compute_least_bytes(einsum("ij,jk->ik", A, B), {}, 1000 * ENTRY) / ENTRY
    assert 2.99 * one < moved(ATTENTION, n=500) < 3.01 * one
    # the two intermediates need not be stored and loaded
    assert moved(THREE_PRODUCTS, n=500) > 3 * one - 4 * 500**2 - 0.01 * one


def test_a_body_that_is_no_product_counts_by_its_arrays():
    """``sum (A[i,j] + B[j,k])`` may be computed as two sums, which read each once."""
    text = """\
A[n,n]:<f8
B[n,n]:<f8
C[i,k] = sum x0 + x1 : A[i,j], B[j,k]
-> C
"""
    assert moved(text, n=300) == 3 * 300**2


def test_an_array_that_a_condition_guards_is_not_surely_read():
    """The values of a condition are read; what it guards may never be."""
    text = """\
A[n]:<f8
C[i] = map x0 if i >= 2 else 0.0 : A[i]
-> C
"""
    guarded = program_from_text(text)
    assert count_compulsory_bytes(guarded, {"n": 50}) == 50 * ENTRY


def test_levels_of_a_program_are_those_of_an_einsum():
    """One statement is bounded as the einsum that it is."""
    text = """\
A[n,n]:<f8
B[n,n]:<f8
C[i,k] = sum x0 * x1 : A[i,j], B[j,k]
-> C
"""
    product = einsum("ij,jk->ik", array("A", ("n", "n")), array("B", ("n", "n")))
    program = compute_bound(program_from_text(text), {"n": 400}, LEVELS)
    single = compute_bound(product, {"n": 400}, LEVELS)
    assert program.level("slow").n_bytes == single.level("slow").n_bytes
    assert program.compulsory_bytes == single.compulsory_bytes
    assert program.level("slow").steps == ("C",)
    assert "as written" in str(program)


def test_a_size_without_a_value_is_named():
    with pytest.raises(BoundError, match="'n' has no value"):
        compute_bound(program_from_text(MVT), {}, LEVELS)


@pytest.mark.parametrize("seed", range(40))
def test_no_bound_is_above_what_a_random_schedule_moves(seed):
    """Random chains and siblings, loops, tiles, interleavings and memories."""
    rng = random.Random(seed)
    text = rng.choice([BICG, GESUMMV, MVT, ATTENTION, THREE_PRODUCTS])
    program = program_from_text(text)
    longest = 5 if text in (ATTENTION, THREE_PRODUCTS) else 12
    n = rng.randint(3, longest)
    sizes = {param.name: n for param in program.size_params}
    inputs = {operand.name for operand in program.inputs}
    nests = []
    for statement in program.statements:
        kind = "result" if statement.result in program.outputs else "made"
        reads = [
            (name, term, "input" if name in inputs else "product")
            for name, term in zip(statement.operands, statement.inputs, strict=True)
        ]
        loops = list(statement.indices)
        rng.shuffle(loops)
        tiles = {index: rng.randint(1, n) for index in loops}
        accesses = [*reads, (statement.result, statement.output, kind)]
        nests.append(list(nest(accesses, loops, dict.fromkeys(loops, n), tiles)))
    if text not in (GESUMMV, THREE_PRODUCTS) and rng.random() < 0.7:
        # the statements do not depend on each other: their steps may take turns
        steps = [step for turn in zip(*nests, strict=True) for step in turn]
    else:
        steps = [step for its in nests for step in its]
    capacity = 3 + rng.choice([0, 1, 2, 4, 8, 16])
    (path,) = bound_program_traffic(program, sizes, [FastMemory(capacity * ENTRY)])
    assert path.n_bytes <= least_moved(steps, capacity) * ENTRY


def test_an_array_and_its_view_are_one_array():
    """One load may serve both, so only the larger excess counts."""
    viewed = """\
A[30,30]:<f8
B[30,30]:<f8
C[45,30]:<f8
r[i,j] = sum x0*x1 : A[i,k], B[k,j]
v[a,b] = numpy reshape(x0, (20, 45)) : A[c,d]
s[i,j] = sum x0*x1 : v[i,k], C[k,j]
-> r, s
"""
    apart = viewed.replace(": v[i,k]", ": D[i,k]").replace("-> ", "-> v, ")
    apart = apart.replace("C[45", "D[20,45]:<f8\nC[45")
    for text, n_counted in ((viewed, 1), (apart, 2)):
        memory = FastMemory(20 * ENTRY)
        (path,) = bound_program_traffic(program_from_text(text), {}, [memory])
        assert len(path.steps) == n_counted
