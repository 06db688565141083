"""Versions of the schema: made, migrated after a backup, or refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect

from feinsum.canonical import WorkloadKey
from feinsum.db import SqlStore, looked_up_store, open_store
from feinsum.db.server.serving import open_serving_store
from feinsum.db.sql.schema import CONVERSIONS, VERSION_TABLE, VERSIONS, upgrade
from feinsum.db.sql.store import migrate
from feinsum.errors import (
    RecordNotFoundError,
    SchemaVersionError,
    StoreUnavailableError,
)
from tests.db.factories import (
    make_device,
    make_environment,
    make_peaks,
    make_plan_record,
    make_processor,
    make_record,
    make_trial,
)

OLD_SCHEMAS = {v: Path(__file__).with_name(f"schema_{v}.sql") for v in VERSIONS[:-1]}
NEW_SINCE_0002 = (
    "trials",
    "recordings",
    "demands",
    "demand_callers",
    "api_keys",
    "retractions",
    "plans",
)
COLUMNS_SINCE_0002 = ("microarchitecture", "processor")
OLD_SCHEMA = OLD_SCHEMAS["0001"]
OLD = WorkloadKey("fe1-test-workload-0")
"""The workload of what old databases hold."""


@pytest.fixture
def old_database(database):
    """A database of version 0001 with one record."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(OLD_SCHEMA.read_text())
    return database


def backups(database: Path) -> list[Path]:
    return sorted(database.parent.glob(f"{database.name}.backup-*"))


def version(database: Path) -> str:
    with closing(sqlite3.connect(database)) as connection:
        (found,) = connection.execute(f"SELECT * FROM {VERSION_TABLE}").fetchone()
    return str(found)


def test_conversions_are_of_versions_in_order():
    """Rows are converted from the oldest version to the newest."""
    assert list(CONVERSIONS) == sorted(set(CONVERSIONS) & set(VERSIONS))


@pytest.mark.parametrize("old", OLD_SCHEMAS)
def test_an_upgrade_makes_the_tables_of_a_new_database(tmp_path, old):
    """With all names and defaults, whatever the version before."""
    with closing(sqlite3.connect(tmp_path / "old.sqlite")) as connection:
        connection.executescript(OLD_SCHEMAS[old].read_text())
    schemas = []
    for name in ("old.sqlite", "new.sqlite"):
        with open_store(tmp_path / name) as store:
            schemas.append(store.read(schema_of))
    assert schemas[0] == schemas[1]


def schema_of(connection: Connection) -> dict[str, list[str]]:
    """What each table has, whatever the order of columns: new ones are appended."""
    found = inspect(connection)
    parts = (
        found.get_columns,
        found.get_indexes,
        found.get_foreign_keys,
        found.get_unique_constraints,
        lambda name: [found.get_pk_constraint(name)],
    )
    return {
        name: sorted(repr(one) for part in parts for one in part(name))
        for name in found.get_table_names()
    }  # fmt: skip


def test_new_database_is_of_the_newest_version(database):
    """Nothing was copied, and nothing else lies beside it."""
    with open_store(database) as store:
        store.add(make_record())
        assert store.stats().schema_version == VERSIONS[-1]
    assert version(database) == VERSIONS[-1]
    assert [*database.parent.iterdir()] == [database]


def test_a_database_is_copied_before_it_is_migrated(old_database):
    """The copy can be opened; opening the database again copies nothing."""
    for _ in range(2):
        with open_store(old_database) as store:
            assert store.get(make_record(workload=OLD).id) == make_record(workload=OLD)
    assert version(old_database) == VERSIONS[-1]
    (copy,) = backups(old_database)
    assert copy.name.startswith("facts.sqlite.backup-0001-20")
    assert copy.name.endswith("Z")
    assert version(copy) == "0001"
    with open_store(copy) as restored:
        assert len(restored) == 1


@pytest.mark.parametrize("old", OLD_SCHEMAS)
def test_every_older_database_is_migrated(database, old):
    """From any version: the facts stay, what is new since can be kept, and devices
    have no processor beside those that have one from now on.
    """
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(OLD_SCHEMAS[old].read_text())
    known = make_environment(make_device(processor=make_processor()))
    with open_serving_store(database) as store:
        assert tuple(store.records()) == (make_record(workload=OLD),)
        trial = make_trial(workload=OLD)
        assert store.add(trial) is (old < "0003")
        assert store.trials(OLD) == (trial,)
        assert store.peaks(make_device().id) == (make_peaks() if old > "0001" else None)
        assert store.add(make_peaks()) is (old == "0001")
        assert store.add(make_plan_record())
        assert store.add(make_record(environment=known))
        assert len(store) == 2
        devices = {one.id: one.device for one in store.page_of_devices("", 10)}
    assert {one: devices[one.id] for one in (make_device(), known.device)} == {
        one: one for one in (make_device(), known.device)
    }
    query = "SELECT microarchitecture FROM devices WHERE id = ?"
    with closing(sqlite3.connect(database)) as connection:
        for one in (make_device(), known.device):
            (found,) = connection.execute(query, [one.id]).fetchone()
            assert found == (one.processor and one.processor.microarchitecture)
    assert version(database) == VERSIONS[-1]


