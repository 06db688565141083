"""Plans that leave processes without work, where less is moved with it."""

from __future__ import annotations

import pytest

from feinsum.distributed import plan_statements
from feinsum.distributed.planner import fewer_processes
from feinsum.distributed.program_plan import statements_of
from feinsum.programs import evaluate_program, multi_head_attention, program
from tests.programs.random_programs import numbers


def attention(heads=4):
    p = program()
    multi_head_attention(p, p.input("X", (64, 32)), heads=heads, entries=8)
    return p


def test_six_processes_share_four_heads():
    """Four of them have one head each: less is moved than with all six."""
    p = attention()
    made, of_four = p.plan(6), p.plan(4)
    assert made.counts.busy == 4
    assert made.counts.moved == of_four.counts.moved
    arrays = numbers(made.program)
    (found,), (right,) = (
        x.values()
        for x in (made.simulate(arrays), evaluate_program(made.program, arrays))
    )
    assert abs(found - right).max() < 1e-12 * abs(right).max()


@pytest.mark.parametrize("processes", [5, 6, 7, 9, 13])
def test_no_process_has_more_than_half_more_than_the_average(processes):
    """Unless it has as much when all of them have work; and nothing more is moved."""
    statements = statements_of(attention().build(), {})
    found = plan_statements(statements, processes=processes).counts
    even = plan_statements(statements, processes=processes, most_work=1).counts
    limit = max(even.most_points, 1.5 * found.points / processes)
    assert found.most_points <= limit
    assert found.moved <= even.moved


def test_numbers_that_are_tried():
    """All near ones of few; of many those that cut an index evenly where all do not."""
    few = plan_statements(statements_of(attention().build(), {}), processes=6)
    assert [*fewer_processes(few, is_even=True)] == [5, 4]
    many = plan_statements(statements_of(attention(3).build(), {}), processes=45)
    assert [*fewer_processes(many, is_even=True)] == [32]  # of 64 and 32
    even = plan_statements(statements_of(attention().build(), {}), processes=64)
    assert [*fewer_processes(even, is_even=True)] == []
    assert [*fewer_processes(even, is_even=False)] == [32]
