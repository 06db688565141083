"""Pictures of plans and of programs: blocks, reads, and what moves."""

from __future__ import annotations

import random

import pytest

from benchmarks.papers.schedules import make_named_plan
from feinsum.distributed import draw_program, plan, plan_program, rows_of
from feinsum.distributed.display import build_flow
from tests.distributed import test_planned
from tests.distributed.cases import KERNELS
from tests.portions import spread
from tests.programs.random_programs import random_program


@pytest.mark.parametrize("name", ["paper", "innerprod", "ttmc-5-0"])
def test_blocks_fill_their_tensors(name):
    """Each group has a row, each tensor a panel, which its blocks fill."""
    made = plan(KERNELS[name], processes=8)
    rows = rows_of(made)
    assert len(rows) == len(made.groups)
    for row, group in zip(rows, made.groups, strict=True):
        assert row.title.startswith(str(group))
        assert len(row.panels) == len(group.inputs) + 1
        for panel in row.panels:
            area = sum(block.width * block.height for block in panel.blocks)
            assert area == pytest.approx(1)


def test_copies_are_named_in_their_block():
    """Blocks of Johnson's schedule on 2 x 2 x 2 name the two ranks that need them."""
    (row,) = rows_of(make_named_plan("johnson", KERNELS["1mm"], processes=8))
    first, second, result = row.panels
    assert [block.text for block in first.blocks] == ["0,2", "1,3", "4,6", "5,7"]
    assert [block.text for block in second.blocks] == ["0,4", "1,5", "2,6", "3,7"]
    assert [block.text for block in result.blocks] == ["0", "2", "4", "6"]
    assert (first.down, first.right) == ("i", "j")


def number(text: str) -> int:
    return int(text.replace(",", "") or "0")


@pytest.mark.parametrize("seed", spread(range(40), 4))
def test_arrows_are_reads_and_their_labels_are_what_is_fetched(seed):
    """One arrow for each array that a statement reads, to a later layer; together they
    are labeled with all that ranks fetch.
    """
    given = random_program(random.Random(seed), 1 + seed % 5)
    plan = plan_program(given, 4)
    nodes, arrows = build_flow(plan)
    layers = {node.name: node.layer for node in nodes}
    reads = {(x, one.result) for one in given.statements for x in one.operands}
    assert {(arrow.source, arrow.target) for arrow in arrows} == reads
    assert len(arrows) == len(reads)
    assert all(layers[arrow.source] < layers[arrow.target] for arrow in arrows)
    assert sum(number(arrow.text) for arrow in arrows) == plan.counts.received


def test_a_statement_shows_the_index_that_each_axis_partitions():
    """A statement shows each axis once, with its own name of the index."""
    made, _, _ = test_planned.on_processes(4)
    nodes = {node.name: node for node in build_flow(made)[0]}
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
