"""Levels of machines: what passes at each of them, and plans that keep it low."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import permutations, product
from math import inf

import pytest
from typer.testing import CliRunner

from feinsum.cli import app
from feinsum.distributed import (
    Distribution,
    GroupSchedule,
    Levels,
    Machine,
    Plan,
    between_hosts,
    cheapest,
    factorizations,
    moved_by_level,
    plan,
    plan_statements,
    price,
)
from feinsum.distributed.assembly import arrange_axes, place_operands
from feinsum.distributed.boxes import count_entries
from feinsum.distributed.levels import compute_copy_costs
from feinsum.distributed.schedule import list_result_choices, spread_result
from feinsum.distributed.steps import Transfer
from feinsum.errors import PlanError
from feinsum.records import Links
from tests.distributed.cases import KERNELS, PROGRAMS, einsum_of, is_numpys

NAMES = ["paper", "1mm", "mttkrp-3-0", "same twice", "total"]


def by_steps(made, ranks_per_host):
    """What passes between hosts, message by message."""
    found = Counter()
    for rank, row in enumerate(made.steps):
        for step in row:
            if isinstance(step, Transfer) and step.sender != rank:
                is_far = step.sender // ranks_per_host != rank // ranks_per_host
                found[is_far] += count_entries(step.box)
    return found[True]


@pytest.mark.parametrize("name", NAMES)
def test_what_passes_at_each_level_is_a_sum_over_messages(name):
    """Each element counts at the outermost level that it passes: with one rank per host
    all count, with a single host none do.
    """
    made = plan(KERNELS[name], processes=12)
    for ranks_per_host in (1, 3, 12):
        found = between_hosts(made, ranks_per_host)
        assert found == by_steps(made, ranks_per_host)
    for units in ((), (4,), (6, 3, 1)):
        found = moved_by_level(made, units)
        assert sum(found) == made.counts.moved
        for k, unit in enumerate(units):
            assert sum(found[: k + 1]) == by_steps(made, unit)


@pytest.mark.parametrize("name", NAMES)
def test_the_best_order_of_axes_is_taken(name):
    """It moves as much as before, less of it between hosts, and the result is numpy's.

    No order of the axes is better.
    """
    first = plan(KERNELS[name], processes=12)
    made = plan(KERNELS[name], processes=12, ranks_per_host=4)
    assert made.counts.moved <= first.counts.moved
    assert between_hosts(made, 4) <= between_hosts(first, 4)
    assert arrange_axes([made], Levels((4,))) == made
    assert is_numpys(made)


def test_machines_of_several_levels_are_text_and_documents():
    """Axes of an inner level follow a bar; a machine of one level is as before."""
    flat, deep = Machine((2, 3)), Machine((2, 3, 2), (1, 1, 1))
    assert Machine((2, 3), (2,)) == flat
    assert deep.text == "x=2 | y=3 | z=2"
    assert deep.units == (6, 2)
    for machine in (flat, deep, Machine(()), Machine((4, 2), (1, 1))):
        assert Machine.parse(machine.text) == machine
    held = Distribution.parse("ij->i|*|j", deep)
    assert held == Distribution.parse("ij->i*j", deep)
    assert held.notation("ij") == "ij->i|*|j"
    made = plan(KERNELS["1mm"], processes=4, ranks_per_host=2)
    assert made.schedules[0].machine.levels == (1, 1)
    assert Plan.from_json(made.to_json()) == made
    assert "levels" not in plan(KERNELS["1mm"], processes=4).to_json()
    assert is_numpys(made)


@pytest.mark.parametrize("text", ["", "x=2 | ", "y=2", "x=2 x=2", "x=-1", "x2", "x=²"])
def test_wrong_text_of_a_machine_is_refused(text):
    """The error says which notation was expected."""
    with pytest.raises(PlanError, match="expected such as 'x=2 y=3'") as caught:
        Machine.parse(text)
    assert caught.value.rules == ("notation",)


def test_levels_that_do_not_fit_are_refused():
    """Axes without a level, misplaced bars and different hosts raise errors."""
    made = plan(KERNELS["paper"], processes=8, ranks_per_host=4)
    text = made.to_json()
    for levels, wrong in (("[1,1]", "3 together"), ("[3,0]", "one or more")):
        with pytest.raises(PlanError, match=wrong) as caught:
            Plan.from_json(text.replace('"levels":[1,2]', f'"levels":{levels}'))
        assert "machine" in caught.value.rules
    for notation, wrong in (("ij->ij|", "names 3 axes"), ("ij->|ij", "names 3 axes")):
        with pytest.raises(PlanError, match=wrong):
            Distribution.parse(notation, Machine((2, 2), (1, 1)))
    with pytest.raises(PlanError, match="a name twice"):
        Distribution.parse("ij->i|ii", Machine((2, 2, 2), (1, 2)))
    other = text.replace('"levels":[1,2]', '"levels":[2,1]', 2)
    with pytest.raises(PlanError, match="in one plan; expected the same"):
        Plan.from_json(other)


def test_statements_and_programs_have_hosts():
    """Plans of statements are arranged on hosts, too."""
    program = PROGRAMS["gradients"]
    first = plan_statements(program, processes=8)
    made = plan_statements(program, processes=8, ranks_per_host=2)
    assert made.counts.moved <= first.counts.moved
    assert between_hosts(made, 2) <= between_hosts(first, 2)


def test_the_command_tells_what_passes_between_hosts():
    """The command prints what passes between hosts, as text and as JSON."""
    words = ["plan", "ij,jk->ik", "--sizes", "i=8,j=8,k=8", "--processes", "8"]
    words += ["--ranks-per-host", "4"]
    said = CliRunner().invoke(app, words)
    assert "    x=2 cuts i | y=2 cuts k, z=2 cuts j" in said.stdout
    line = "by level: 64 between groups of 4 ranks, 128 within"
    assert said.stdout.splitlines()[-2] == line
    told = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert (told["between_hosts"], told["within_hosts"]) == (64, 128)
    told = json.loads(CliRunner().invoke(app, [*words[:-1], "4,2", "--json"]).stdout)
    assert told["by_level"] == [64, 64, 64]
    said = CliRunner().invoke(app, [*words[:-1], "4,two"])
    assert said.exit_code == 2
    words[-1] = "3"
    assert "by level" in CliRunner().invoke(app, words).stdout.splitlines()[-1]


def test_numbers_of_ranks_are_positive():
    """Invalid numbers raise an error before anything is planned."""
    for number in (0, -1, 1.5, True, "4"):
        with pytest.raises(PlanError, match="ranks_per_host") as caught:
            plan(KERNELS["1mm"], processes=4, ranks_per_host=number)
        assert caught.value.rules == ("processes",)


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
            starts = place_operands(made.operands, made.groups, schedules, made.extents)
            yield replace(made, schedules=schedules, starts=starts, leaves=())


def ways_of(made, k, machine):
    group, is_last = made.groups[k], k + 1 == len(made.groups)
    for axes in product(group.indices, repeat=machine.n_axes):
        results = [spread_result(group, axes, machine, made.extents)]
        if not is_last:
            results = list_result_choices(group, axes, machine)
        for result in results:
            yield GroupSchedule(machine, axes, result)


def is_as_even(one, made):
    return one.outline().most_points <= made.outline().most_points


def cost(made, where):
    return where.cost(moved_by_level(made, where.units))[0]


def least_cost(made, where):
    least = inf
    for other in all_plans(made):
        other_cost = cost(other, where)
        # evenness last: counting work takes as long as counting elements
        if other_cost < least and is_as_even(other, made):
            least = other_cost
    return least


@pytest.mark.parametrize(
    ("subscripts", "extents"),
    [("ij,jk->ik", {"i": 8, "j": 16, "k": 8}), ("ij,jk->ik", {"i": 32, "j": 8, "k": 8}),
     ("ijk,k->ij", {"i": 8, "j": 8, "k": 32}), ("ij->", {"i": 8, "j": 16})],
)  # fmt: skip
def test_no_plan_of_a_small_machine_is_cheaper(subscripts, extents):
    """Brute force finds nothing cheaper on two hosts of two sockets of two ranks."""
    einsum, where = einsum_of(subscripts, **extents), levels((4, 2), 9.0, 3.0, 1.0)
    made = plan(einsum, processes=8, ranks_per_host=where)
    # less than any map of eight where two processes alone finish first
    assert cost(made, where) <= least_cost(made, where) * (1 + 1e-9)
    assert is_numpys(made)


@pytest.mark.parametrize("lengths", [(16, 8, 8, 32), (4, 32, 8, 8)])
def test_chains_on_hosts_are_cheapest(lengths):
    """Brute force finds no cheaper chain on two hosts of two ranks."""
    einsum = einsum_of("ij,jk,kl->il", **dict(zip("ijkl", lengths, strict=True)))
    where = levels((2,), 9.0, 1.0)
    made = plan(einsum, processes=4, ranks_per_host=where)
    assert cost(made, where) == pytest.approx(least_cost(made, where))


def test_slow_links_are_avoided():
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
    """For every set of axes, the cost is the sum over pairs of ranks by their link."""
    machine, where = Machine((2, 3, 2)), levels((6, 2), 8.0, 4.0, 2.0)
    places = machine.coordinates(12)
    found = compute_copy_costs(machine, where)
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
def test_wrong_levels_are_refused(units, n_links, words):
    """Invalid numbers raise an error before anything is planned."""
    with pytest.raises(PlanError, match=words) as caught:
        levels(units, *[1.0] * n_links)
    assert caught.value.rules == ("processes",)


def test_plans_that_tie_are_compared_by_hosts():
    """Of plans that move equally little, the one with less between hosts wins."""
    first = plan(KERNELS["chain of one"], processes=12)
    made = plan(KERNELS["chain of one"], processes=12, ranks_per_host=4)
    assert made.counts.moved == first.counts.moved
    assert between_hosts(made, 4) < between_hosts(
        arrange_axes([first], Levels((4,))), 4
    )
    assert is_numpys(made)