FACT = make_record(workload=OLD).id
PLAN = make_plan_record()


@pytest.fixture
def decided(database):
    """A database of version 0010 whose fact waits, or was decided about."""

    def make(is_accepted: bool | None) -> SqlStore:
        at = "2025-01-31 12:00:00.000000"
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript(OLD_SCHEMAS["0010"].read_text())
            for name in ("eve", "ci"):
                connection.execute(
                    "INSERT INTO recordings VALUES (?, ?, ?, ?)",
                    [FACT, name, at, name == "ci"],
                )
            waits = [FACT, PLAN.id]
            if is_accepted is not None:
                verdict = [FACT, is_accepted, at]
                connection.execute("INSERT INTO verdicts VALUES (?, ?, ?)", verdict)
            if is_accepted:
                waits.remove(FACT)
            for one in waits:
                connection.execute("INSERT INTO quarantine VALUES (?, ?)", [one, at])
            connection.commit()
        return open_serving_store(database)

    return make


def test_what_waited_is_untrusted_after_a_migration(database, decided):
    """It stays, and ranks behind. So does a plan whose recorder nobody knows: without
    one it would be taken for a fact of the database itself.
    """
    decided(None).close()
    with closing(sqlite3.connect(database)) as connection:
        sent = "SELECT recorder, is_trusted FROM recordings WHERE record_id = ?"
        assert connection.execute(sent, [PLAN.id]).fetchall() == [("anonymous", 0)]
    with open_serving_store(database) as store:
        assert not store.trust(FACT).is_trusted
        assert [one.is_trusted for one in store.query(OLD)] == [False]
        assert store.add(PLAN)
        assert store.remove([FACT]) == 1
        with pytest.raises(RecordNotFoundError):
            store.trust(FACT)


def test_what_was_accepted_is_trusted_after_a_migration(decided):
    """An operator stood behind it."""
    with decided(True) as store:
        assert store.trust(FACT).is_trusted
        assert [one.is_trusted for one in store.query(OLD)] == [True]


def test_what_was_rejected_is_retracted_after_a_migration(decided):
    """It stays stored, is in no answer, and the retraction is a document."""
    with decided(False) as store:
        assert store.query(OLD) == ()
        (one,) = store.trust(FACT).retractions
        assert (one.document, one.retracted_by) == (FACT, "operator")
        assert "rejected" in one.reason
        assert store.stored(FACT).id == FACT
        assert store.retractions() == (one,)


def test_decisions_on_a_server_are_migrated(make_postgresql_store):
    """The same on PostgreSQL."""
    facts = [make_record(n) for n in range(3)]
    with make_postgresql_store() as store:
        store.add_all(facts)
        url = store.location.url.render_as_string(hide_password=False)
        waiting, accepted, rejected = (fact.id for fact in facts)
        with store.engine.begin() as connection:
            decision = "record_id TEXT, is_accepted BOOLEAN, decided_at TIMESTAMPTZ"
            for statement in (
                "CREATE TABLE quarantine (record_id TEXT, received_at TIMESTAMPTZ)",
                f"CREATE TABLE verdicts ({decision})",
                f"INSERT INTO recordings VALUES ('{accepted}', 'ann', now(), FALSE)",
                f"INSERT INTO quarantine VALUES ('{waiting}', now())",
                f"INSERT INTO quarantine VALUES ('{rejected}', now())",
                f"INSERT INTO verdicts VALUES ('{accepted}', TRUE, now())",
                f"INSERT INTO verdicts VALUES ('{rejected}', FALSE, now())",
                f"UPDATE {VERSION_TABLE} SET version_num='0010'",
            ):
                connection.exec_driver_sql(statement)
    with open_store(url) as migrated:
        found = {one.id: one.is_trusted for one in migrated.query(facts[0].workload)}
        assert found == {waiting: False, accepted: True}
        (one,) = migrated.retractions_of([rejected])
        assert one.retracted_by == "operator"


