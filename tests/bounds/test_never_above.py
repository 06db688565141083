"""No bound is above what a schedule moves: simulated, with the best memory there is."""

from __future__ import annotations

import random
from math import prod

import pytest

from feinsum.bounds import (
    FastMemory,
    certify,
    compute_intensity,
    compute_least_bytes,
    make_statement,
)
from feinsum.bounds.factors import build_factors
from feinsum.contraction.paths import list_path_outputs
from feinsum.ir import BatchedEinsum, array, batched_einsum, write_subscripts
from tests.bounds.simulate import Touch, least_moved, lru_loads, nest

ENTRY = 8
N_DEFAULT, N_LONG = 40, 1000


def random_einsum(rng: random.Random) -> BatchedEinsum:
    """Up to three operands, some of them one array, and up to three rows."""
    letters = "ijkl"[: rng.randint(1, 4)]
    extents = {i: rng.choice([1, 2, 3, 4, 5, 6]) for i in letters}
    n_operands = rng.randint(1, 3)
    terms = [
        tuple(rng.choice(letters) for _ in range(rng.randint(0, 3)))
        for _ in range(n_operands)
    ]
    used = sorted({i for term in terms for i in term})
    output = tuple(rng.sample(used, rng.randint(0, len(used))))
    rows = [
        [
            array(f"A{'_'.join(map(str, shape))}_{rng.randint(0, 1)}", shape)
            for shape in (tuple(extents[i] for i in term) for term in terms)
        ]
        for _ in range(rng.randint(1, 3))
    ]
    subscripts = write_subscripts(terms, output)
    if n_operands == 1 and not terms[0]:
        return random_einsum(rng)
    made = batched_einsum(subscripts, rows) if used else None
    return made or random_einsum(rng)


CONTRACTIONS = (
    "ij,jk->ik", "ik,jk->ij", "bij,bjk->bik", "ij,j->i", "ij,jk,kl->il", "ij,kl,jk->il",
    "ijk,ja,ka->ia", "ijk,kl,jl->il", "ij,jk,k->i", "ij,ik,jk->", "ij,jk,ki->ij",
)  # fmt: skip


def random_contraction(rng: random.Random) -> BatchedEinsum:
    """One with more steps than entries, which small memories do not suffice for."""
    subscripts = rng.choice(CONTRACTIONS)
    terms = subscripts.partition("->")[0].split(",")
    letters = dict.fromkeys("".join(terms))
    longest = 12 if len(letters) == 3 else 7
    extents = {i: rng.randint(2, longest) for i in letters}
    n_rows = rng.choice([1, 1, 1, 2])
    return batched_einsum(
        subscripts,
        [
            [
                array(f"{term}{rng.randint(0, row)}", tuple(extents[i] for i in term))
                for term in terms
            ]
            for row in range(n_rows)
        ],
    )


def random_path(rng: random.Random, n: int) -> tuple[tuple[int, ...], ...]:
    """All at once, or two at a time in any order."""
    if n < 3 or rng.random() < 0.4:
        return (tuple(range(n)),)
    return tuple(tuple(sorted(rng.sample(range(m), 2))) for m in range(n, 1, -1))


def random_schedule(einsum: BatchedEinsum, rng: random.Random):
    """Row by row, or step by step of all rows: tiled nests in some order of loops."""
    extents = dict(einsum.extents)
    path = random_path(rng, einsum.n_operands)
    outputs = list_path_outputs(einsum.inputs, einsum.output, path)
    nests = []
    for row, operands in enumerate(einsum.rows):
        left = [
            (op.name, term, "input")
            for op, term in zip(operands, einsum.inputs, strict=True)
        ]
        for number, (step, indices) in enumerate(zip(path, outputs, strict=True)):
            chosen = [left[at] for at in step]
            left = [one for at, one in enumerate(left) if at not in step]
            is_last = number == len(path) - 1
            term = einsum.output if is_last else tuple(sorted(indices))
            kind = "result" if is_last else "made"
            name = f"out{row}" if is_last else f"t{row}_{number}"
            loops = list(dict.fromkeys(i for _, its, _ in chosen for i in its))
            rng.shuffle(loops)
            tiles = {i: rng.randint(1, extents[i]) for i in loops}
            accesses = [*chosen, (name, term, kind)]
            nests.append((number, nest(accesses, loops, extents, tiles)))
            left.append((name, term, "product"))
    if rng.random() < 0.5:
        nests.sort(key=lambda pair: pair[0])
    return [step for _, steps in nests for step in steps]


