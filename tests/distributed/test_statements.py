"""Statements: several einsums on one plan, with results that several of them read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.papers.schedules import replan_by_name
from feinsum.distributed import (
    Distribution,
    GroupSchedule,
    Machine,
    Plan,
    assemble_statements,
    plan,
    plan_statements,
    statements,
)
from feinsum.errors import PlanError
from tests.distributed.cases import PROGRAMS, assert_lawful, einsum_of, is_numpys


@pytest.mark.parametrize("processes", [1, 3, 8])
@pytest.mark.parametrize("name", PROGRAMS)
def test_planned_results_are_numpys(name, processes):
    """Plans of statements give numpy's results and exact counts."""
    made = plan_statements(PROGRAMS[name], processes=processes)
    assert_lawful(made)
    for other in replan_by_name(made).values():
        assert is_numpys(other)
        is_alone = other.counts.busy == 1
        assert is_alone or not other.estimate().is_better_than(made.estimate())


def test_nothing_is_fetched_twice():
    """Three readers of one matrix: the union of what they need is what passes."""
    program = statements(
        ["Q[s,h] = X[s,a] * V[a,h]", "K[s,h] = X[s,a] * W[a,h]",
         "G[a,b] = X[s,a] * Y[s,b]"],
        {"X": (8, 8), "V": (8, 4), "W": (8, 4), "Y": (8, 4)},
    )  # fmt: skip
    machine = Machine((2,))

    def by(index: str, output: str) -> GroupSchedule:
        group = next(g for g in program.groups if g.output.tensor == output)
        cuts = tuple((0,) if i == index else () for i in group.output.indices)
        fixed = () if index in group.output.indices else ((0, 0),)
        return GroupSchedule(machine, (index,), Distribution(machine, cuts, fixed))

    made = assemble_statements(
        program, 2, [by("s", "Q"), by("h", "K"), by("a", "G")],
        starts={"Y": Distribution.parse("sb->s", machine),
                "V": Distribution.parse("ah->h", machine)},
    )  # fmt: skip
    # V is fetched by both halves (16 each); K needs the other half of X (32 each);
    # G finds its columns of X in what is there, and fetches half of Y (16 each).
    assert made.counts.received == 2 * 16 + 2 * 32 + 2 * 16
    assert is_numpys(made)


def test_a_path_is_the_first_example():
    """Statements of a contraction path move what the plan of the einsum moves."""
    einsum = einsum_of("ijk,ja,ka,al->il", every=10)
    one = plan(einsum, processes=8)
    program = statements(
        [str(group) for group in one.groups],
        {op.name: op.shape for op in einsum.operands},
    )
    assert program.groups == one.groups
    made = plan_statements(program, processes=8)
    assert made.counts == one.counts
    assert [leaf.key for leaf in made.leaves] == [leaf.key for leaf in one.leaves]


def test_plans_of_statements_are_documents():
    """They come back from their text; what was changed there is refused."""
    made = plan_statements(PROGRAMS["read twice"], processes=4)
    assert "3 statements on 4 processes" in str(made)
    assert "U ends as" in str(made)
    assert "V ends as" in str(made)
    both = replace(made, einsum="ij->i")
    with pytest.raises(PlanError) as caught:
        Plan.from_json(both.to_json())
    assert caught.value.rules == ("statements",)
    compile(made.to_python(), "program.py", "exec")


GIVEN = {"A": (4, 5), "B": (5, 6)}


@pytest.mark.parametrize(
    ("lines", "shapes", "words"),
    [
        ([], {}, "there are none"),
        (["T[i,k] = A[i,j] * B[j,k"], GIVEN, "expected such as"),
        (["T[i,k] + A[i,j]"], GIVEN, "expected such as"),
        (["T[i,k] = A[i,j] * C[j,k]"], GIVEN, "no extent of k"),
        (["T[i,j] = A[i,j] * C[j]"], GIVEN, "reads C, which is not there"),
        (["T[i,k] = A[i,j] * B[i,k]"], GIVEN, "the shape of B is"),
        (["T[i] = A[i,i]"], GIVEN, "an index twice"),
        (["A[i,k] = A[i,j] * B[j,k]"], GIVEN, "more than once"),
        (["T[i] = A[i,j] * U[i]", "U[i] = A[i,j]"], GIVEN, "only made later"),
        (["T[i,z] = A[i,j]"], GIVEN, "index z, which no tensor"),
        (["T[i] = A[i,j]"], GIVEN, "B is given, and no statement reads it"),
        (["T[i,k] = A[i,j] * B[j,k]"], {"A": (4, 5), "B": (6, 5)}, "shape"),
    ],
)
def test_wrong_statements_are_refused(lines, shapes, words):
    """Cycles, clashes of shapes and other mistakes are named."""
    with pytest.raises(PlanError, match=words) as caught:
        statements(lines, shapes)
    assert caught.value.rules == ("statements",)


def test_wanted_results_must_be_made():
    """Outputs must be computed, and unread results must be outputs."""
    lines = ["T[i,k] = A[i,j] * B[j,k]"]
    with pytest.raises(PlanError, match="Z is wanted, and no statement makes it"):
        statements(lines, GIVEN, outputs=["Z", "T"])
    with pytest.raises(PlanError, match="neither read nor wanted"):
        statements(lines, GIVEN, outputs=[])


def test_memory_limits_statements_too():
    """Memory limits apply to plans of statements."""
    program = PROGRAMS["gradients"]
    free = plan_statements(program, processes=4)
    with pytest.raises(PlanError) as caught:
        plan_statements(program, processes=4, memory=8)
    assert caught.value.rules == ("memory",)
    assert plan_statements(program, processes=4, memory=free.peak_bytes).counts
