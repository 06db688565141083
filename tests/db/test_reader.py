"""Fast reads see what the store sees, and notice every change."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import cast

import pytest
from sqlalchemy import QueuePool, text

from feinsum.db.server.reader import CHUNK, Reader
from feinsum.db.server.serving import open_serving_store
from feinsum.db.sql.engine import SET_UP
from feinsum.errors import StoreError, StoreUnavailableError
from feinsum.records import to_json
from tests.db.factories import (
    WORKLOAD,
    make_device,
    make_environment,
    make_processor,
    make_record,
)


@pytest.fixture
def store(any_database):
    with open_serving_store(any_database) as opened:
        yield opened


def n_connections(reader: Reader) -> int:
    """How many connections are open, in use or not."""
    pool = cast(QueuePool, reader.engine.pool)
    return pool.checkedin() + pool.checkedout()


@pytest.fixture
def reader(store):
    with closing(store.reader()) as opened:
        yield opened


def test_a_reader_finds_what_a_query_finds(store, reader):
    """The facts of a workload are those of the store, with their documents."""
    device = make_device(processor=make_processor())
    records = [make_record(n) for n in range(4)]
    records += [make_record(environment=make_environment(device))]
    store.add_all(records)
    found = reader.facts([WORKLOAD, "none"])
    assert found["none"] == []
    read = sorted((fact.record for fact in found[WORKLOAD]), key=lambda r: r.id)
    assert tuple(read) == store.query(WORKLOAD)
    assert all(fact.document == to_json(fact.record) for fact in found[WORKLOAD])
    assert reader.devices() == {one.id: one for one in (make_device(), device)}


def test_a_reader_takes_more_than_one_statement(store, reader):
    """However many workloads are asked for, each is answered."""
    store.add(make_record())
    keys = [f"none-{n}" for n in range(CHUNK)] + [WORKLOAD, WORKLOAD]
    found = reader.facts(keys)
    assert set(found) == set(keys)
    assert len(found[WORKLOAD]) == 1


def test_a_reader_leaves_out_what_is_damaged(store, reader):
    """A row whose document was changed is not answered."""
    store.add(make_record(0))
    store.add(make_record(1))
    change = text(
        "UPDATE records SET document=replace(document, '8', '9') WHERE id=:id"
    )
    with store.engine.begin() as connection:
        connection.execute(change, {"id": make_record(0).id})
    assert [f.record for f in reader.facts([WORKLOAD])[WORKLOAD]] == [make_record(1)]


def test_a_device_whose_processor_is_damaged_is_read_without(store, reader):
    """It can still be shown; its facts have devices of their own."""
    device = make_device(processor=make_processor())
    store.add(make_record(environment=make_environment(device)))
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE devices SET processor = '{}'"))
    without = {device.id: make_device()}
    assert reader.devices() == without
    assert {d.id: d.device for d in store.page_of_devices("", 9)} == without
    assert store.query(WORKLOAD)[0].environment.device == device


def test_the_generation_changes_with_every_commit(store, reader):
    """It is equal while nothing is written, and another after each write."""
    seen = [reader.generation()]
    assert reader.generation() == seen[0]
    for n in range(3):
        store.receive(make_record(n), "ann")
        seen.append(reader.generation())
    store.receive(make_record(0), "bob", is_trusted=True)
    seen.append(reader.generation())
    assert len(set(seen)) == len(seen)


def test_a_reader_that_was_closed_is_refused(store):
    """It says that it was closed."""
    reader = store.reader()
    reader.generation()
    reader.close()
    with pytest.raises(StoreUnavailableError):
        reader.facts([WORKLOAD])


def test_a_connection_that_failed_is_dropped(store, reader, monkeypatch):
    """After any number of failures a reader holds no more connections than before."""
    reader.facts([WORKLOAD])
    n_open = n_connections(reader)
    for _ in range(3):
        with monkeypatch.context() as patched:
            patched.setattr("feinsum.db.server.reader.FACTS", "SELECT nothing {among}")
            with pytest.raises(StoreError):
                reader.facts([WORKLOAD])
        reader.facts([WORKLOAD])
    assert n_connections(reader) == n_open


def test_a_connection_that_cannot_be_set_up_is_dropped(store, monkeypatch):
    """It is closed, whenever a read tries again."""
    with monkeypatch.context() as patched:
        patched.setattr("feinsum.db.sql.engine.SET_UP", dict.fromkeys(SET_UP, "NO"))
        with closing(store.reader()) as reader:
            for _ in range(3):
                with pytest.raises(StoreError):
                    reader.facts([WORKLOAD])
        assert n_connections(reader) == 0


def test_threads_that_end_leave_no_connections(store, reader):
    """Threads of a server come and go; its connection stays."""
    store.add(make_record())
    for _ in range(20):
        with ThreadPoolExecutor(1) as thread:
            assert len(thread.submit(reader.facts, [WORKLOAD]).result()[WORKLOAD]) == 1
    assert n_connections(reader) == 1


def test_reads_at_once_share_a_connection(store, reader):
    """What one thread reads is not what another one looked up."""
    store.add_all([make_record(n, workload=f"key-{n}") for n in range(8)])

    def read(n: int) -> bool:
        key = f"key-{n % 8}"
        return [f.record.workload for f in reader.facts([key])[key]] == [key]

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(400)))
    assert n_connections(reader) == 1


def test_a_new_table_is_read_by_its_index(make_postgresql_store):
    """Also before PostgreSQL has statistics of it: it would read all of it."""
    url = make_postgresql_store().location.url
    with open_serving_store(url.render_as_string(hide_password=False)) as store:
        facts = (make_record(n, workload=f"key-{n}") for n in range(1000))
        store.add_all(list(facts))
        with closing(store.reader()) as reader:
            assert len(reader.facts([f"key-{n}" for n in range(100)])) == 100
            ((name,),) = reader._read_rows(
                "SELECT name FROM pg_prepared_statements WHERE custom_plans = 0"
                " AND position('document' in statement) > 0"
                " ORDER BY prepare_time LIMIT 1",
                (),
            )
            keys = ", ".join(f"'key-{n}'" for n in range(100))
            plan = reader._read_rows(f'EXPLAIN EXECUTE "{name}" (ARRAY[{keys}])', ())
    assert not [line for (line,) in plan if "Seq Scan on records" in line]
