"""What is shipped covers the suites, and its summary leaves nothing out."""

from __future__ import annotations

import pytest

from benchmarks.experiments.entries import list_both_suites
from benchmarks.facts import summarize_facts
from feinsum import canonicalize
from feinsum.db import get_shipped_facts
from feinsum.ir import BatchedEinsum, generalize, generalize_each


def test_every_shipped_fact_is_in_the_summary():
    """The numbers of workloads add up to all facts, whose recipes are faster."""
    facts = list(get_shipped_facts().records())
    table = summarize_facts(facts)
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert sum(map(int, cells["workloads"])) == len(facts)
    assert all(float(least) >= 1 for least in cells["least"])


@pytest.mark.parametrize(
    ("names", "dtype"), [("", "float64"), (r"_b\d", "float32")], ids=["all", "single"]
)
def test_every_entry_has_a_recipe_of_the_host(names, dtype):
    """Both suites in double precision, the operators of DG in single precision, too."""
    known = {
        fact.workload
        for fact in get_shipped_facts().records()
        if fact.environment.device.platform == "Host C compiler"
    }
    entries = list_both_suites(names, max_gflop=4.0)
    assert len(entries) == (88 if not names else 40)
    lacking = [
        e.name for e in entries if known.isdisjoint(keys_of(e.make_einsum(dtype)))
    ]
    assert not lacking


def keys_of(einsum: BatchedEinsum) -> set[str]:
    """Of the workload, and of those that a query of it accepts as exact."""
    general, _ = generalize(einsum)
    forms = [general, *(other for other, _ in generalize_each(general))]
    return {canonicalize(form).key for form in forms}
