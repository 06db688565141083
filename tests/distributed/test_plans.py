"""Plans: the result is numpy's, and what moves is what is counted."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest

import feinsum
from benchmarks.papers.schedules import make_named_plans
from feinsum.distributed import Plan, plan, with_cyclic, with_processes, with_sizes
from feinsum.errors import PlanError
from feinsum.ir import from_text
from tests.distributed.cases import (
    KERNELS,
    PROBLEMS,
    PROGRAMS,
    assert_lawful,
    einsum_of,
    is_numpys,
    operands_of,
    random_plan,
    random_start,
)


@pytest.mark.parametrize("name", KERNELS)
def test_results_are_numpys(name):
    """Plans give numpy's result, also on primes and with idle processes; so do all
    named schedules.
    """
    for processes in (1, 6, 11):
        assert is_numpys(plan(KERNELS[name], processes=processes))
    for processes in (4, 9):
        for made in make_named_plans(KERNELS[name], processes=processes).values():
            assert is_numpys(made)


@pytest.mark.parametrize("name", PROBLEMS)
def test_laws_hold_for_any_plan(name):
    """Whatever is partitioned, replicated, cyclic, looped, rotated or requested, at
    any extents.
    """
    rng, problem = random.Random(name), PROBLEMS[name]
    for k in range(12):
        processes = rng.choice([1, 2, 3, 4, 5, 6, 8, 12])
        made = random_plan(rng, problem, processes)
        if k % 3 == 1:
            made = with_cyclic(made, [i for i in made.extents if rng.random() < 0.6])
        if k % 3 == 2:
            ends = {
                output: random_start(rng, len(made.shape(output)), processes)
                for output in made.outputs
            }
            made = replace(made, ends=ends).check()
            assert ends.items() <= made.final_distributions.items()
        assert_lawful(made)


@pytest.mark.parametrize("name", PROBLEMS)
def test_laws_hold_at_any_extents(name):
    """Extents may be ragged, or shorter than the machine; distributions stay."""
    rng, problem = random.Random(name), PROBLEMS[name]
    made = random_plan(rng, problem, rng.choice([2, 3, 4, 6]))
    # one array that is read twice has one shape
    is_alike = name in PROGRAMS or len(problem.operands) < problem.n_operands
    extents = {i: 9 if is_alike else rng.randrange(1, 14) for i in made.extents}
    resized = with_sizes(made, extents)
    assert_lawful(resized)
    assert resized.final_distributions == made.final_distributions


@pytest.mark.parametrize("name", PROBLEMS)
def test_laws_hold_on_any_machine(name):
    """Axes may have any sizes, also one, or more than an index has values."""
    rng, problem = random.Random(name), PROBLEMS[name]
    made = random_plan(rng, problem, rng.choice([2, 3, 4, 6]))
    if len({s.machine for s in made.schedules}) == 1:
        assert_lawful(with_processes(made, rng.choice([1, 5, 7, 8, 12])))


@pytest.mark.parametrize("name", ["1mm", "paper", "same twice", "total"])
def test_a_leaf_is_a_workload_of_the_database(name):
    """The text of a leaf reads back as an einsum with its key."""
    for leaf in plan(KERNELS[name], processes=4).leaves:
        assert feinsum.canonicalize(from_text(leaf.text)).key == leaf.key


def test_leaves_are_keys_of_blocks():
    """The key of a leaf is the key of an einsum with the block's extents."""
    made = plan(einsum_of("ij,jk->ik", i=40, j=20, k=40), processes=4)
    block = einsum_of("ij,jk->ik", i=20, j=20, k=20)
    assert [leaf.key for leaf in made.leaves] == [feinsum.canonicalize(block).key]


