"""Plans: the result is numpy's, and what moves is what is counted."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.papers.schedules import named_plan, named_plans
from feinsum.distributed import (
    Distribution,
    GroupSchedule,
    Loop,
    Machine,
    Plan,
    assemble,
    factorizations,
    groups_of,
    plan,
)
from feinsum.distributed.groups import default_path
from feinsum.distributed.schedule import result_choices
from feinsum.distributed.steps import Receive, Reduce, Send
from feinsum.errors import PlanError
from tests.distributed.cases import (
    KERNELS,
    count_steps,
    einsum_of,
    is_numpys,
    operands_of,
)

N = 576
PRODUCT = einsum_of("ij,jk->ik", every=N)


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 6, 7, 8, 11, 16])
@pytest.mark.parametrize("name", KERNELS)
def test_planned_results_are_numpys(name, processes):
    """Plans give numpy's result, also on primes and with idle processes."""
    assert is_numpys(plan(KERNELS[name], processes=processes))


@pytest.mark.parametrize("processes", [4, 6, 8, 9, 16])
@pytest.mark.parametrize("name", KERNELS)
def test_named_results_are_numpys(name, processes):
    """All named schedules give numpy's result."""
    for made in named_plans(KERNELS[name], processes=processes).values():
        assert is_numpys(made)


def choose_axes(rng: random.Random, machine: Machine) -> list[int]:
    return [k for k in range(machine.n_axes) if rng.random() < 0.3]


def make_cyclic(rng: random.Random, held: Distribution) -> Distribution:
    """Make the distribution along some axes cyclic."""
    cutting = {k for cuts in held.cuts for k in cuts}
    return replace(
        held, cyclic=tuple(k for k in choose_axes(rng, held.machine) if k in cutting)
    )


def random_plan(rng: random.Random, name: str) -> Plan:
    """Return a legal plan that nobody would make."""
    einsum = KERNELS[name]
    extents = dict(einsum.extents)
    path = default_path(einsum, extents)
    groups = groups_of(einsum, path, extents)
    processes = rng.choice([1, 2, 3, 4, 5, 6, 8, 12])
    schedules = []
    for group in groups:
        sizes = list(rng.choice(list(factorizations(processes))))
        rng.shuffle(sizes)
        machine = Machine(tuple(sizes))
        axes = tuple(rng.choice([*group.indices, None]) for _ in sizes)
        result = rng.choice(list(result_choices(group, axes, machine)))
        copied = {k for k, i in enumerate(axes) if i is None}
        moved = [(k, rng.randrange(machine.sizes[k])) for k, _ in result.fixed]
        result = replace(
            result, fixed=tuple((k, p) for k, p in moved if k not in copied)
        )
        if rng.random() < 0.3:
            result = replace(
                result, cuts=tuple(rng.sample(result.cuts, len(result.cuts)))
            )
        loop = None
        if group.summed and rng.random() < 0.6:
            turn = tuple(k for k in range(machine.n_axes) if rng.random() < 0.5)
            loop = Loop(
                rng.choice(group.summed), rng.randrange(1, 5), turn, rng.random() < 0.3
            )
        cyclic = tuple(k for k in choose_axes(rng, machine) if axes[k] is not None)
        result = make_cyclic(rng, result)
        schedules.append(GroupSchedule(machine, axes, result, loop, cyclic))
    starts = {}
    for operand in einsum.operands:
        machine = Machine(rng.choice(list(factorizations(processes))))
        cuts: list[tuple[int, ...]] = [()] * operand.rank
        fixed = []
        for k in range(machine.n_axes):
            where = rng.randrange(-2, operand.rank)
            if where >= 0:
                cuts[where] = (*cuts[where], k)
            elif where == -1:
                fixed.append((k, rng.randrange(machine.sizes[k])))
        start = Distribution(machine, tuple(cuts), tuple(fixed))
        starts[operand.name] = make_cyclic(rng, start)
    return assemble(
        einsum, {}, processes, path, schedules, starts=starts, name="random"
    )


@pytest.mark.parametrize("name", KERNELS)
def test_no_legal_schedule_changes_the_result(name):
    """Random cuts, loops, rotations and copies give numpy's result."""
    rng = random.Random(name)
    for _ in range(12):
        made = random_plan(rng, name)
        assert is_numpys(made), made.to_json()


