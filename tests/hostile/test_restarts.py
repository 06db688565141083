"""A server of databases that ends connections, or starts anew, fails nobody."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import create_engine, make_url

from feinsum.records import to_json
from tests.db.factories import WORKLOAD, make_record, make_workload
from tests.hostile.live import Live, schema_in
from tests.service.running import running

END_ALL = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)

N_ENDS = 8
N_CLIENTS = 4


@pytest.fixture
def on_postgresql(postgresql, tmp_path):
    with (
        schema_in(postgresql) as database,
        running(database, tmp_path, rate_per_s=0, freshness_s=0) as server,
    ):
        yield Live(server, database)


def test_connections_that_end_under_load_fail_no_request(on_postgresql, postgresql):
    """Whatever reads and writes while all connections are ended gets its answer."""
    live = on_postgresql
    recorder = live.key("record", "ci")
    with live.store() as store:
        store.add(make_record())
    url = make_url(postgresql).set(drivername="postgresql+psycopg")
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    is_over, statuses, n_ended = threading.Event(), Counter(), 0

    def load(client):
        own, n = make_workload(1 + client), 0
        while not is_over.is_set():
            n += 1
            fact = to_json(make_record(n, workload=own))
            batch = json.dumps({"workloads": [WORKLOAD, own, f"no-{n}"]})
            for answer in (
                live.ask("GET", f"/v1/best/{WORKLOAD}"),
                live.ask("POST", "/v1/best:batch", batch),
                live.ask("POST", "/v1/facts", fact, recorder),
                live.ask("GET", "/v1/workloads"),
                live.ask("GET", "/v1/demand"),
                live.ask("GET", f"/workloads/{WORKLOAD}"),
                live.ask("GET", "/readyz"),
            ):
                statuses[answer.status] += 1

    with ThreadPoolExecutor(N_CLIENTS) as threads:
        loads = [threads.submit(load, client) for client in range(N_CLIENTS)]
        try:
            for _ in range(N_ENDS):
                with engine.connect() as connection:
                    n_ended += connection.exec_driver_sql(END_ALL).scalar_one()
                seen = statuses.total()
                while statuses.total() < seen + 20 and not any(f.done() for f in loads):
                    is_over.wait(0.01)
        finally:
            is_over.set()
    for one in loads:
        one.result()
    engine.dispose()
    assert n_ended >= N_ENDS
    assert set(statuses) == {200, 201}, (statuses, live.server.log.read_text()[-3000:])
