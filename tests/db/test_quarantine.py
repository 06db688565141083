"""What waits in quarantine is neither served, passed on nor lost."""

from __future__ import annotations

from pathlib import Path

from feinsum.db.exchange import all_documents, back_up_store, plan_rekey
from feinsum.db.server import open_serving_store
from tests.db.factories import make_record


def test_tools_leave_what_waits_alone(tmp_path: Path) -> None:
    """It is in no export, plan of rekeying or garbage, and in every backup."""
    record = make_record(0)
    with open_serving_store(str(tmp_path / "facts.sqlite")) as store:
        store.receive(record, "ann", 1)
        assert store.query(record.workload) == ()
        assert list(all_documents(store, has_trials=True)) == []
        assert plan_rekey(store).moves == ()
        copy = back_up_store(store, tmp_path / "copy.sqlite")
    with open_serving_store(str(copy)) as store:
        assert list(store.records()) == []
        assert store.get(record.id) == record
        assert store.trust(record.id).is_quarantined
        store.confirm(record.id)
        assert store.query(record.workload) == (record,)
