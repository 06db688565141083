"""The lower bound of what a process passes: no plan is below it, and some attain it."""

from __future__ import annotations

from math import ceil, prod

import pytest

from benchmarks.papers.least import compute_least_communication
from feinsum.distributed import groups_of, plan
from feinsum.distributed.boxes import count_entries
from feinsum.distributed.steps import Transfer
from tests.distributed.cases import KERNELS, einsum_of
from tests.distributed.test_levels import all_plans


def most_passed(made):
    """Operands that a rank receives and sums that it sends, message by message."""
    return max(
        sum(
            count_entries(step.box)
            for step in row
            if isinstance(step, Transfer) and is_passed(step, rank)
        )
        for rank, row in enumerate(made.steps)
    )


def is_passed(step, rank):
    if not step.is_message:
        return False
    is_operand = rank == step.receiver and not step.is_added
    return is_operand or (rank == step.sender and step.source.endswith("+"))


def bound_of(made):
    (group,) = made.groups
    return compute_least_communication(group, made.extents, made.processes)


def has_shares(made):
    """Whether no rank holds more of a tensor than its share, before or after."""
    tensors = {**made.starts, made.outputs[0]: made.result}
    return all(
        max(held.boxes(made.shape(name), made.processes).sizes())
        <= ceil(prod(made.shape(name)) / made.processes)
        for name, held in tensors.items()
    )


@pytest.mark.parametrize(
    ("subscripts", "extents"),
    [("ij,jk->ik", {"i": 8, "j": 16, "k": 8}), ("ij,jk->ik", {"every": 12}),
     ("ijk,k->ij", {"every": 8}), ("ij,ij->i", {"every": 8})],
)  # fmt: skip
@pytest.mark.parametrize("processes", [4, 8])
def test_no_plan_passes_less(subscripts, extents, processes):
    """Whatever indices its axes cut, on every machine."""
    made = plan(einsum_of(subscripts, **extents), processes=processes)
    plans = [one for one in all_plans(made) if has_shares(one)]
    assert len(plans) > 3
    assert min(map(most_passed, plans)) >= bound_of(made)


@pytest.mark.parametrize("q", [2, 4])
def test_cubes_attain_it(q):
    """A block of each matrix, of which one in q entries is there already."""
    einsum = einsum_of("ij,jk->ik", every=16 * q)
    made = plan(einsum, processes=q**3)
    assert bound_of(made) == 3 * (16**2 - 16**2 // q) == most_passed(made)


def test_what_has_one_value_or_one_process_passes_nothing():
    """Nor does a sum over a tensor that stays where it is."""
    for name, processes in (("total", 8), ("ttv", 1), ("outer", 1)):
        einsum = KERNELS[name]
        (group,) = groups_of(einsum, None, einsum.extents)
        assert compute_least_communication(group, einsum.extents, processes) == 0
    (group,) = groups_of(einsum, None, einsum.extents)
    assert compute_least_communication(group, dict.fromkeys(group.indices, 1), 4) == 0
