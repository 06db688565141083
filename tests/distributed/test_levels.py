"""Machines of many levels: each element at its price, and no plan that is cheaper."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import pytest

from feinsum.distributed import (
    GroupSchedule,
    Levels,
    Machine,
    cheapest,
    factorizations,
    moved_by_level,
    plan,
    price,
)
from feinsum.distributed.assembly import starts_of
from feinsum.distributed.levels import copy_costs
from feinsum.distributed.schedule import result_choices, spread_result
from feinsum.errors import PlanError
from feinsum.records import Links
from tests.distributed.cases import KERNELS, einsum_of
from tests.distributed.test_plans import is_numpys


def levels(units, *element_s):
    return Levels(units, tuple(Links(0.0, s) for s in element_s))


def machines(n):
    found = {order for sizes in factorizations(n) for order in permutations(sizes)}
    return [Machine(sizes) for sizes in sorted(found)]


def all_plans(made):
    """On every machine in every order, with every map of every group; a result that is
    read again wherever it can be. They are not checked, and have no leaves.
    """
    for machine in machines(made.processes):
        ways = [[*ways_of(made, k, machine)] for k in range(len(made.groups))]
        for schedules in product(*ways):
            starts = starts_of(made.operands, made.groups, schedules, made.extents)
            yield replace(made, schedules=schedules, starts=starts, leaves=())


def ways_of(made, k, machine):
    group, is_last = made.groups[k], k + 1 == len(made.groups)
    for axes in product(group.indices, repeat=machine.n_axes):
        results = [spread_result(group, axes, machine, made.extents)]
        if not is_last:
            results = result_choices(group, axes, machine)
        for result in results:
            yield GroupSchedule(machine, axes, result)


def is_as_even(one, made):
    return one.outline().most_points <= made.outline().most_points


def cost(made, where):
    return where.cost(moved_by_level(made, where.units))[0]


def least_cost(made, where):
    return min(cost(one, where) for one in all_plans(made) if is_as_even(one, made))


@pytest.mark.parametrize("element_s", [(9.0, 3.0, 1.0), (50.0, 1.0, 1.0)])
@pytest.mark.parametrize(
    ("subscripts", "extents"),
    [("ij,jk->ik", {"i": 8, "j": 16, "k": 8}), ("ij,jk->ik", {"i": 32, "j": 8, "k": 8}),
     ("ijk,k->ij", {"i": 8, "j": 8, "k": 32}), ("ij->", {"i": 8, "j": 16})],
)  # fmt: skip
def test_no_plan_of_a_small_machine_is_cheaper(subscripts, extents, element_s):
    """By brute force, on two hosts of two sockets of two ranks."""
    einsum, where = einsum_of(subscripts, **extents), levels((4, 2), *element_s)
    made = plan(einsum, processes=8, ranks_per_host=where, most_work=1)
    assert cost(made, where) == pytest.approx(least_cost(made, where))
    assert is_numpys(made)


@pytest.mark.parametrize("lengths", [(16, 8, 8, 32), (4, 32, 8, 8)])
def test_chains_on_hosts_are_cheapest(lengths):
    """Two products on two hosts of two ranks, by brute force as well."""
    einsum = einsum_of("ij,jk,kl->il", **dict(zip("ijkl", lengths, strict=True)))
    where = levels((2,), 9.0, 1.0)
    made = plan(einsum, processes=4, ranks_per_host=where, most_work=1)
    assert cost(made, where) == pytest.approx(least_cost(made, where))


@pytest.mark.parametrize("name", ["paper", "3mm", "mttkrp-5-0", "same twice"])
def test_links_never_make_a_plan_dearer(name):
    """Than the one that only moves the fewest elements, and then between hosts."""
    where = levels((6, 2), 20.0, 4.0, 1.0)
    made = plan(KERNELS[name], processes=12, ranks_per_host=where)
    usual = plan(KERNELS[name], processes=12, ranks_per_host=Levels((6, 2)))
    assert cost(made, where) <= cost(usual, where)
    assert usual.counts.moved == plan(KERNELS[name], processes=12).counts.moved
    assert is_numpys(made)


def test_dear_links_are_avoided():
    """A plan moves more in all to move less between hosts.

    A has 216 elements and B 144. On two hosts of three, thirds of A's rows and halves
    of B's columns move 216 + 2 * 144, A between hosts; the other way round it is B.
    """
    einsum = einsum_of("ij,jk->ik", i=36, j=6, k=24)
    near = plan(einsum, processes=6, ranks_per_host=levels((3,), 1.0, 1.0))
    far = plan(einsum, processes=6, ranks_per_host=levels((3,), 100.0, 1.0))
    assert moved_by_level(near, (3,)) == (216, 288)
    assert moved_by_level(far, (3,)) == (144, 432)
    assert far.schedules[0].machine.text == "x=2 | y=3"


def test_machines_get_all_levels():
    """An axis within sockets, one between them, and one between hosts."""
    where = levels((4, 2), 9.0, 3.0, 1.0)
    made = plan(einsum_of("ij,jk->ik", every=16), processes=8, ranks_per_host=where)
    assert made.schedules[0].machine.text == "x=2 | y=2 | z=2"
    assert made.units == where.units
    assert "by level: 256 between groups of 4 ranks" in str(made)


def test_seconds_are_of_every_level():
    """Messages and elements of the slowest rank; the same links are as one level."""
    made = plan(einsum_of("ij,jk->ik", every=24), processes=8)
    link = Links(1.0, 0.5)
    alike = Levels((4, 2), (link, link, link))
    assert price(made, alike, lambda leaf: 7.0) == price(made, link, lambda leaf: 7.0)
    far = Levels((4, 2), (link, Links(0, 0), Links(0, 0)))
    only_far = 4 * moved_by_level(made, (4, 2))[0] / made.processes
    assert price(made, far, lambda leaf: 0.0) == 1.0 + only_far / 8
    assert cheapest([made], far, lambda leaf: 0.0) is made
    with pytest.raises(PlanError, match="links") as caught:
        price(made, Levels((4,)), lambda leaf: 0.0)
    assert caught.value.rules == ("price",)


def test_copies_cost_what_passes_between_them():
    """For every set of axes: an element for each other rank along them, by its link."""
    machine, where = Machine((2, 3, 2)), levels((6, 2), 8.0, 4.0, 2.0)
    places = machine.coordinates(12)
    found = copy_costs(machine, where)
    for chosen in range(8):
        others = [k for k in range(3) if not chosen >> k & 1]
        costs = [
            [1, 0.5, 0.25][sum(a // unit == b // unit for unit in (6, 2))]
            for a, b in permutations(range(12), 2)
            if (places[a, others] == places[b, others]).all()
        ]
        assert found.of_axes[chosen] == pytest.approx(sum(costs) / 12)
    assert found.of_another == pytest.approx(found.of_axes[7] / 11)


@pytest.mark.parametrize(
    ("units", "n_links", "words"),
    [((0,), 0, "at least 1"), ((2.5,), 0, "at least 1"), ((8, 3), 0, "divide"),
     ((2, 4), 0, "divide"), ((8, 2), 2, "2 links of 3 levels")],
)  # fmt: skip
def test_levels_that_are_none_are_refused(units, n_links, words):
    """Before anything is planned."""
    with pytest.raises(PlanError, match=words) as caught:
        levels(units, *[1.0] * n_links)
    assert caught.value.rules == ("processes",)