@pytest.mark.parametrize("name", KERNELS)
def test_counts_are_sums_over_steps(name):
    """The tally without steps equals the sum over the steps."""
    rng = random.Random(name)
    plans = [random_plan(rng, name) for _ in range(5)]
    plans += [plan(KERNELS[name], processes=p) for p in (1, 4, 7)]
    for made in plans:
        assert made.counts == count_steps(made.steps, made.resident_elements)


@pytest.mark.parametrize("name", KERNELS)
def test_every_message_is_sent_and_received_once(name):
    """Every message has one sender and one receiver, which are different ranks."""
    made = plan(KERNELS[name], processes=6)
    sent = [
        (of, s.rank, s.tag, s.box)
        for of, row in enumerate(made.steps)
        for s in row
        if isinstance(s, Send)
    ]
    received = [
        (s.rank, to, s.tag, s.box)
        for to, row in enumerate(made.steps)
        for s in row
        if isinstance(s, Receive | Reduce)
    ]
    assert Counter(sent) == Counter(received)
    assert len(set(sent)) == len(sent)
    assert all(of != to for of, to, _, _ in sent)


@pytest.mark.parametrize("q", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("name", "requests"), [("summa", -1), ("pumma", -1), ("cannon", 1)]
)
def test_squares_move_what_distal_says(q, name, requests):
    """2 n^2 (q - 1) in all; rotation decides how many ask for one tile at a time."""
    counts = named_plan(name, PRODUCT, processes=q * q).counts
    assert (counts.received, counts.reduced) == (2 * N**2 * (q - 1), 0)
    assert counts.most_requests == (q + requests if requests < 0 else requests)


@pytest.mark.parametrize("q", [2, 3, 4])
def test_johnson_moves_what_distal_says(q):
    """Both operands to q - 1 others, and q - 1 partial results."""
    counts = named_plan("johnson", PRODUCT, processes=q**3).counts
    assert (counts.received, counts.reduced) == (2 * N**2 * (q - 1), N**2 * (q - 1))


@pytest.mark.parametrize(("q", "c"), [(2, 2), (4, 4)])
def test_layers_move_what_distal_says(q, c):
    """2 (q n^2 - n^2 / c) received and (c - 1) n^2 reduced."""
    counts = named_plan("2.5d", PRODUCT, processes=q * q * c).counts
    assert counts.received == 2 * (q * N**2 - N**2 // c)
    assert counts.reduced == (c - 1) * N**2


def test_ballard_moves_what_distal_says():
    """MTTKRP on 2x2x2: two matrices are fetched, one is reduced."""
    mttkrp = einsum_of("ijk,ja,ka->ia", i=16, j=16, k=16, a=10)
    counts = named_plan("ballard", mttkrp, processes=8).counts
    assert (counts.received, counts.reduced) == (960, 480)


@pytest.mark.parametrize(("name", "moved"), [("ttv", 0), ("ttm", 0), ("innerprod", 7)])
def test_kernels_that_move_nearly_nothing(name, moved):
    """A tensor stays where it is; of an inner product, sums pass to one."""
    sizes = {"every": 16}
    subscripts = {"ttv": "ijk,k->ij", "ttm": "ijk,kl->ijl", "innerprod": "ijk,ijk->"}
    counts = plan(einsum_of(subscripts[name], **sizes), processes=8).counts
    assert counts.reduced == moved
    # one copy of the small operand is there; others are fetched by those with work
    small = {"ttv": 16, "ttm": 256, "innerprod": 0}[name]
    assert counts.received <= 7 * small
    assert (counts.received == 0) == (small == 0)


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


def test_leaves_are_keys_of_blocks():
    """The key of a leaf is the key of an einsum with the block's extents."""
    import feinsum

    made = plan(einsum_of("ij,jk->ik", i=40, j=20, k=40), processes=4)
    block = einsum_of("ij,jk->ik", i=20, j=20, k=20)
    assert [leaf.key for leaf in made.leaves] == [feinsum.canonicalize(block).key]


@pytest.mark.parametrize("name", KERNELS)
def test_a_leaf_is_a_workload_of_the_database(name):
    """The text of a leaf reads back as an einsum with its key."""
    import feinsum
    from feinsum.ir import from_text

    for leaf in plan(KERNELS[name], processes=4).leaves:
        assert feinsum.canonicalize(from_text(leaf.text)).key == leaf.key


TAMPERED = {
    "leaf": lambda d: d["leaves"][0].update(key="fe2-nauty2.8-0000"),
    "format": lambda d: d.update(format=2),
    "processes": lambda d: d.update(processes=0),
    "machine": lambda d: d.update(processes=2),
    "groups": lambda d: d["schedules"].pop(),
    "starts": lambda d: d["starts"].pop("A"),
    "axes": lambda d: d["schedules"][0]["axes"].__setitem__(0, "zz"),
    "loop": lambda d: d["schedules"][0].update(
        loop={"index": "i", "parts": 2, "rotate": []}
    ),
    "path": lambda d: d.update(path=[[0, 9]]),
    "rank": lambda d: d["starts"]["A"].update(cuts=[[0]]),
    "axis": lambda d: d["starts"]["A"].update(cuts=[[0], [0], []]),
    "result": lambda d: d["schedules"][0]["result"].update(cuts=[[0], []], fixed=[]),
    "sizes": lambda d: d.update(sizes={"n": 3}),
}


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"einsum": "i j,"}, "format"),
        ({"einsum": "__import__('os')"}, "format"),
        ({"unknown": 1}, "format"),
        ({"processes": 10**9}, "processes"),
        ({"path": [[-1, 0]]}, "path"),
    ],
)
def test_other_changes_are_refused(change, rule):
    """Invalid einsums, unknown fields and numbers out of range break rules."""
    document = json.loads(plan(KERNELS["paper"], processes=8).to_json()) | change
    with pytest.raises(PlanError) as caught:
        Plan.from_json(json.dumps(document))
    assert rule in caught.value.rules


