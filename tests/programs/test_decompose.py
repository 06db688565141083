"""Partitions and their costs, by the figures of the paper and by trying everything."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import numpy as np
import pytest

from feinsum.errors import ProgramError
from feinsum.ir import array
from feinsum.plans.elimination import least_by_trial
from feinsum.programs import (
    Statement,
    decompose,
    evaluate_program,
    multi_head_attention,
    n_partitions,
    program,
    run_partitioned,
    split_along,
)
from feinsum.programs.decompose import Model, tables_of
from feinsum.programs.partition import (
    aggregation_cost,
    join_cost,
    n_calls,
    repartition_cost,
    viable_partitions,
)
from tests.programs.random_programs import random_program

PRODUCT = Statement("C", "ik", ("ij", "jk"), ("A", "B"))
EIGHT = {"i": 8, "j": 8, "k": 8}


@pytest.mark.parametrize(
    ("n", "p", "count"), [(6, 1024, 3003), (3, 8, 10), (3, 16, 15)]
)
def test_partitions_are_counted(n, p, count):
    """3,003 as the paper says; ten at p = 8, of which it lists eight."""
    assert n_partitions(n, p) == count
    indices = "abcdef"[:n]
    one = Statement("R", "a", (indices,), ("T",))
    assert len(viable_partitions(one, dict.fromkeys(indices, p), p)) == count


FIGURE_1 = {(4, 1, 4): 512, (2, 1, 8): 640, (2, 4, 2): 448, (2, 2, 4): 448}
"""Parts of i, j and k at p = 16, and what they cost."""


@pytest.mark.parametrize(("parts", "cost"), FIGURE_1.items())
def test_plans_of_the_first_figure(parts, cost):
    """Join and aggregation; for the first one the text of the paper says 256."""
    cut = dict(zip("ijk", parts, strict=True))
    (found,) = (d for d in viable_partitions(PRODUCT, EIGHT, 16) if dict(d) == cut)
    assert n_calls(found) == 16
    total = join_cost(PRODUCT, found, EIGHT) + aggregation_cost(PRODUCT, found, EIGHT)
    assert total == cost


def test_other_figures_of_the_paper():
    """An aggregation of 64, a repartition of 320, 128 calls."""
    (found,) = (
        d
        for d in viable_partitions(PRODUCT, EIGHT, 16)
        if dict(d) == {"i": 2, "j": 2, "k": 4}
    )
    assert aggregation_cost(PRODUCT, found, EIGHT) == 64
    assert repartition_cost((4, 1), (2, 4), (8, 8)) == 320
    assert n_calls({"i": 16, "j": 2, "k": 4}) == 128


def walked(consumer, producer, shape):
    """Every block of the reader, put together from what it shares with those there."""
    blocks = [
        [(k * n // parts, (k + 1) * n // parts) for k in range(parts)]
        for n, parts in zip(shape, producer, strict=True)
    ]
    size = prod(high - low for (low, high), *_ in blocks)
    total = 0
    for place in product(*map(range, consumer)):
        needed = [
            (k * n // parts, (k + 1) * n // parts)
            for k, n, parts in zip(place, shape, consumer, strict=True)
        ]
        shared = [
            [b for b in axis if min(b[1], high) > max(b[0], low)]
            for axis, (low, high) in zip(blocks, needed, strict=True)
        ]
        n_shared = prod(map(len, shared))
        mine = prod(high - low for low, high in needed)
        common = mine // n_shared
        if size != common:
            total += size * 1 if n_shared == 1 else 0
        if n_shared > 1:
            total += (n_shared - 1) * (mine + size) + (size if size != common else 0)
    return total


@pytest.mark.parametrize("seed", range(50))
def test_a_repartition_is_what_a_walk_over_the_blocks_counts(seed):
    source = random.Random(seed)
    shape = [source.choice([4, 8, 16]) for _ in range(source.randint(1, 3))]
    consumer, producer = ([source.choice([1, 2, 4]) for _ in shape] for _ in range(2))
    if consumer != producer:
        found = repartition_cost(consumer, producer, shape)
        assert found == walked(consumer, producer, shape)


@pytest.mark.parametrize("seed", range(25))
def test_the_dynamic_program_is_as_good_as_trying_everything_on_trees(seed):
    given = random_program(random.Random(seed), 3, is_tree=True)
    least = trial(given, 4)
    assert decompose(given, 4, method="tree").cost == least
    assert decompose(given, 4).cost == least


@pytest.mark.parametrize("seed", range(25))
def test_elimination_is_as_good_as_trying_everything(seed):
    """And never worse than one path after the other."""
    given = random_program(random.Random(seed), 4)
    exact = decompose(given, 4).cost
    assert exact == trial(given, 4)
    assert exact <= decompose(given, 4, method="linear").cost


def trial(given, p):
    model = Model(given, {})
    choices = {
        one.result: viable_partitions(one, model.extents(one), p)
        for one in given.statements
    }
    return least_by_trial([*tables_of(model, choices, model.edges)])[0]


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("method", ["exact", "linear"])
def test_a_program_in_parts_computes_the_same_and_moves_what_was_said(seed, method):
    source = random.Random(seed)
    given = random_program(source, 1 + seed % 4)
    found = decompose(given, 4, method=method)
    numbers = np.random.default_rng(seed)
    arrays = {x.name: numbers.uniform(-1, 1, x.shape) for x in given.inputs}
    results, moved = run_partitioned(found, arrays)
    for name, right in evaluate_program(given, arrays).items():
        np.testing.assert_allclose(results[name], right, rtol=1e-10, atol=1e-10)
    assert (moved.join, moved.aggregation) == (found.join, found.aggregation)


@pytest.mark.parametrize("p", [1, 2, 8])
def test_ragged_and_masked_programs_in_parts(p):
    """Parts of other lengths, and a body that speaks of indices."""
    q = program()
    X = q.input("X", (5, 8))
    multi_head_attention(q, X, heads=3, entries=2, causal=True)
    given = q.build()
    numbers = np.random.default_rng(0)
    arrays = {x.name: numbers.uniform(-1, 1, x.shape) for x in given.inputs}
    results, _ = run_partitioned(decompose(given, p), arrays)
    for name, right in evaluate_program(given, arrays).items():
        np.testing.assert_allclose(results[name], right, rtol=1e-10, atol=1e-12)


ATTENTION = {1024: (354_484_224, 415_432_704), 4096: (3_138_125_824, 3_372_482_560)}
"""Costs at p = 8 by tokens: the least one, and that of one path after the other."""


@pytest.mark.parametrize(("tokens", "costs"), ATTENTION.items())
def test_attention_of_a_large_model(tokens, costs):
    """4096 features, 32 heads of 128: cut by hand it costs more."""
    p = program()
    multi_head_attention(p, p.input("X", (tokens, 4096)), heads=32, entries=128)
    given = p.build()
    found = decompose(given, 8).cost, decompose(given, 8, method="linear").cost
    assert found == costs
    by_hand = [split_along(given, 8, *where).cost for where in (("WQ", 1), ("X", 0))]
    assert min(by_hand) > costs[0]


def test_a_split_along_what_nothing_reads_is_refused():
    p = program()
    p.map("exp(x0)", array("x", 3))
    with pytest.raises(ProgramError, match="no statement reads axis 1 of an array 'x'"):
        split_along(p.build(), 2, "x", 1)


def test_bad_input_is_refused_by_name():
    p = program()
    shared = p.map("exp(x0)", array("X", ("n", 4)))
    p.map("x0 + 1", shared)
    p.map("x0 - 1", shared)
    given = p.build()
    with pytest.raises(ProgramError, match="power of two of processes, got 6; take 8"):
        decompose(given, 6, sizes={"n": 4})
    with pytest.raises(ProgramError, match="size n is not known"):
        decompose(given, 4)
    with pytest.raises(ProgramError, match="'r0' has 2 readers"):
        decompose(given, 4, sizes={"n": 4}, method="tree")
    with pytest.raises(ProgramError, match="no method 'best'; take one of exact"):
        decompose(given, 4, sizes={"n": 4}, method="best")


def test_no_index_is_cut_into_more_parts_than_it_has_values():
    """As many calls as there can be: of a vector of three, two."""
    p = program()
    p.map("exp(x0)", array("x", 3), name="y")
    assert decompose(p.build(), 64).calls == {"y": 2}
