"""Collectives and phases of the messages of a plan."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from benchmarks.papers.schedules import named_plan
from feinsum.distributed import plan
from feinsum.distributed.boxes import Overlap
from feinsum.distributed.messages import collectives_of, phases_of
from feinsum.distributed.steps import Free, Move, Send
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
        else named_plan(schedule, einsum, processes=n)
    )
    assert kinds(made) == expected


@pytest.mark.parametrize("name", list(KERNELS))
@pytest.mark.parametrize("n", [4, 6])
def test_a_collective_stands_for_all_messages_of_its_ranks(name, n):
    """A collective replaces exactly the messages of its ranks with its tag."""
    made = plan(KERNELS[name], processes=n)
    sent = Counter(
        (step.tag, rank, step.rank, step.source, step.box)
        for rank, row in enumerate(made.steps)
        for step in row
        if isinstance(step, Send)
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


def move_of(*pairs, is_added=False):
    """Return a move of boxes ``range(n)`` from sources to targets."""
    source, target, n = (np.array(column) for column in zip(*pairs, strict=True))
    first, end = np.zeros((len(n), 1), np.int64), n[:, None]
    return Move("A", "t", Overlap(source, target, first, end, (1,)), 1, is_added)


@pytest.mark.parametrize(
    ("pairs", "kind"),
    [
        ([(0, 1, 4), (0, 2, 4)], "bcast"),
        ([(0, 1, 4), (0, 2, 2)], None),
        ([(0, 1, 4)], None),
        ([(0, 1, 4), (0, 2, 4), (1, 0, 2), (1, 2, 2)], "allgather"),
        ([(0, 1, 4), (1, 2, 4), (2, 0, 4)], None),
    ],
)
def test_patterns(pairs, kind):
    """One rank to all is a broadcast, all to all an allgather, a shift neither."""
    (found,) = collectives_of([move_of(*pairs)]) or (None,)
    assert (found and found.kind) == kind


def test_reductions():
    """Messages that are added form a reduction."""
    (found,) = collectives_of([move_of((1, 0, 4), (2, 0, 4), is_added=True)])
    assert (found.kind, found.root) == ("reduce", 0)


@pytest.mark.parametrize("name", ["bmm", *KERNELS])
def test_phases_have_all_steps_but_sends(name):
    """Phases keep the order of the steps, also on ranks without work."""
    einsum = einsum_of("bij,bjk->bik", b=6, i=8, j=9, k=10)
    made = plan(KERNELS.get(name, einsum), processes=4)
    if name == "bmm":
        assert made.counts.busy == 3
    phases = phases_of(made.events())
    for rank, steps in enumerate(made.steps):
        row = [phase[rank] for phase in phases if rank in phase]
        run = [step for phase in row for step, _ in phase.steps]
        expected = [s for s in steps if not isinstance(s, Send | Free)]
        assert [s for s in run if not isinstance(s, Free)] == expected
