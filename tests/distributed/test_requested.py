"""Requested distributions: arrays start and end where the caller has them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import feinsum
from feinsum.distributed import (
    Distribution,
    GroupSchedule,
    Machine,
    Plan,
    plan,
    plan_program,
    plan_statements,
)
from feinsum.distributed.assembly import assemble
from feinsum.distributed.groups import find_default_path, groups_of
from feinsum.distributed.recorded import make_random_arrays, record_run
from feinsum.distributed.schedule import list_result_choices
from feinsum.distributed.search import find_best_schedules
from feinsum.errors import PlanError
from feinsum.programs import program
from feinsum.records import InMemoryStore
from tests.distributed.cases import (
    PROGRAMS,
    assert_lawful,
    einsum_of,
    is_numpys,
    make_bare,
    random_start,
)
from tests.distributed.test_sparse import KERNELS as SPARSE
from tests.distributed.test_sparse import MTTKRP, arrays_of
from tests.distributed.test_sparse import einsum_of as sparse_einsum
from tests.programs.random_programs import assert_right

PRODUCT = einsum_of("ij,jk->ik", i=6, j=5, k=4)
MODES = {"A": "ijk,jr,kr->ir", "B": "ijk,ir,kr->jr", "C": "ijk,ir,jr->kr"}


@pytest.mark.parametrize(
    ("subscripts", "seed"),
    [*(("ij,jk->ik", seed) for seed in range(4)), ("ij,jk,kl->il", 0)],
)
def test_the_choice_is_brute_force(subscripts, seed):
    """No map of two axes moves less, with the moves from starts and to ends."""
    rng, machine = random.Random(seed), Machine((2, 2))
    einsum = einsum_of(subscripts, every=8)
    extents = dict(einsum.extents)
    path = find_default_path(einsum, extents)
    groups = groups_of(einsum, path, extents)
    starts = {
        operand.name: random_start(rng, 2, 4)
        for operand in einsum.operands
        if rng.random() < 0.7
    }
    ends = {groups[-1].output.tensor: random_start(rng, 2, 4)}

    def count(schedules):
        made = assemble(einsum, {}, 4, path, schedules, starts=starts)
        return replace(made, ends=ends).outline().moved

    choices = [
        [
            GroupSchedule(machine, axes, result)
            for axes in product(group.indices, repeat=2)
            for result in list_result_choices(group, axes, machine)
        ]
        for group in groups
    ]
    least = min(map(count, product(*choices)))
    bare = make_bare(groups, extents, 4, starts=starts, placed=tuple(starts), ends=ends)
    found = find_best_schedules(bare)
    assert count(found.schedules) <= least


def test_the_tensor_of_a_sweep_stays():
    """Three modes of CP-ALS on one distribution of the tensor move as little as free
    plans, and a factor is read where the mode before left it.
    """
    extents = {"i": 96, "j": 96, "k": 96, "r": 16}
    held, arrays, rng = {}, {}, np.random.default_rng(0)
    arrays["T"] = rng.random((96, 96, 96))
    arrays |= {name: rng.random((96, 16)) for name in "BC"}
    for output, subscripts in MODES.items():
        names = ["T", *(name for name in MODES if name != output)]
        einsum = einsum_of(subscripts, names=names, **extents)
        starts = {name: held[name] for name in names if name in held}
        made = plan(einsum, processes=8, starts=starts)
        assert starts.items() <= made.starts.items()
        assert made.counts.moved == plan(einsum, processes=8).counts.moved
        outcome = made.prepare("local").run({name: arrays[name] for name in names})
        assert outcome.report.counted == made.counts.moved
        arrays[output] = outcome.results["out"]
        expected = np.einsum(subscripts, *(arrays[name] for name in names))
        assert np.allclose(arrays[output], expected)
        held |= made.final_distributions
        held[output] = held.pop("out")


def test_a_power_iteration_ends_where_it_starts():
    """The result's blocks are the vector's blocks of the next iteration."""
    einsum = einsum_of("ij,j->i", i=60, j=60)
    free = plan(einsum, processes=6)
    matrix, vector = free.operands
    ends = free.starts[vector]
    made = plan(einsum, processes=6, starts={matrix: free.starts[matrix]}, result=ends)
    again = plan(einsum, processes=6, starts=made.starts, result=ends)
    assert made.result == made.starts[vector] == ends
    assert again.counts.moved == made.counts.moved
    for rank in range(6):
        assert made.result_box(rank) == again.start_box(vector, rank)
    assert is_numpys(made)


def test_a_replicated_result_is_on_all_ranks():
    """Sums in blocks, and then copies of all blocks: what an all-reduce moves."""
    einsum = einsum_of("ij,j->i", i=600, j=8)
    made = plan(einsum, processes=4, result="replicated", starts={"B": "replicated"})
    assert all(made.result_box(rank) == (range(600),) for rank in range(4))
    # every rank has 150 elements of the result
    assert made.counts.moved == 3 * 600
    assert "out ends as i->*" in str(made)


def test_a_requested_start_is_free_and_saves_moves():
    """Operands that are replicated already are not moved again."""
    everywhere = dict.fromkeys("AB", "replicated")
    made = plan(PRODUCT, processes=4, starts=everywhere)
    assert made.counts.moved == 0
    assert is_numpys(made)


@pytest.mark.parametrize("name", PROGRAMS)
def test_statements_start_and_end_where_requested(name):
    given = PROGRAMS[name]
    results = dict.fromkeys(given.outputs, "replicated")
    made = plan_statements(given, processes=4, results=results)
    assert_lawful(made)
    free = plan_statements(given, processes=4)
    again = plan_statements(given, processes=4, starts=free.starts)
    assert again.counts.moved <= free.counts.moved


def test_a_program_ends_where_requested():
    p = program()
    p.softmax(p.input("X", (12, 8)), name="Y")
    made = p.plan(3, starts={"X": "replicated"}, results={"Y": "replicated"})
    assert plan_program(made.program, 3).plan.ends == {}
    assert_right(made.program, run=made.simulate)
    assert made.plan.result_box(2, "Y") == (range(12), range(8))


def test_entries_stay_where_a_plan_dealt_them():
    """A later plan uses the entries where they are, or refuses to."""
    arrays = arrays_of(MTTKRP)
    nonzeros = arrays["T"].nnz
    first = plan(MTTKRP, processes=4, nonzeros=nonzeros)
    starts = {"T": first.starts["T"]}
    again = plan(MTTKRP, processes=4, nonzeros=nonzeros, starts=starts)
    assert again.starts["T"] == first.starts["T"]
    assert again.counts.moved == first.counts.moved
    sddmm = sparse_einsum(*SPARSE["sddmm"])
    with pytest.raises(PlanError, match="out is sparse, and its entries never move"):
        plan(sddmm, processes=4, nonzeros=9, result="replicated")
    with pytest.raises(PlanError, match=r"entries of T\S* never move") as caught:
        plan(MTTKRP, processes=4, nonzeros=nonzeros, starts={"T": "replicated"})
    assert caught.value.rules == ("starts",)


def test_a_run_with_requests_is_a_fact():
    """What moves from starts and to the result is counted again by the database."""
    made = plan(PRODUCT, processes=4, starts={"A": "replicated"}, result="replicated")
    store = InMemoryStore()
    record = record_run(made, make_random_arrays(made), store)
    assert Plan.from_json(record.plan) == made
    assert record.counted == made.counts.moved


def test_a_limit_of_memory_holds_with_requested_distributions():
    einsum = einsum_of("ij,jk->ik", every=64)
    free = plan(einsum, processes=4)
    made = plan(einsum, processes=4, starts=free.starts, memory=free.peak_bytes)
    assert made.peak_bytes <= free.peak_bytes
    # all of the result, beside blocks of the operands
    with pytest.raises(PlanError, match="are too few"):
        plan(einsum, processes=4, memory=64 * 64 * 8, result="replicated")


@pytest.mark.parametrize(
    ("requested", "rule", "words"),
    [
        ({"starts": {"Z": "replicated"}}, "starts", "of Z; the operands are A, B"),
        ({"starts": {"A": "rows"}}, "starts", "of A is 'rows'; expected a feinsum"),
        ({"starts": "replicated"}, "starts", "expected distributions by operand"),
        ({"result": 3}, "result", "of out is 3; expected a feinsum"),
        ({"result": Distribution(Machine((4,)), ((0,),))}, "rank", "has 2 axes"),
        ({"starts": {"A": Distribution(Machine((8,)), ((0,), ()))}}, "machine",
         "needs 8 processes"),
    ],
)  # fmt: skip
def test_impossible_requests_are_refused(requested, rule, words):
    with pytest.raises(PlanError, match=words) as caught:
        feinsum.plan(PRODUCT, processes=4, **requested)
    assert caught.value.rules == (rule,)
