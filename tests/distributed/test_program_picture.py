"""The picture of the plan of a program: who reads what, and what moves."""

from __future__ import annotations

import random

import pytest

from feinsum.distributed import draw_program, plan_program
from feinsum.distributed.display import flow_of
from tests.distributed import test_planned
from tests.portions import spread
from tests.programs.random_programs import random_program


def number(text: str) -> int:
    return int(text.replace(",", "") or "0")


@pytest.mark.parametrize("seed", spread(range(40), 8))
def test_arrows_are_reads_and_their_labels_are_what_is_fetched(seed):
    """One arrow for each array that a statement reads, to a later layer; together they
    are labeled with all that ranks fetch.
    """
    given = random_program(random.Random(seed), 1 + seed % 5)
    plan = plan_program(given, 4)
    nodes, arrows = flow_of(plan)
    layers = {node.name: node.layer for node in nodes}
    reads = {(x, one.result) for one in given.statements for x in one.operands}
    assert {(arrow.source, arrow.target) for arrow in arrows} == reads
    assert len(arrows) == len(reads)
    assert all(layers[arrow.source] < layers[arrow.target] for arrow in arrows)
    assert sum(number(arrow.text) for arrow in arrows) == plan.counts.received


def test_a_statement_shows_the_index_that_each_axis_partitions():
    """By the name that the statement has for it; every axis once."""
    made, _, _ = test_planned.on_processes(4)
    nodes = {node.name: node for node in flow_of(made)[0]}
    pairs = zip(made.program.statements, made.plan.schedules, strict=True)
    for one, schedule in pairs:
        cells = nodes[one.result].cells
        assert len(cells) == schedule.machine.n_axes
        indices = [cell.partition(" ")[2] for cell in cells]
        assert set(indices) <= {"", *one.indices}


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_graph_is_drawn(tmp_path, suffix):
    """Attention on four processes; the names of results are in it."""
    made, _, _ = test_planned.on_processes(4)
    path = tmp_path / f"graph.{suffix}"
    draw_program(made, path)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
