"""Machines of hosts: what passes between them, and how little that can be."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from typer.testing import CliRunner

from benchmarks.papers.schedules import named_plan
from feinsum.cli import app
from feinsum.distributed import (
    Distribution,
    Machine,
    Plan,
    between_hosts,
    moved_by_level,
    plan,
    plan_statements,
)
from feinsum.distributed.assembly import arrange_axes
from feinsum.distributed.boxes import box_size
from feinsum.distributed.levels import Levels
from feinsum.distributed.steps import Receive, Reduce
from feinsum.errors import PlanError
from tests.distributed.cases import KERNELS, einsum_of
from tests.distributed.test_plans import is_numpys
from tests.distributed.test_statements import PROGRAMS

NAMES = ["paper", "1mm", "mttkrp-3-0", "same twice", "total"]


def by_steps(made, ranks_per_host):
    """What passes between hosts, message by message."""
    found = Counter()
    for rank, row in enumerate(made.steps):
        for step in row:
            if isinstance(step, Receive | Reduce):
                is_far = step.rank // ranks_per_host != rank // ranks_per_host
                found[is_far] += box_size(step.box)
    return found[True]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks_per_host", [1, 3, 4, 12])
def test_what_passes_between_hosts_is_a_sum_over_messages(name, ranks_per_host):
    """All that is moved between hosts of one rank, and nothing within a single one."""
    made = plan(KERNELS[name], processes=12)
    found = between_hosts(made, ranks_per_host)
    assert found == by_steps(made, ranks_per_host)
    if ranks_per_host in (1, 12):
        assert found == (made.counts.moved if ranks_per_host == 1 else 0)


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


@pytest.mark.parametrize("units", [(), (4,), (6, 3), (6, 3, 1)])
def test_levels_share_all_that_moves(units):
    """Each element counts where it passes first; from outside, levels are hosts."""
    made = plan(KERNELS["paper"], processes=12)
    found = moved_by_level(made, units)
    assert sum(found) == made.counts.moved
    for k, unit in enumerate(units):
        assert sum(found[: k + 1]) == by_steps(made, unit)


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
def test_text_that_is_no_machine_is_refused(text):
    """Saying what was expected."""
    with pytest.raises(PlanError, match="expected such as 'x=2 y=3'") as caught:
        Machine.parse(text)
    assert caught.value.rules == ("notation",)


def test_levels_that_do_not_fit_are_refused():
    """Axes without a level, bars elsewhere, and groups with different hosts."""
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


def test_plans_that_tie_are_compared_by_hosts():
    """On hosts of four, another grid that moves as little moves less between them."""
    first = plan(KERNELS["outer"], processes=12)
    made = plan(KERNELS["outer"], processes=12, ranks_per_host=4)
    assert made.counts.moved == first.counts.moved
    assert between_hosts(made, 4) < between_hosts(
        arrange_axes([first], Levels((4,))), 4
    )
    assert is_numpys(made)


def test_an_axis_that_fits_lies_within_hosts():
    """On hosts of two, the axis of two: A passes to three others, B to one."""
    einsum = einsum_of("ij,jk->ik", i=512, j=16, k=1024)
    first = plan(einsum, processes=8, most_work=1)
    made = plan(einsum, processes=8, most_work=1, ranks_per_host=2)
    assert [one.schedules[0].machine.sizes for one in (first, made)] == [(2, 4), (4, 2)]
    assert made.counts.moved == first.counts.moved == 512 * 16 * 3 + 16 * 1024
    assert (between_hosts(first, 2), between_hosts(made, 2)) == (32768, 512 * 16 * 3)


def test_loops_that_rotate_are_arranged_too():
    """Cannon's product stays right, whatever the order of its axes."""
    made = named_plan("cannon", KERNELS["1mm"], processes=9)
    found = arrange_axes([made], Levels((3,)))
    assert is_numpys(found)
    assert found.counts.moved == made.counts.moved
    assert between_hosts(found, 3) <= between_hosts(made, 3)


def test_statements_and_programs_have_hosts():
    """All statements keep one machine."""
    program = PROGRAMS["gradients"]
    first = plan_statements(program, processes=8)
    made = plan_statements(program, processes=8, ranks_per_host=2)
    assert made.counts.moved <= first.counts.moved
    assert between_hosts(made, 2) <= between_hosts(first, 2)


def test_the_command_tells_what_passes_between_hosts():
    """As text and as JSON."""
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


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "4"])
def test_numbers_of_ranks_are_positive(number):
    """Before anything is planned."""
    with pytest.raises(PlanError, match="ranks_per_host") as caught:
        plan(KERNELS["1mm"], processes=4, ranks_per_host=number)
    assert caught.value.rules == ("processes",)
