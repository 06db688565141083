"""Plans with cyclic distributions: right results, and little communication."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.papers.schedules import make_named_plan
from feinsum.distributed import (
    Distribution,
    Plan,
    plan,
    with_cyclic,
)
from feinsum.errors import PlanError
from tests.distributed import test_planned
from tests.distributed.cases import KERNELS, einsum_of, is_numpys


@pytest.mark.parametrize("name", ["planned", "cannon", "2.5d"])
def test_cyclic_indices_move_as_much_as_blocks(name):
    """Parts of equal length move exactly as many elements as blocks do."""
    einsum, n = einsum_of("ij,jk->ik", every=32), {"cannon": 4, "summa": 4}.get(name, 8)
    made = (
        plan(einsum, processes=n)
        if name == "planned"
        else make_named_plan(name, einsum, processes=n)
    )
    for indices in ("i", "j", "ijk"):
        dealt = with_cyclic(made, indices)
        assert dealt.counts == made.counts
        assert [one.key for one in dealt.leaves] == [one.key for one in made.leaves]
        assert is_numpys(dealt)


def test_a_rank_has_every_pth_value():
    """By definition, a rank has every p-th value of operands and results."""
    made = make_named_plan("summa", einsum_of("ij,jk->ik", i=10, j=9, k=8), processes=9)
    dealt = with_cyclic(made, "ik")
    for rank in range(9):
        (row, column), block = divmod(rank, 3), range(rank % 3 * 3, rank % 3 * 3 + 3)
        assert dealt.start_box("A", rank) == (range(10)[row::3], block)
        assert dealt.result_box(rank) == (range(10)[row::3], range(8)[column::3])


def test_bodies_see_the_values_of_cyclic_indices():
    """The mask of attention, whose body compares two indices, stays right."""
    made, arrays, _ = test_planned.on_processes(6)
    dealt = replace(made, plan=with_cyclic(made.plan, made.plan.extents))
    assert any(one.cyclic for one in dealt.plan.schedules)
    test_planned.assert_right(dealt, arrays)


def test_cyclic_plans_are_documents():
    """Cyclic plans have a mark in notation; other documents do not change."""
    made = plan(KERNELS["paper"], processes=8)
    dealt = with_cyclic(made, "ij")
    assert Plan.from_json(dealt.to_json()) == dealt
    assert dealt.id != made.id
    assert "cyclic" not in made.to_json()
    assert "x=2 deals i, y=2 deals j, z=2 cuts k" in str(dealt)
    for operand, held in dealt.starts.items():
        if len(set(sum(held.cuts, ()))) == len(held.cuts):
            text = held.notation("xyz"[: len(held.cuts)])
            assert Distribution.parse(text, held.machine) == held, operand
    assert with_cyclic(dealt, ()) == made


def test_wrong_cyclic_indices_are_refused():
    """An unknown index and a cyclic axis without an index raise errors."""
    made = plan(KERNELS["1mm"], processes=2)
    with pytest.raises(PlanError, match="no index z; there are") as no:
        with_cyclic(made, "iz")
    assert no.value.rules == ("cyclic",)
    (schedule,) = made.schedules
    wrong = replace(made, schedules=(replace(schedule, cyclic=(0, 0)),))
    with pytest.raises(PlanError, match="cyclic axes") as caught:
        wrong.check()
    assert "axes" in caught.value.rules
