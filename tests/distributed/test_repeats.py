"""Programs of repeated blocks: each is planned once, and as well as all together."""

from __future__ import annotations

import pytest

from feinsum.distributed import Plan, plan_program
from feinsum.distributed.counts import TIE, USUAL
from feinsum.distributed.planner import _plan_groups
from feinsum.distributed.program_plan import build_statements
from feinsum.distributed.repeats import find_blocks, plan_blocks
from feinsum.programs import program
from tests.distributed.cases import count_steps
from tests.programs.random_programs import assert_right


def layers(n: int, features: int = 16):
    """Attention and two products, n times, on one mask; then one more product."""
    p = program()
    heads = (2, features // 2)
    x, mask = p.input("X", (12, features)), p.input("mask", (12, 12))
    for k in range(n):
        projections = [p.input(f"{name}{k}", (features, *heads)) for name in "QKV"]
        Q, K, V = (p.einsum("sf,fhe->hse", x, w) for w in projections)
        scores = p.map("x0 + x1", p.einsum("hse,hte->hst", Q, K), p.map("x0", mask))
        mixed = p.einsum("hst,hte->hse", p.softmax(scores), V)
        x = p.map(
            "x0 + x1",
            x,
            p.einsum("hse,hef->sf", mixed, p.input(f"O{k}", (*heads, features))),
        )
        wide = p.einsum("sf,fg->sg", x, p.input(f"W{k}", (features, 2 * features)))
        back = p.input(f"U{k}", (2 * features, features))
        x = p.map("x0 + x1", x, p.einsum("sg,gf->sf", wide, back))
    p.output(p.einsum("sf,fc->sc", x, p.input("C", (features, 5))))
    return p.build()


def test_blocks_are_found_between_layers():
    """All blocks but the first and the last are layers, cut where one array passes."""
    statements = build_statements(layers(9), {})
    blocks = find_blocks(statements)
    assert [k for block in blocks for k in block] == [*range(len(statements.groups))]
    lengths = {len(block) for block in blocks[1:-1]}
    assert len(blocks) >= 7
    (length,) = lengths
    for block in blocks[1:]:
        before = {group.output.tensor for group in statements.groups[: block.start]}
        after = statements.groups[block.start :]
        live = {access.tensor for group in after for access in group.inputs} & before
        assert len(live) == 1
    assert length * 9 <= len(statements.groups)


@pytest.mark.parametrize("n", [1, 3])
def test_few_blocks_are_planned_together(n):
    statements = build_statements(layers(n), {})
    assert find_blocks(statements) == []
    assert (
        plan_blocks(Plan("", {}, 4, (), (), {}, (), statements=statements), str) is None
    )


@pytest.mark.usefixtures("numpy_computes_blocks")
def test_a_plan_of_blocks_is_right_and_counted():
    made = plan_program(layers(8), 4)
    assert_right(made.program, run=made.simulate)
    counts = made.plan.counts
    assert counts == count_steps(made.plan)


@pytest.mark.parametrize("processes", [4, 6])
def test_blocks_are_planned_as_well_as_all_together(processes):
    """The slowest process takes no longer than in a plan of all statements."""
    given = layers(8)
    statements = build_statements(given, {})
    bare = Plan("", {}, processes, (), (), {}, (), statements=statements)
    together = _plan_groups(bare, None, USUAL).estimate()
    made = plan_program(given, processes).plan.estimate()
    assert made.seconds <= TIE * together.seconds
    assert made.moved <= 1.02 * together.moved


def test_equal_blocks_are_planned_once():
    """More layers need no more plans, and have the schedules of their neighbors."""
    planned = []

    def plan_groups(part):
        planned.append(part)
        return _plan_groups(part, None, USUAL)

    numbers_of_plans = []
    for n in (8, 16):
        statements = build_statements(layers(n), {})
        bare = Plan("", {}, 4, (), (), {}, (), statements=statements)
        planned.clear()
        assert len(plan_blocks(bare, plan_groups).schedules) == len(statements.groups)
        numbers_of_plans.append(len(planned))
    assert numbers_of_plans[0] == numbers_of_plans[1] <= 6


def test_requested_distributions_hold_across_blocks():
    given = layers(8)
    (output,) = given.outputs
    requested = {"starts": {"X": "replicated"}, "results": {output: "replicated"}}
    made = plan_program(given, 4, **requested).plan
    assert made.starts["X"].notation("sf") == "sf->*"
    assert made.result_box(3) == (range(12), range(5))
