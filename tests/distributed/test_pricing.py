"""Prices of plans, and the paths that plans have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from feinsum.distributed import best_plans, cheapest, groups_of, plan, price
from feinsum.distributed.planner import paths_of
from feinsum.distributed.statements import default_path
from feinsum.errors import InvalidRecordError, PlanError
from feinsum.records import Links
from tests.distributed.cases import KERNELS, einsum_of

PRODUCT = einsum_of("ij,jk->ik", every=600)


@pytest.mark.parametrize("name", ["1mm", "paper", "mttkrp-3-0"])
def test_the_best_plans_are_different_and_in_order(name):
    """The planner's first; none moves less."""
    found = best_plans(KERNELS[name], processes=8, most=3)
    assert found[0] == plan(KERNELS[name], processes=8)
    assert len({one.id for one in found}) == len(found) == 3
    moved = [one.counts.moved for one in found]
    assert moved == sorted(moved)


def test_the_best_plans_differ_in_more_than_their_names():
    """A named schedule that the planner chose is not listed again."""
    for processes in (4, 8):
        found = best_plans(PRODUCT, processes=processes, most=20)
        assert len({replace(one, name="").id for one in found}) == len(found)


def test_a_price_is_messages_elements_and_leaves():
    """Of the process that has the most of them."""
    made = plan(PRODUCT, processes=8)
    counts = made.counts
    found = price(made, Links(1.0, 0.5), lambda leaf: 100.0)
    assert found == counts.most_messages + 0.5 * counts.most_received + 100
    assert price(made, Links(0, 0), lambda leaf: 0.0) == 0


def test_links_decide_between_plans():
    """With dear elements the fewest are chosen, with dear leaves the fastest ones."""
    plans = best_plans(PRODUCT, processes=8, most=20)
    dear = Links(0.0, 1.0)
    least = min(plans, key=lambda one: one.counts.most_received)
    assert cheapest(plans, dear, lambda leaf: 1.0).counts.most_received == (
        least.counts.most_received
    )
    usual = plans[0].leaves[0].key
    chosen = next(k for one in plans if (k := one.leaves[0].key) != usual)
    fast = cheapest(plans, Links(0, 0), lambda leaf: float(leaf.key != chosen))
    assert fast.leaves[0].key == chosen
    asked = []
    cheapest(plans, dear, lambda leaf: asked.append(leaf.key) or 1.0)
    assert len(set(asked)) == len(asked)


def test_bad_prices_are_refused():
    """Times below zero, and a choice of nothing."""
    for times in ((-1.0, 0.0), (0.0, float("nan"))):
        with pytest.raises(InvalidRecordError, match="numbers from 0"):
            Links(*times)
    with pytest.raises(PlanError) as caught:
        cheapest([], Links(0, 0), lambda leaf: 0.0)
    assert caught.value.rules == ("price",)


def test_paths_are_different_and_of_few_operations():
    """The default path first; no two have the same groups."""
    einsum = einsum_of("ijk,ja,ka,al->il", every=10)
    extents = dict(einsum.extents)
    paths = paths_of(einsum, extents)
    assert paths[0] == default_path(einsum, extents)
    assert 1 < len(paths) <= 4
    texts = {str(groups_of(einsum, path, extents)) for path in paths}
    assert len(texts) == len(paths)
    many = einsum_of("ab,bc,cd,de,ef,fg->ag", every=10)
    assert len(paths_of(many, dict(many.extents))) == 1


def test_another_path_is_taken_if_less_is_moved():
    """Here half of what the default path moves; a path that is given is kept."""
    einsum = einsum_of("ijk,ja,ka,al->il", a=8, i=32, j=32, k=128, l=16)
    usual = default_path(einsum, dict(einsum.extents))
    given = plan(einsum, processes=8, path=usual)
    free = plan(einsum, processes=8)
    assert given.path == usual != free.path
    assert free.counts.moved < 0.6 * given.counts.moved
