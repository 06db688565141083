"""The look-up is by an index, in both kinds of databases."""

from __future__ import annotations

from sqlalchemy import event

from feinsum.canonical import WorkloadKey
from feinsum.db import SqlStore
from tests.db.factories import make_device, make_environment, make_peaks, make_record

INDEX = "ix_records_workload_key_device_id"
N_WORKLOADS = 300
LOOK_UPS = [{}, {"device_id": make_device().id}]


def fill(store: SqlStore) -> None:
    """So many facts that no database reads all of them to find some."""
    environments = [make_environment(make_device(n)) for n in range(3)]
    store.add_all(
        make_record(workload=WorkloadKey(f"workload {n}"), environment=environment)
        for n in range(N_WORKLOADS)
        for environment in environments
    )


def plan_of(store: SqlStore, explain: str, look_up: dict[str, str]) -> str:
    """How the database finds the rows of a look-up, in its own words."""
    seen = []

    def note(_c: object, _cursor: object, statement: str, values: object, *_: object):
        seen.append((statement, values))

    event.listen(store.engine, "before_cursor_execute", note)
    assert len(store.query(WorkloadKey("workload 7"), **look_up)) == 3 - 2 * len(
        look_up
    )
    event.remove(store.engine, "before_cursor_execute", note)
    statement, values = next(entry for entry in seen if "records" in entry[0])
    with store.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"{explain} {statement}", values).all()
    return "\n".join(" ".join(map(str, row)) for row in rows)


def test_sqlite_uses_the_index(make_sql_store):
    """EXPLAIN QUERY PLAN: a search in the index, no scan of the table."""
    store = make_sql_store()
    fill(store)
    for look_up in LOOK_UPS:
        plan = plan_of(store, "EXPLAIN QUERY PLAN", look_up)
        assert f"USING INDEX {INDEX} (workload_key=?" in plan
        assert "SCAN" not in plan


def test_postgresql_uses_the_index(make_postgresql_store):
    """EXPLAIN: an index scan of the records; after ANALYZE and before it."""
    store = make_postgresql_store()
    fill(store)
    for _ in range(2):
        for look_up in LOOK_UPS:
            plan = plan_of(store, "EXPLAIN", look_up)
            assert INDEX in plan
            assert "Seq Scan on records" not in plan
        with store.engine.begin() as connection:
            connection.exec_driver_sql("ANALYZE records")


def test_limits_are_found_by_their_index(make_sql_store):
    """Those of a device are not searched among all."""
    store = make_sql_store()
    store.add(make_peaks())
    with store.engine.connect() as connection:
        (row,) = connection.exec_driver_sql(
            "EXPLAIN QUERY PLAN SELECT document FROM device_peaks WHERE device_id = 'd'"
        ).all()
    assert "USING INDEX" in row[-1]