def check(seed: int) -> bool:
    """Compare, and say whether the bound is more than all arrays once."""
    rng = random.Random(seed)
    einsum = random_einsum(rng) if seed % 4 == 0 else random_contraction(rng)
    steps = random_schedule(einsum, rng)
    capacity = einsum.n_operands + 1 + rng.choice([0, 0, 1, 1, 2, 4, 8, 16])
    factors = build_factors(einsum, {})
    bound = compute_least_bytes(einsum, {}, capacity * ENTRY)
    moved = least_moved(steps, capacity) * ENTRY
    assert factors.compulsory_bytes <= bound <= moved, (seed, einsum.subscripts)
    return bound > factors.compulsory_bytes


def test_no_bound_is_above_what_a_random_schedule_moves():
    """Random einsums, orders, loops, tiles and memories. Some bounds are more than all
    arrays once, so that the comparison is not of compulsory bytes alone.
    """
    assert sum(map(check, range(N_DEFAULT))) > N_DEFAULT // 8


@pytest.mark.long
def test_no_bound_is_above_what_a_thousand_random_schedules_move():
    """The same, a thousand times."""
    seeds = range(N_DEFAULT, N_DEFAULT + N_LONG)
    assert sum(map(check, seeds)) > N_LONG // 5


def test_no_bound_is_above_what_two_memories_move_together():
    """Loops are shared by two memories; what both move is at least the bound."""
    extents = dict.fromkeys("ijk", 8)
    accesses = [("A", ("i", "k"), "input"), ("B", ("k", "j"), "input")]
    accesses.append(("C", ("i", "j"), "result"))
    steps = list(nest(accesses, "ijk", extents, {"i": 2, "j": 2, "k": 8}))
    halves = [
        [s for s in steps if (s[0].item[1] < 4) == is_first]
        for is_first in (True, False)
    ]
    proved = certify(make_statement("ik,kj->ij", extents), FastMemory(9, 2)).n_bytes
    assert 0 < proved <= sum(least_moved(half, 9) for half in halves)


def test_a_bound_of_a_product_is_near_what_its_best_tiles_move():
    """The simulated memory is no straw man: 3 % of the bound is lost, not half."""
    extents = dict.fromkeys("ijk", 30)
    accesses = [("A", ("i", "k"), "input"), ("B", ("k", "j"), "input")]
    accesses.append(("C", ("i", "j"), "result"))
    tiles = {"i": 6, "j": 5, "k": 30}
    steps = list(nest(accesses, ["i", "j", "k"], extents, tiles))
    by_k = sorted(steps, key=lambda s: (s[2].item[1] // 6, s[2].item[2] // 5,
                                        s[0].item[2]))  # fmt: skip
    proved = certify(make_statement("ik,kj->ij", extents), FastMemory(45)).n_bytes
    assert proved <= least_moved(by_k, 45) < 1.5 * proved


def stationary(block: tuple[int, int, int], n_columns: int):
    """MTTKRP with a block of X that stays, column after column of the factors."""
    i, j, k = block
    for a in range(n_columns):
        yield (
            Touch(("A", a), j),
            Touch(("B", a), k),
            Touch(("out", a), i, is_written=True),
            Touch("X", i * j * k),
        )


def columns_of_product(block: tuple[int, int], n_columns: int):
    """A product with a block of the result that stays."""
    i, j = block
    for k in range(n_columns):
        yield (Touch(("A", k), i), Touch(("B", k), j), Touch("C", i * j))


@pytest.mark.parametrize(
    ("subscripts", "schedule", "block", "capacity", "share"),
    [
        ("ijk,ja,ka->ia", stationary, (11, 11, 8), 1000, 1.04),
        ("ijk,ja,ka->ia", stationary, (46, 46, 47), 100_000, 1.01),
        ("ik,kj->ij", columns_of_product, (31, 30), 1000, 1.04),
        ("ik,kj->ij", columns_of_product, (315, 314), 100_000, 1.01),
    ],
)
def test_blocked_schedules_are_within_a_few_percent_of_the_bound(
    subscripts, schedule, block, capacity, share
):
    """By a memory that forgets what was unused for longest: 4 % at 1000 entries, 1 % at
    100,000; never below the bound. Columns all cost alike, so some stand for many.
    """
    loads = [lru_loads(schedule(block, n), capacity) for n in (20, 40, 60)]
    each = (loads[1] - loads[0]) // 20
    assert loads[2] - loads[1] == 20 * each
    n_columns, n_blocks = 10**7, 1000
    moved = n_blocks * (loads[0] + (n_columns - 20) * each)
    names = sorted(set(subscripts) - set(",->") - {"a" if "a" in subscripts else "k"})
    extents = dict(zip(names, block, strict=True))
    extents[names[0]] *= n_blocks
    extents["a" if "a" in subscripts else "k"] = n_columns
    proved = certify(make_statement(subscripts, extents), FastMemory(capacity)).n_bytes
    assert proved <= moved
    points = prod(extents.values())
    asymptotic = points / compute_intensity(
        make_statement(subscripts, extents)
    ).steps_per_byte(capacity)
    assert asymptotic <= moved <= share * asymptotic