def test_an_older_database_on_a_server_is_migrated(make_postgresql_store):
    """The tables and columns that are new since version 0002 are made; the facts
    stay.
    """
    with make_postgresql_store() as store:
        store.add(make_record())
        url = store.location.url.render_as_string(hide_password=False)
        tables = store.read(schema_of)
        with store.engine.begin() as connection:
            for table in NEW_SINCE_0002:
                connection.exec_driver_sql(f"DROP TABLE {table}")
            for column in COLUMNS_SINCE_0002:
                connection.exec_driver_sql(f"ALTER TABLE devices DROP COLUMN {column}")
            connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num='0002'")
    with open_store(url) as migrated:
        assert tuple(migrated.records()) == (make_record(),)
        assert migrated.add(make_trial())
        assert migrated.stats().schema_version == VERSIONS[-1]
        assert migrated.read(schema_of) == tables


def test_an_upgrade_keeps_who_sent_facts_on_a_server(make_postgresql_store):
    """Facts of administrators are trusted; recordings refer to no table any more."""
    records = [make_record(n) for n in range(2)]
    with make_postgresql_store() as store:
        store.add_all(records)
        tables = store.read(schema_of)
        with store.engine.begin() as connection:
            for statement in (
                "ALTER TABLE recordings DROP COLUMN is_trusted",
                "ALTER TABLE recordings ADD FOREIGN KEY (record_id) REFERENCES records",
                "ALTER TABLE api_keys DROP COLUMN is_trusted",
                "INSERT INTO api_keys VALUES ('1', 'ann', 'admin', '', now())",
                f"INSERT INTO recordings VALUES ('{records[0].id}', 'ann', now())",
                f"INSERT INTO recordings VALUES ('{records[1].id}', 'ci', now())",
            ):
                connection.exec_driver_sql(statement)
            upgrade(connection, "0005")
        assert store.read(schema_of) == tables
        found = {r.id: r.is_trusted for r in store.query(records[0].workload)}
        assert found == {records[0].id: True, records[1].id: False}


def test_failed_migration_changes_nothing(old_database):
    """A migration that fails leaves the database at its old version."""
    with closing(sqlite3.connect(old_database)) as connection:
        connection.execute("CREATE TABLE device_peaks (in_the_way TEXT)")
    with pytest.raises(StoreUnavailableError, match="another program's table"):
        open_store(old_database)
    assert version(old_database) == "0001"
    with closing(sqlite3.connect(old_database)) as connection:
        assert connection.execute("SELECT count(*) FROM records").fetchone() == (1,)


@pytest.mark.parametrize("options", [{"is_read_only": True}, {"may_create": False}])
def test_readers_change_no_older_database(old_database, options):
    """They refuse it, name the command that upgrades it, and leave no trace."""
    before = old_database.read_bytes()
    with pytest.raises(
        SchemaVersionError, match=r"schema 0001.*db migrate --database .*facts\.sqlite'"
    ):
        open_store(old_database, **options)
    assert old_database.read_bytes() == before
    assert [*old_database.parent.iterdir()] == [old_database]


def test_look_ups_change_no_older_database(old_database, monkeypatch, caplog):
    """If it is the user's own, it is skipped, and the log says how to upgrade it."""
    monkeypatch.setenv("FEINSUM_DATABASE", str(old_database))
    before = old_database.read_bytes()
    with looked_up_store(None) as store:
        assert store.query(OLD) == ()
    assert "feinsum db migrate --database" in caplog.text
    assert old_database.read_bytes() == before


def test_migrate_says_from_which_version_to_which(old_database):
    """And does nothing the second time, and nothing where there is no database."""
    done = migrate(old_database)
    assert (done.before, done.after) == ("0001", VERSIONS[-1])
    assert version(old_database) == VERSIONS[-1]
    assert len(backups(old_database)) == 1
    assert migrate(old_database).before == VERSIONS[-1]
    assert len(backups(old_database)) == 1
    with pytest.raises(StoreUnavailableError, match="there is no database"):
        migrate(old_database.with_name("mistyped.sqlite"))


def test_newer_database_is_refused(filled_database):
    """It names both versions, and is left as it is; so is a database of ours that does
    not say its version.
    """
    for change, message in (
        ("UPDATE {} SET version_num = '9998'", f"9998.*{VERSIONS[-1]}.*install"),
        ("DELETE FROM {}", "no version"),
    ):
        with closing(sqlite3.connect(filled_database)) as connection, connection:
            connection.execute(change.format(VERSION_TABLE))
        before = filled_database.read_bytes()
        with pytest.raises(SchemaVersionError, match=message):
            open_store(filled_database)
        assert filled_database.read_bytes() == before
        assert backups(filled_database) == []


def test_restored_dump_is_ours(filled_database, tmp_path):
    """A database restored from its text form is known by its tables."""
    with (
        closing(sqlite3.connect(filled_database)) as source,
        closing(sqlite3.connect(tmp_path / "restored.sqlite")) as target,
    ):
        target.executescript("\n".join(source.iterdump()))
    with open_store(tmp_path / "restored.sqlite") as store:
        assert len(store) == 3
