"""The SQL store: it lasts, it protects itself, it says what it holds."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError

from feinsum.canonical import WorkloadKey
from feinsum.db import SqlStore, get_default_location, open_store
from feinsum.db.sql.rows import make_rows
from feinsum.db.sql.tables import EnvironmentRow
from feinsum.errors import (
    InvalidRecordError,
    RecordNotFoundError,
    StoreUnavailableError,
)
from feinsum.records import compute_content_id, to_json
from tests.db.factories import (
    WORKLOAD,
    make_device,
    make_environment,
    make_peaks,
    make_processor,
    make_record,
    make_trial,
)


def run_sql(database: Path, *statements: str) -> None:
    """Change a database behind the back of its store."""
    with closing(sqlite3.connect(database)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def pragma(store: SqlStore, name: str) -> object:
    with store.engine.connect() as connection:
        return connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()


def test_facts_outlive_the_process(filled_database, monkeypatch):
    """What was added is there when the database is opened again; reading page by page
    gives every record once, in order.
    """
    monkeypatch.setattr("feinsum.db.sql.store.PAGE", 2)
    records = sorted((make_record(n) for n in range(3)), key=lambda r: r.id)
    with open_store(filled_database) as store:
        assert [*store.records()] == records
        assert [store.get(record.id) for record in records] == records
        assert store.peaks(make_device().id) == make_peaks()


def test_many_records_at_once(database):
    """Those that are new are counted and kept, the others are there already."""
    records = [make_record(k) for k in range(20)]
    with open_store(database) as store:
        store.add(records[3])
        assert store.add_all([*records, records[5]]) == 19
        assert store.add_all(records) == 0
        assert store.add_all([]) == 0
        assert sorted(r.id for r in store.records()) == sorted(r.id for r in records)


def test_pragmas_are_on(database):
    """Write-ahead log, foreign keys, full synchronization and the timeout are on."""
    with open_store(database, busy_timeout_s=7) as store:
        assert len(store) == 0  # a connection learns the journal when it first reads
        assert pragma(store, "journal_mode") == "wal"
        assert pragma(store, "synchronous") == 2
        assert pragma(store, "busy_timeout") == 7000
        with (
            pytest.raises(IntegrityError, match="FOREIGN KEY"),
            store.engine.begin() as connection,
        ):
            connection.exec_driver_sql(
                "INSERT INTO environments VALUES ('e', 'no-such-device', '', '')"
            )


def test_columns_are_of_the_record(filled_database):
    """The columns that serve look-ups hold what the document says, times in UTC."""
    record = replace(make_record(7), recorded_at="2025-01-31T14:00:00+02:00")
    with open_store(filled_database) as store:
        store.add(record)
    with closing(sqlite3.connect(filled_database)) as connection:
        row = connection.execute(
            "SELECT workload_key, device_id, transform_name, transform_version, "
            "median_s, speedup, recorded_at FROM records WHERE id = ?",
            [record.id],
        ).fetchone()
    assert row == (
        WORKLOAD,
        make_device().id,
        "rowwise",
        1,
        record.measurement.median_s,
        record.measurement.speedup,
        "2025-01-31 12:00:00.000000",
    )


def test_an_environment_is_stored_as_its_own_text():
    """It is serialized as a part of the record, with the same text and id as alone."""
    environment = make_environment(make_device(processor=make_processor()))
    rows = make_rows(make_record(environment=environment))
    (row,) = [values for table, values in rows if table is EnvironmentRow]
    assert row["document"] == to_json(environment)
    assert row["id"] == compute_content_id(environment)


def test_stats_count(filled_database):
    """The numbers of the store are those of its content."""
    with open_store(filled_database) as store:
        store.add(make_record(0, workload=WorkloadKey("another")))
        for trial in (make_trial(), make_trial(status="trial-crashed")):
            store.add(trial)
        stats = store.stats()
    assert (stats.location, stats.schema_version) == (str(filled_database), "0011")
    assert (stats.n_records, stats.n_workloads, stats.n_devices) == (4, 2, 1)
    assert (stats.n_trials, stats.n_retractions, stats.n_plans) == (2, 0, 0)
    assert not stats.is_read_only
    assert stats.size_bytes == filled_database.stat().st_size


DAMAGE = (
    "document = '{\"half\": '",
    "document = '{}'",
    "document = replace(document, '0.', '0.5')",
    "document = 'é' || x'fffe'",
    "workload_key = 'stolen'",
    "device_id = 'stolen'",
)


def test_damaged_rows_are_skipped(database, caplog):
    """A row that does not read back is logged and never served; others are."""
    bad = [make_record(n) for n in range(len(DAMAGE))]
    good = [make_record(n) for n in range(7, 9)]
    with open_store(database) as store:
        store.add_all([*bad, *good])
    run_sql(
        database,
        "INSERT INTO workloads VALUES ('stolen', 'stolen')",
        *(
            f"UPDATE records SET {damage} WHERE id = '{record.id}'"
            for damage, record in zip(DAMAGE, bad, strict=True)
        ),
    )
    with open_store(database) as store:
        assert {r.id for r in store.records()} == {r.id for r in good}
        assert {r.id for r in store.query(WORKLOAD)} == {r.id for r in good}
        assert store.query(WorkloadKey("stolen")) == ()
        for record in bad:
            with pytest.raises(RecordNotFoundError, match="damaged"):
                store.get(record.id)
            assert record.id in caplog.text
    assert "ERROR" in caplog.text


def test_damaged_peaks_are_skipped(filled_database, caplog):
    """Limits that do not read back are logged; the latest sound ones are served."""
    late = make_peaks(measured_at="2026-01-01T00:00:00")
    with open_store(filled_database) as store:
        store.add(late)
        run_sql(
            filled_database,
            f"UPDATE device_peaks SET document = 'no' WHERE id = '{late.id}'",
        )
        assert store.peaks(make_device().id) == make_peaks()
    assert late.id in caplog.text


def test_unreadable_fact_is_not_acknowledged(database):
    """A record that would not read back, or has no time, is refused, alone or with
    others, of which none is kept.
    """
    good = make_record()
    negative = replace(good.measurement, samples_s=(-1.0,))
    infinite = replace(good.measurement, samples_s=(float("inf"),))
    with open_store(database) as store:
        with pytest.raises(InvalidRecordError, match="yesterday"):
            store.add_all([good, replace(make_record(1), recorded_at="yesterday")])
        for bad, message in (
            (replace(good, measurement=negative), "greater than 0"),
            (replace(good, measurement=infinite), "finite"),
            (replace(good, recorded_at="yesterday"), "expected ISO 8601"),
            (replace(good, recorded_at="0001-01-01T00:00:00+14:00"), "expected ISO"),
        ):
            with pytest.raises(InvalidRecordError, match=message):
                store.add(bad)
        assert len(store) == 0


def test_closed_store_says_so(database):
    """A closed store raises StoreUnavailableError; closing twice is fine."""
    store = open_store(database)
    store.close()
    store.close()
    for use in (lambda: len(store), lambda: store.add(make_record())):
        with pytest.raises(StoreUnavailableError, match="closed"):
            use()


def test_threads_share_a_store(database):
    """Several threads may add to and read one store at the same time."""
    with open_store(database) as store:

        def work(first: int) -> None:
            for number in range(first, first + 10):
                store.add(make_record(number))
                store.query(WORKLOAD)

        threads = [threading.Thread(target=work, args=[10 * t]) for t in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store) == 60


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # if JAX was imported
def test_fork_makes_its_own_connection(database):
    """A store used on both sides of a fork serves and takes facts on both."""
    with open_store(database) as store:
        store.add(make_record(0))
        child = os.fork()
        if child == 0:
            is_right = False
            try:
                is_right = len(store) == 1 and store.add(make_record(1))
            finally:  # it must never go on as a second runner of tests
                os._exit(0 if is_right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.add(make_record(2))
        assert len(store) == 3


def test_default_location_is_in_the_data_folder(monkeypatch, tmp_path):
    """Without a location, facts are in the user's data folder."""
    monkeypatch.delenv("FEINSUM_DATABASE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with open_store() as store:
        store.add(make_record())
    assert Path(get_default_location()).name == "facts.sqlite"
    assert Path(get_default_location()).is_relative_to(tmp_path)
    assert Path(get_default_location()).exists()


def test_environment_variable_is_honoured(monkeypatch, database):
    """FEINSUM_DATABASE names the database, as a path or as a URL."""
    for n, form in enumerate(("{}", "sqlite:///{}", "sqlite+pysqlite:///{}")):
        monkeypatch.setenv("FEINSUM_DATABASE", form.format(database))
        with open_store() as store:
            store.add(make_record(n))
        with open_store(database) as store:
            assert len(store) == n + 1


def test_import_needs_no_code_generator():
    """Importing feinsum.db loads no Loopy, no OpenCL, and no Alembic."""
    code = (
        "import sys, feinsum.db; "
        "heavy = {'loopy', 'pymbolic', 'islpy', 'pyopencl', 'alembic'}; "
        "sys.exit(' '.join(heavy & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
