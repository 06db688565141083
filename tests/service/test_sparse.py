"""A service takes facts of sparse operands, serves them, and shows them."""

from __future__ import annotations

from dataclasses import replace

from feinsum.records import TuningRecord, from_json, to_json
from tests.service.conftest import send
from tests.sparse_facts import mttkrp_record


def test_a_fact_comes_back_by_its_key(client):
    """With its profile; and it has a page."""
    record = mttkrp_record("factorized")
    assert send(client, to_json(record)).status_code == 201
    facts = client.get(f"/v1/facts/{record.id}")
    assert from_json(TuningRecord, facts.content) == record
    best = client.get(f"/v1/best/{record.workload}")
    assert best.status_code == 200
    assert "sparse_nest" in best.text
    page = client.get(f"/workloads/{record.workload}")
    assert page.status_code == 200
    assert "sparse_nest" in page.text


def test_a_profile_that_no_tree_has_is_refused(client):
    """Wherever it comes from."""
    record = mttkrp_record("factorized")
    sizes = {**record.measurement.sizes, "nodes.2": 10**9}
    measured = replace(record.measurement, sizes=sizes)
    answer = send(client, to_json(replace(record, measurement=measured)))
    assert answer.status_code == 422
    assert "sizes" in answer.text