TAMPERED = {
    "leaf": [lambda d: d["leaves"][0].update(key="fe2-nauty2.8-0000")],
    "format": [
        lambda d: d.update(format=2),
        lambda d: d.update(einsum="i j,"),
        lambda d: d.update(einsum="__import__('os')"),
        lambda d: d.update(unknown=1),
    ],
    "processes": [lambda d: d.update(processes=0), lambda d: d.update(processes=10**9)],
    "machine": [lambda d: d.update(processes=2)],
    "groups": [lambda d: d["schedules"].pop()],
    "starts": [lambda d: d["starts"].pop("A")],
    "axes": [lambda d: d["schedules"][0]["axes"].__setitem__(0, "zz")],
    "loop": [
        lambda d: d["schedules"][0].update(
            loop={"index": "i", "parts": 2, "rotate": []}
        ),
        lambda d: d["schedules"][0].update(
            loop={"index": "k", "parts": 10**12, "rotate": []}
        ),
    ],
    "path": [lambda d: d.update(path=[[0, 9]]), lambda d: d.update(path=[[-1, 0]])],
    "rank": [lambda d: d["starts"]["A"].update(cuts=[[0]])],
    "axis": [lambda d: d["starts"]["A"].update(cuts=[[0], [0], []])],
    "result": [lambda d: d["schedules"][0]["result"].update(cuts=[[0], []], fixed=[])],
    "sizes": [lambda d: d.update(sizes={"n": 3})],
}


@pytest.mark.parametrize(
    ("rule", "tamper"),
    [(rule, x) for rule, several in TAMPERED.items() for x in several],
)
def test_a_tampered_document_is_refused(rule, tamper):
    """A tampered document is refused with the broken rule."""
    document = json.loads(plan(KERNELS["paper"], processes=8).to_json())
    tamper(document)
    with pytest.raises(PlanError) as caught:
        Plan.from_json(json.dumps(document))
    assert rule in caught.value.rules


def test_other_texts_are_refused():
    """Text that is no plan is refused."""
    for text in ("", "{}", "[1]", '{"einsum": 3}', "null"):
        with pytest.raises(PlanError, match="not a valid plan"):
            Plan.from_json(text)


def test_operands_must_be_those_of_the_plan():
    """Names, shapes and dtypes are checked before anything is computed."""
    made = plan(KERNELS["1mm"], processes=2)
    operands = operands_of(made.batched_einsum)
    bad = [
        ({"A": operands["A"]}, "expected A, B"),
        ({**operands, "A": operands["A"][1:]}, "expected .10, 7. and float64"),
        ({**operands, "A": operands["A"].astype("f4")}, "float32"),
    ]
    for given, words in bad:
        with pytest.raises(PlanError, match=words) as caught:
            made.simulate(given)
        assert caught.value.rules == ("blocks",)


def test_words_may_name_indices():
    """Words as index names give the same results as letters, which programs have."""
    A, B = feinsum.array("A", (6, 4)), feinsum.array("B", (4, 5))
    einsum = feinsum.einsum("{row}{mid}, {mid}{col} -> {row}{col}", A, B)
    made = plan(einsum, processes=4)
    operands = operands_of(made.batched_einsum)
    assert (made.simulate(operands) == operands["A"] @ operands["B"]).all()
    text = made.to_python()
    compile(text, "program.py", "exec")
    assert "'ab,bc->ac'" in text


def test_the_text_of_a_plan():
    """The text of a plan has groups, cuts and counts."""
    text = str(plan(KERNELS["paper"], processes=8))
    assert "x=2 cuts i" in text
    assert "moved 1,200 elements" in text
    assert "processes have no work" in str(plan(KERNELS["total"], processes=13))


def test_extents_of_zero_and_no_indices():
    """Extents of zero give zeros; a product of numbers has no index to cut."""
    empty = einsum_of("ij,jk->ik", i=4, j=0, k=3)
    made = plan(empty, processes=4)
    assert made.simulate(operands_of(empty)).tolist() == np.zeros((4, 3)).tolist()
    assert is_numpys(plan(einsum_of(",->"), processes=3))
