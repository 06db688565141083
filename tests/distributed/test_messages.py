"""Collectives and phases of the messages of a plan."""

from __future__ import annotations

from collections import Counter
from itertools import cycle

import pytest

from benchmarks.papers.schedules import make_named_plan
from feinsum.distributed import plan
from feinsum.distributed.messages import build_phases
from feinsum.distributed.steps import Free, Transfer
from tests.distributed.cases import KERNELS, einsum_of


def kinds(made):
    return Counter(one.kind for one in made.collectives)


@pytest.mark.parametrize(
    ("name", "schedule", "n", "expected"),
    [
        ("1mm", "johnson", 27, {"bcast": 18, "reduce": 9}),
        ("1mm", "cannon", 9, {}),
        ("1mm", "summa", 9, {"bcast": 18}),
        ("mttkrp-3-0", "planned", 8, {"allgather": 1, "reduce-scatter": 2}),
    ],
)
def test_collectives_of_known_schedules(name, schedule, n, expected):
    """SUMMA and Johnson broadcast; Cannon's rotations are no collectives."""
    einsum = KERNELS[name]
    made = (
        plan(einsum, processes=n)
        if schedule == "planned"
        else make_named_plan(schedule, einsum, processes=n)
    )
    assert kinds(made) == expected


@pytest.mark.parametrize(("name", "n"), [*zip(KERNELS, cycle([4, 6]), strict=False)])
def test_a_collective_stands_for_all_messages_of_its_ranks(name, n):
    """A collective replaces exactly the messages of its ranks with its tag."""
    made = plan(KERNELS[name], processes=n)
    sent = Counter(
        (step.tag, rank, step.receiver, step.source, step.box)
        for rank, row in enumerate(made.steps)
        for step in row
        if isinstance(step, Transfer) and step.receiver != rank
    )
    for one in made.collectives:
        is_reduced = one.kind in ("reduce", "reduce-scatter")
        expected = Counter(
            (one.tag, *((other, rank) if is_reduced else (rank, other)), *piece)
            for rank, pieces in zip(one.ranks, one.pieces, strict=True)
            for piece in pieces
            for other in one.ranks
            if other != rank
        )
        there = {k: n for k, n in sent.items() if k[0] == one.tag and k[1] in one.ranks}
        assert there == expected


@pytest.mark.parametrize("name", ["bmm", "paper", "1mm", "same twice", "total"])
def test_phases_have_all_steps_but_sends(name):
    """Phases keep the order of the steps, also on ranks without work."""
    einsum = einsum_of("bij,bjk->bik", b=6, i=8, j=9, k=10)
    made = plan(KERNELS.get(name, einsum), processes=4)
    if name == "bmm":
        assert made.counts.busy == 3
    phases = build_phases(made.events())
    for rank, steps in enumerate(made.steps):
        row = [phase[rank] for phase in phases if rank in phase]
        run = [step for phase in row for step, _ in phase.steps]
        is_sent = [isinstance(s, Transfer) and s.receiver != rank for s in steps]
        pairs = zip(steps, is_sent, strict=True)
        expected = [s for s, sent in pairs if not (sent or isinstance(s, Free))]
        assert [s for s in run if not isinstance(s, Free)] == expected