def test_a_loop_without_end_is_refused():
    """A loop with too many parts is refused."""
    document = json.loads(plan(KERNELS["1mm"], processes=4).to_json())
    document["schedules"][0]["loop"] = {"index": "j", "parts": 10**12, "rotate": []}
    with pytest.raises(PlanError, match=f"{10**12} parts"):
        Plan.from_json(json.dumps(document))


@pytest.mark.parametrize("rule", TAMPERED)
def test_a_tampered_document_is_refused(rule):
    """A tampered document is refused with the broken rule."""
    document = json.loads(plan(KERNELS["paper"], processes=8).to_json())
    TAMPERED[rule](document)
    with pytest.raises(PlanError) as caught:
        Plan.from_json(json.dumps(document))
    assert rule in caught.value.rules


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"einsum": 3}', "null"])
def test_other_texts_are_refused(text):
    """Text that is no plan is refused."""
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
    """Words as index names give the same results as letters."""
    import feinsum

    A, B = feinsum.array("A", (6, 4)), feinsum.array("B", (4, 5))
    made = plan(
        feinsum.einsum("{row}{mid}, {mid}{col} -> {row}{col}", A, B), processes=4
    )
    operands = operands_of(made.batched_einsum)
    assert (made.simulate(operands) == operands["A"] @ operands["B"]).all()


def test_words_become_letters_in_a_program():
    """Standalone programs replace words by letters and compile."""
    import feinsum

    A, B = feinsum.array("A", (6, 4)), feinsum.array("B", (4, 5))
    einsum = feinsum.einsum("{row}{mid}, {mid}{col} -> {row}{col}", A, B)
    text = plan(einsum, processes=4).to_python()
    compile(text, "program.py", "exec")
    assert "'ab,bc->ac'" in text


def test_the_text_of_a_plan():
    """The text of a plan has groups, cuts and counts."""
    text = str(plan(KERNELS["paper"], processes=8))
    assert "x=2 cuts i" in text
    assert "moved 1,200 elements" in text
    assert "processes have no work" in str(plan(KERNELS["total"], processes=13))


def test_zero_extents_give_zeros():
    """Extents of zero give zeros."""
    empty = einsum_of("ij,jk->ik", i=4, j=0, k=3)
    made = plan(empty, processes=4)
    assert made.simulate(operands_of(empty)).tolist() == np.zeros((4, 3)).tolist()


def test_scalars_alone_are_planned():
    """A product of numbers has no index to cut."""
    assert is_numpys(plan(einsum_of(",->"), processes=3))
