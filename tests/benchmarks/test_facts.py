"""The summary of what is shipped leaves nothing out."""

from __future__ import annotations

from benchmarks.facts import summary
from feinsum.db import shipped_facts


def test_every_shipped_fact_is_in_the_summary():
    """The numbers of workloads add up to all facts, whose recipes are faster."""
    facts = list(shipped_facts().records())
    table = summary(facts)
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert sum(map(int, cells["workloads"])) == len(facts)
    assert all(float(least) >= 1 for least in cells["least"])
