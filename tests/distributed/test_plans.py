"""Plans: the result is numpy's, and what moves is what is counted."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

import feinsum
from benchmarks.papers.schedules import named_plan, named_plans
from feinsum.distributed import (
    Plan,
    assemble,
    groups_of,
    plan,
)
from feinsum.distributed.groups import find_default_path
from feinsum.distributed.steps import Transfer
from feinsum.errors import PlanError
from feinsum.ir import from_text
from tests.distributed.cases import (
    KERNELS,
    count_steps,
    einsum_of,
    is_numpys,
    operands_of,
    random_schedule,
    random_start,
)

N = 576
PRODUCT = einsum_of("ij,jk->ik", every=N)


@pytest.mark.parametrize("name", KERNELS)
def test_results_are_numpys(name):
    """Plans give numpy's result, also on primes and with idle processes; so do all
    named schedules.
    """
    for processes in (1, 6, 11):
        assert is_numpys(plan(KERNELS[name], processes=processes))
    for processes in (4, 9):
        for made in named_plans(KERNELS[name], processes=processes).values():
            assert is_numpys(made)


def random_plans(rng: random.Random, name: str, n: int) -> Iterator[Plan]:
    for _ in range(n):
        yield random_plan(rng, KERNELS[name], rng.choice([1, 2, 3, 4, 5, 6, 8, 12]))


def random_plan(rng: random.Random, einsum, processes: int) -> Plan:
    path = find_default_path(einsum, dict(einsum.extents))
    groups = groups_of(einsum, path, dict(einsum.extents))
    schedules = [random_schedule(rng, group, processes) for group in groups]
    starts = {x.name: random_start(rng, x.rank, processes) for x in einsum.operands}
    return assemble(einsum, {}, processes, path, schedules, starts=starts)


@pytest.mark.parametrize("name", KERNELS)
def test_no_legal_schedule_changes_the_result(name):
    """Random cuts, loops, rotations and copies give numpy's result. The tally without
    steps equals the sum over the steps; every message has one sender and one receiver.
    """
    rng = random.Random(name)
    for made in (plan(KERNELS[name], processes=6), *random_plans(rng, name, 8)):
        assert is_numpys(made), made.to_json()
        assert made.counts == count_steps(made.steps, made.resident_elements)
        check_messages(made)


def check_messages(made: Plan) -> None:
    sent, received = Counter(), Counter()
    for rank, row in enumerate(made.steps):
        for step in row:
            if isinstance(step, Transfer) and step.is_message:
                (sent if rank == step.sender else received)[rank, step] += 1
    assert {step: n for (_, step), n in sent.items()} == {
        step: n for (_, step), n in received.items()
    }
    assert set(sent.values()) <= {1}
    assert all(rank == step.sender for rank, step in sent)
    assert all(rank == step.receiver for rank, step in received)


def moved_by_named(name: str, processes: int, einsum=PRODUCT) -> tuple[int, int]:
    counts = named_plan(name, einsum, processes=processes).counts
    return counts.received, counts.reduced


@pytest.mark.parametrize("q", [2, 4])
def test_schedules_move_what_distal_says(q):
    """On squares 2 n^2 (q - 1) in all, and rotation decides how many read one tile at a
    time. Johnson's has both operands and the partial results at q - 1 others; 2.5D with
    c layers receives 2 (q n^2 - n^2 / c) and reduces (c - 1) n^2.
    """
    for name, requests in (("summa", q - 1), ("pumma", q - 1), ("cannon", 1)):
        assert moved_by_named(name, q * q) == (2 * N**2 * (q - 1), 0)
        made = named_plan(name, PRODUCT, processes=q * q)
        assert made.counts.most_requests == requests
    assert moved_by_named("johnson", q**3) == (2 * N**2 * (q - 1), N**2 * (q - 1))
    layered = 2 * (q * N**2 - N**2 // q), (q - 1) * N**2
    assert moved_by_named("2.5d", q**3) == layered


def test_ballard_moves_what_distal_says():
    """MTTKRP on 2x2x2: two matrices are fetched, one is reduced."""
    mttkrp = einsum_of("ijk,ja,ka->ia", i=16, j=16, k=16, a=10)
    assert moved_by_named("ballard", 8, mttkrp) == (960, 480)


def test_the_example_of_deinsum():
    """Deinsum's example has its grids and count; the planner moves less."""
    grids = named_plan("deinsum", KERNELS["paper"], processes=8)
    assert [s.machine.sizes for s in grids.schedules] == [(2, 2, 2), (2, 2, 2)]
    assert grids.counts.moved == 1275
    assert plan(KERNELS["paper"], processes=8).counts.moved == 1200


def test_a_plan_is_a_document():
    """A plan equals the one that is read from its document."""
    made = plan(KERNELS["paper"], processes=8)
    again = Plan.from_json(made.to_json())
    assert (again, again.id) == (made, made.id)
    assert again.counts == made.counts
    assert plan(KERNELS["paper"], processes=4).id != made.id


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
