"""Pictures of plans: blocks fill every tensor, and name the ranks that have them."""

from __future__ import annotations

import pytest

from benchmarks.papers.schedules import named_plan
from feinsum.distributed import plan, rows_of
from tests.distributed.cases import KERNELS


@pytest.mark.parametrize("name", ["1mm", "paper", "ttv", "innerprod", "ttmc-5-0"])
def test_blocks_fill_their_tensors(name):
    """A row for each group, a panel for each tensor, and no gap in any of them."""
    made = plan(KERNELS[name], processes=8, most_work=1)
    rows = rows_of(made)
    assert len(rows) == len(made.groups)
    for row, group in zip(rows, made.groups, strict=True):
        assert row.title.startswith(str(group))
        assert len(row.panels) == len(group.inputs) + 1
        for panel in row.panels:
            area = sum(block.width * block.height for block in panel.blocks)
            assert area == pytest.approx(1)


def test_copies_are_named_in_their_block():
    """Johnson on 2x2x2: each block of an operand is needed by two."""
    (row,) = rows_of(named_plan("johnson", KERNELS["1mm"], processes=8))
    first, second, result = row.panels
    assert [block.text for block in first.blocks] == ["0,2", "1,3", "4,6", "5,7"]
    assert [block.text for block in second.blocks] == ["0,4", "1,5", "2,6", "3,7"]
    assert [block.text for block in result.blocks] == ["0", "2", "4", "6"]
    assert (first.down, first.right) == ("i", "j")
