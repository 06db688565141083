"""Messages that are those of a collective of MPI."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.papers.schedules import named_plan
from feinsum.distributed import plan
from feinsum.distributed.messages import collectives_of
from feinsum.distributed.steps import Receive, Reduce, Send
from tests.distributed.cases import KERNELS


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
def test_schedules_have_the_collectives_that_they_are_known_for(
    name, schedule, n, expected
):
    """Broadcasts of SUMMA and Johnson; Cannon's rotations are none."""
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
    """Everyone's pieces go to all others, and no other message has that tag there."""
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


BOX, PART = (range(4),), (range(2),)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([[Send(1, "A", BOX, 1), Send(2, "A", BOX, 1)], [], []], "bcast"),
        ([[Send(1, "A", BOX, 1), Send(2, "A", PART, 1)], [], []], None),
        ([[Send(1, "A", BOX, 1)], []], None),
        (
            [
                [Send(1, "A", BOX, 1), Send(2, "A", BOX, 1)],
                [Send(0, "A", PART, 1), Send(2, "A", PART, 1)],
                [],
            ],
            "allgather",
        ),
        (
            [[Send(1, "A", BOX, 1)], [Send(2, "A", BOX, 1)], [Send(0, "A", BOX, 1)]],
            None,
        ),
    ],
)
def test_patterns(rows, kind):
    """One to all, all to all, a shift."""
    (found,) = collectives_of(tuple(map(tuple, rows))) or (None,)
    assert (found and found.kind) == kind


def test_reductions():
    """One gets all; or all get a part each."""
    to_one = [[Reduce(1, "t", BOX, 3), Reduce(2, "t", BOX, 3)],
              [Send(0, "t+", BOX, 3)], [Send(0, "t+", BOX, 3)]]  # fmt: skip
    (found,) = collectives_of(tuple(map(tuple, to_one)))
    assert (found.kind, found.root) == ("reduce", 0)
    to_one[0].append(Receive(1, "u", BOX, 4))
    to_one[1].append(Send(0, "u", BOX, 4))
    assert len(collectives_of(tuple(map(tuple, to_one)))) == 1
