"""Partitions and their costs, by the figures of the paper and by trying everything."""

from __future__ import annotations

import random
from itertools import product
from math import prod

import numpy as np
import pytest
from constantdict import constantdict

from benchmarks.papers.decompose import (
    Decomposition,
    Model,
    count_partitions,
    decompose,
    split_along,
)
from benchmarks.papers.program_plans import plan_decomposition
from feinsum.errors import ProgramError
from feinsum.ir import array
from feinsum.programs import evaluate_program, program
from tests.distributed.test_planner import least_by_trial
from tests.programs.random_programs import random_program


def test_partitions_are_counted():
    """3,003 as the paper says; ten at p = 8, of which it lists eight."""
    assert [count_partitions(*given) for given in ((6, 1024), (3, 8))] == [3003, 10]
    with pytest.raises(ProgramError, match="powers of two, got 6"):
        count_partitions(3, 6)


FIGURE_1 = {(4, 1, 4): 512, (2, 1, 8): 640, (2, 4, 2): 448, (2, 2, 4): 448}
"""Parts of i, j and k at p = 16, and what they cost."""


@pytest.mark.parametrize(("parts", "cost"), FIGURE_1.items())
def test_plans_of_the_first_figure(parts, cost):
    """Join and aggregation; for the first one the text of the paper says 256."""
    p = program()
    p.einsum("ij,jk->ik", array("A", (8, 8)), array("B", (8, 8)), name="C")
    cut = constantdict(zip("ijk", parts, strict=True))
    found = Decomposition(p.build(), {}, {"C": cut})
    assert (found.cost, found.calls["C"]) == (cost, 16)
    if parts == (2, 2, 4):
        assert found.aggregation == 64


@pytest.mark.parametrize("seed", range(6))
def test_the_dynamic_program_is_as_good_as_trying_everything_on_trees(seed):
    given = random_program(random.Random(seed), 3, is_tree=True)
    least = trial(given, 4)
    assert decompose(given, 4, method="tree").cost == least
    assert decompose(given, 4).cost == least


@pytest.mark.parametrize("seed", range(6))
def test_elimination_is_as_good_as_trying_everything(seed):
    """And never worse than one path after the other."""
    given = random_program(random.Random(seed), 4)
    exact = decompose(given, 4).cost
    assert exact == trial(given, 4)
    assert exact <= decompose(given, 4, method="linear").cost


def trial(given, p):
    model = Model(given, {})
    return least_by_trial(model.build_tables(model.list_choices(p)))[0]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("method", ["exact", "linear"])
def test_a_program_in_parts_computes_the_same_and_moves_what_was_said(seed, method):
    source = random.Random(seed)
    given = random_program(source, 1 + seed % 4)
    found = decompose(given, 4, method=method)
    numbers = np.random.default_rng(seed)
    arrays = {x.name: numbers.uniform(-1, 1, x.shape) for x in given.inputs}
    results = plan_decomposition(found, 4).simulate(arrays)
    for name, right in evaluate_program(given, arrays).items():
        np.testing.assert_allclose(results[name], right, rtol=1e-10, atol=1e-10)
    assert (found.join, found.aggregation) == count_calls(found)


def count_calls(found):
    """Elements of the blocks of all calls, and of partial results but the first."""
    joined = aggregated = 0
    for statement in found.program.statements:
        parts = found.partitions[statement.result]
        extents = found.program.extents(statement)
        for call in product(*(range(parts[i]) for i in statement.indices)):
            for term in statement.inputs:
                joined += prod(extents[i] / parts[i] for i in term)
            at = dict(zip(statement.indices, call, strict=True))
            if any(at[i] for i in statement.reduced_indices):
                aggregated += prod(extents[i] / parts[i] for i in statement.output)
    return joined, aggregated


def test_bad_input_is_refused_by_name():
    p = program()
    shared = p.map("exp(x0)", array("X", ("n", 4)))
    p.map("x0 + 1", shared)
    p.map("x0 - 1", shared)
    given = p.build()
    with pytest.raises(ProgramError, match="at least 1 process, got 0"):
        decompose(given, 0, sizes={"n": 4})
    with pytest.raises(ProgramError, match="size n has no value"):
        decompose(given, 4)
    with pytest.raises(ProgramError, match="'r0' has 2 readers"):
        decompose(given, 4, sizes={"n": 4}, method="tree")
    with pytest.raises(ProgramError, match="no method 'best'; expected one of exact"):
        decompose(given, 4, sizes={"n": 4}, method="best")
    p = program()
    p.map("exp(x0)", array("x", 3))
    with pytest.raises(ProgramError, match="no statement reads axis 1 of an array 'x'"):
        split_along(p.build(), 2, "x", 1)


def test_no_index_is_cut_into_more_parts_than_it_has_values():
    """As many calls as there can be: of a vector of three, three."""
    p = program()
    p.map("exp(x0)", array("x", 3), name="y")
    assert decompose(p.build(), 64).calls == {"y": 3}
