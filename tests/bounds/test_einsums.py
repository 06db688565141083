"""Bounds of einsums: paths, fusions, batches, functions, and input that is refused."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from math import prod

import numpy as np
import pytest
from constantdict import constantdict

from feinsum.bounds import (
    FastMemory,
    MemoryLevel,
    asymptotic,
    certify,
    compute_bound,
    compute_least_bytes,
    finite,
    make_statement,
)
from feinsum.bounds.factors import build_factors
from feinsum.bounds.paths import bound_paths
from feinsum.errors import BoundError
from feinsum.ir import (
    FunctionalBatchedEinsum,
    OperandFunction,
    array,
    batched_einsum,
    einsum,
)

CACHE = 80_000
"""10,000 entries."""


def of(subscripts: str, **extents):
    terms = subscripts.partition("->")[0].split(",")
    shapes = [tuple(extents[i] for i in term) for term in terms]
    operands = [array(f"A{k}", shape) for k, shape in enumerate(shapes)]
    return einsum(subscripts, *operands)


def path_of(made, memory=CACHE, **sizes):
    return bound_paths(build_factors(made, sizes), [FastMemory(memory)])[0]


CHAIN = of("ij,jk,kl->il", **dict.fromkeys("ijkl", 2000))


def test_a_chain_is_bounded_by_two_products_and_not_by_one_statement():
    """With n = 2000, S = 10,000: 6.4e9 entries as one, 3.2e8 by two products."""
    one = make_statement("ij,jk,kl->il", dict.fromkeys("ijkl", 2000))
    assert certify(one, FastMemory(10_000)).n_bytes == pytest.approx(6.4e9, rel=0.01)
    path = path_of(CHAIN)
    assert len(path.steps) == 2
    assert path.stored_bytes / 8 == pytest.approx(3.2e8, rel=0.001)
    products = sum(step.certificate.n_bytes for step in path.steps)
    assert products / 8 == pytest.approx(3.2e8, rel=0.001)


def test_a_product_on_the_way_may_stay_in_the_memory():
    """What is certain leaves out its bytes, once for each of both steps."""
    path = path_of(CHAIN)
    assert path.stored_bytes - path.n_bytes == 2 * 8 * 2000**2
    wide = path_of(CHAIN, memory=8 * 10**9)
    assert wide.n_bytes == wide.compulsory_bytes == 4 * 8 * 2000**2


def test_mttkrp_is_one_step_and_the_product_with_it_another():
    """The worked example of the paper: KRP and TDOT fuse, GEMM does not."""
    extents = {"i": 400, "j": 400, "k": 400, "a": 600, "l": 500}
    path = path_of(of("ijk,ja,ka,al->il", **extents))
    assert [str(step) for step in path.steps] == ["ijk,ja,ka->ia", "ia,al->il"]


def test_mttkrp_of_order_five_is_two_groups():
    """``lma, X -> ijka`` and ``ijka, ja, ka -> ia``: two steps, four products."""
    extents = {**dict.fromkeys("ijklm", 60), "a": 5000}
    made = of("ijklm,ja,ka,la,ma->ia", **extents)
    found = compute_bound(
        made, {}, [MemoryLevel("fast", CACHE), MemoryLevel("slow", None)]
    )
    assert "some good orders of 5 operands" in found.scope
    assert found.levels[0].n_bytes >= found.compulsory_bytes


def test_paths_are_looked_for_with_extents():
    """A chain through a short index is contracted there first."""
    path = path_of(of("ij,jk,kl->il", i=3000, j=3000, k=3000, l=30), memory=8000)
    assert [str(step) for step in path.steps] == ["jk,kl->jl", "ij,jl->il"]


def test_rows_with_a_shared_operand_count_it_once():
    """Compulsory bytes fall, products do not."""
    A, B, C = (array(name, (1000, 1000)) for name in "ABC")
    shared = path_of(batched_einsum("ik,kj->ij", [[A, B], [A, C]]))
    own = path_of(batched_einsum("ik,kj->ij", [[A, B], [C, array("D", (1000, 1000))]]))
    assert shared.compulsory_bytes == 5 * 8 * 10**6
    assert own.compulsory_bytes == 6 * 8 * 10**6
    ratio = shared.steps[0].certificate.n_bytes / own.steps[0].certificate.n_bytes
    assert ratio == pytest.approx(1, rel=1e-3)


def test_equal_rows_are_computed_once():
    """Their results are stored each, their products counted once."""
    A, B = (array(name, (1000, 1000)) for name in "AB")
    twice = path_of(batched_einsum("ik,kj->ij", [[A, B], [A, B]]))
    once = path_of(einsum("ik,kj->ij", A, B))
    assert twice.steps[0].statement.n_points == once.steps[0].statement.n_points
    assert twice.compulsory_bytes - once.compulsory_bytes == 8 * 10**6


def test_a_product_with_itself_may_use_its_symmetry():
    """``A @ A.T`` has half of the steps, and A counts once."""
    A = array("A", (1000, 1000))
    made = path_of(einsum("ik,jk->ij", A, A))
    assert made.steps[0].statement.n_points == 1000**3 // 2
    assert made.compulsory_bytes == 2 * 8 * 10**6


def test_an_array_in_two_steps_counts_a_half_in_each():
    """So that what is read for both is not counted twice."""
    A, B = array("A", (500, 500)), array("B", (500, 500))
    made = build_factors(einsum("ij,jk,kl->il", A, B, A), {})
    first, second, _ = made.statement(((0,), (1,))).accesses
    assert (first.entry_bytes, second.entry_bytes) == (4, 8)
    assert first.total_bytes == Fraction(8 * 500**2, 2)


def test_an_index_of_one_operand_is_summed_on_its_own():
    """It multiplies no steps of the product."""
    made = path_of(of("ijx,jk->ik", i=500, j=500, k=500, x=50))
    assert made.steps[0].statement.n_points == 500**3
    assert made.compulsory_bytes == 8 * (50 * 500**2 + 2 * 500**2)


def test_entries_that_are_not_there_are_not_read():
    """A diagonal has 100 of 10,000 entries. Sums of nothing are stored; a result
    without entries is not.
    """
    made = of("ii,ij->j", i=100, j=1000)
    assert compute_least_bytes(made, {}, CACHE) == 8 * (100 + 100 * 1000 + 1000)
    assert compute_least_bytes(of("ij,jk->ik", i=20, j=0, k=30), {}, CACHE) == 8 * 600
    assert compute_least_bytes(of("ij,jk->ik", i=0, j=20, k=30), {}, CACHE) == 0


def test_dtypes_count_by_their_bytes():
    """Single precision in a memory of half the size moves half."""
    halves = [
        compute_least_bytes(
            einsum("ij,jk->ik", *(array(n, (900, 900), dtype) for n in "AB")), {}, size
        )
        for dtype, size in (("float64", CACHE), ("float32", CACHE // 2))
    ]
    assert halves[0] == pytest.approx(2 * halves[1], rel=1e-6)


def functional(body: str, parameters=("j", "k")):
    plain = of("ij,jk->ik", **dict.fromkeys("ijk", 1000))
    functions = FunctionalBatchedEinsum.idealized(plain).functions
    named = {**functions, "A1": OperandFunction(parameters, body)}
    return FunctionalBatchedEinsum(plain, constantdict(named))


N = 8 * 10**6
"""Bytes of a matrix of 1000 rows and columns."""


@pytest.mark.parametrize(
    ("body", "compulsory"),
    [
        ("u[j, k]", 3 * N),
        ("0.5*(u[j, k] + v[j, k])", 4 * N),
        ("A0[j, k] + v[j, k]", 3 * N),
        ("w[j]*2", 2 * N + 8000),
        ("3.5", 2 * N),
        ("j - k", 2 * N),
        ("u[j, k] if j < k else v[j, k]", 2 * N),
        ("u[p[j], k]", 2 * N + 8000 + 8000),
    ],
)
def test_operand_functions_count_by_the_arrays_that_they_surely_read(body, compulsory):
    """Each array once; what a condition guards or what is computed does not count."""
    assert build_factors(functional(body), {}).compulsory_bytes == compulsory


def test_sizes_that_are_missing_are_named():
    """And what is no size is refused."""
    made = einsum("ij,jk->ik", array("A", ("n", 4)), array("B", (4, 5)))
    with pytest.raises(BoundError, match=r"'n' has no value; given are \{'m': 2\}"):
        compute_least_bytes(made, {"m": 2}, CACHE)
    for value in (-1, 2.5, True, "7"):
        with pytest.raises(BoundError, match="expected an int >= 0"):
            compute_least_bytes(made, {"n": value}, CACHE)
    assert compute_least_bytes(made, {"n": np.int64(10)}, CACHE) == 8 * (40 + 20 + 50)


def test_a_memory_that_cannot_hold_a_step_is_refused():
    """An entry of each array must fit at once."""
    made = of("ij,jk->ik", **dict.fromkeys("ijk", 10))
    with pytest.raises(BoundError, match="23 bytes; one step of ij,jk->ik needs 24"):
        compute_least_bytes(made, {}, 23)
    assert compute_least_bytes(made, {}, 24) >= 3 * 8 * 100
    with pytest.raises(BoundError):
        compute_least_bytes(made, {}, CACHE, n_memories=0)
    with pytest.raises(BoundError):
        compute_bound(made, {}, [])
    with pytest.raises(BoundError):
        MemoryLevel("L1", -1)
    with pytest.raises(BoundError):
        MemoryLevel("L1", 1, 0)


LEVELS = [
    MemoryLevel("registers", 2048, 2),
    MemoryLevel("L1", 48 << 10, 2, 400e9),
    MemoryLevel("L2", 1 << 20, 2, 200e9),
    MemoryLevel("L3", 32 << 20, 1, 80e9),
    MemoryLevel("DRAM", None, 1, 35e9),
]


def test_farther_levels_move_less():
    """The memory ahead grows, so what must pass falls."""
    found = compute_bound(of("ij,jk->ik", **dict.fromkeys("ijk", 3000)), {}, LEVELS)
    moved = [one.n_bytes for one in found.levels]
    assert [one.level.name for one in found.levels] == ["L1", "L2", "L3", "DRAM"]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] >= found.compulsory_bytes == 3 * 8 * 3000**2
    ahead = [one.memory for one in found.levels]
    private = 2048 + (48 << 10) + (1 << 20)
    assert ahead[2] == FastMemory(private, 2)
    assert ahead[3] == FastMemory(2 * private + (32 << 20))


def test_the_slowest_level_is_the_limit():
    """Times are bytes over bandwidths, and that of the arithmetic where it is known."""
    found = compute_bound(of("ij,jk->ik", **dict.fromkeys("ijk", 3000)), {}, LEVELS)
    times = {one.level.name: one.seconds for one in found.levels}
    assert found.seconds == max(times.values()) == times[found.limit]
    slow = found.with_operations(1e3)
    assert (slow.seconds, slow.limit) == (1e3, "arithmetic")
    with pytest.raises(BoundError, match="no memory level 'L4'"):
        found.level("L4")


def test_a_device_of_which_nothing_is_known_moves_every_array_once():
    """A single level has no memory ahead."""
    found = compute_bound(CHAIN, {}, [MemoryLevel("DRAM", None, 1, 1e11)])
    assert found.levels[0].n_bytes == found.compulsory_bytes
    assert found.seconds == found.compulsory_bytes / 1e11


def test_the_table_fits_80_columns():
    """Also with many indices."""
    extents = dict(zip("abcdefg", (24, 16, 16, 24, 16, 16, 24), strict=True))
    found = compute_bound(of("dega,gfbc->abcdef", **extents), {}, LEVELS)
    lines = str(found.with_operations(1e-3)).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) == 1 + 5 + 3


@pytest.mark.parametrize("n_operands", [1, 4, 10])
def test_a_bound_takes_few_numerical_searches(monkeypatch, n_operands):
    """The law of performance, in counts that no machine changes: tiles are searched for
    all statements, prices and levels at once, and for ten operands of few statements.
    """
    calls, n_points = [], []
    search = asymptotic.find_best_tiles

    def counted(member, *rest, **options):
        calls.append(member.shape)
        n_points.append(prod(rest[-1].shape))
        return search(member, *rest, **options)

    monkeypatch.setattr(finite, "find_best_tiles", counted)
    letters = "abcdefghijk"[: n_operands + 1]
    terms = [f"{a}{b}" for a, b in pairwise(letters)]
    made = of(f"{','.join(terms)}->a{letters[-1]}", **dict.fromkeys(letters, 300))
    compute_bound(made, {}, LEVELS)
    n_shapes = {1: 1, 2: 1, 3: 2, 4: 3, 10: 3}[n_operands]
    assert len(calls) <= 4 * n_shapes
    most = {1: 40, 2: 40, 3: 300, 4: 1200, 10: 3000}[n_operands]
    assert sum(n_points) <= most


def test_bounds_need_neither_scipy_nor_loopy():
    """Nor anything else that is slow to import."""
    code = (
        "import sys, feinsum.bounds as b; "
        "s = b.make_statement('ij,jk->ik', dict.fromkeys('ijk', 99)); "
        "assert b.certify(s, b.FastMemory(99)).n_bytes; "
        "heavy = {'scipy', 'loopy', 'pyopencl', 'sqlalchemy', 'matplotlib'}; "
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_function_of_whole_arrays_is_an_operand_and_one_of_none_is_free():
    """A product with numbers that are computed needs no memory for them."""
    plain = compute_least_bytes(functional("u[j, k]"), {}, CACHE)
    mean = compute_least_bytes(functional("0.5*(u[j, k] + v[j, k])"), {}, CACHE)
    assert plain <= mean <= plain + N
    assert compute_least_bytes(functional("j - k"), {}, CACHE) == 2 * N


def test_without_bandwidths_no_time_is_known():
    """Bytes are, all the same."""
    levels = [MemoryLevel("fast", CACHE), MemoryLevel("slow", None)]
    found = compute_bound(of("ij,jk->ik", **dict.fromkeys("ijk", 3000)), {}, levels)
    assert found.seconds is found.limit is found.levels[0].seconds is None
    assert str(found)
