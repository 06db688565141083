"""``feinsum demand``."""

from __future__ import annotations

import pytest

from feinsum.canonical import WorkloadKey
from feinsum.db.server.serving import open_serving_store
from feinsum.records import Miss
from tests.db.factories import make_workload
from tests.service.conftest import add_misses


@pytest.fixture
def wanted(database):
    """Two workloads are in demand; the text of one is very long."""
    counts = {Miss(WorkloadKey("k-1"), ""): 7, Miss(WorkloadKey("k-2"), "gpu"): 3}
    with open_serving_store(database) as store:
        add_misses(store, counts, {WorkloadKey("k-2"): "x" * 20_000})


@pytest.mark.usefixtures("wanted")
def test_demand_is_listed(run, ask):
    """The most wanted first, a short line each, or as documents."""
    listed = run("demand", "list").stdout
    assert max(map(len, listed.splitlines())) <= 100
    assert listed.index("k-1") < listed.index("gpu")
    found = ask("demand", "list", "--limit", "1")
    assert [(d["workload"], d["count"], d["n_callers"]) for d in found] == [
        ("k-1", 7, 1)
    ]


@pytest.mark.usefixtures("wanted")
def test_demand_is_forgotten(run, ask):
    """One workload, or all; neither or both is bad usage and forgets nothing."""
    assert run("demand", "clear").exit_code == 2
    assert run("demand", "clear", "--all", "--workload", "k-1").exit_code == 2
    assert "cleared: 1" in run("demand", "clear", "--workload", "k-1").stdout
    found = ask("demand", "list")
    assert [d["workload"] for d in found] == ["k-2"]
    cleared = ask("demand", "clear", "--all")
    assert cleared == {"n_cleared": 1}


def test_a_key_may_be_begun(run, ask, database):
    """As tables print it, if no other key begins so; otherwise nothing is cleared."""
    counts = {Miss(make_workload(n), ""): 1 for n in range(2)}
    with open_serving_store(database) as store:
        add_misses(store, counts)
    key = make_workload(0)
    refused = run("demand", "clear", "--workload", key[:13])
    assert (refused.exit_code, make_workload(1) in refused.stderr) == (1, True)
    assert "cleared: 1" in run("demand", "clear", "--workload", key[:24]).stdout
    (left,) = ask("demand", "list")
    assert left["workload"] == make_workload(1)
