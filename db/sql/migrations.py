"""Upgrades of older databases, from any version at once.

A newer schema has more tables and columns, which are added as
:mod:`feinsum.db.sql.tables` describes them. Facts do not change: their ids are digests
of their documents. Only where other rows mean something else since, there is a function
that converts them::

    0004 --> tables, columns of today --> 0006, 0010, 0011 --> newest
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, String, inspect, text
from sqlalchemy.schema import CreateColumn

from feinsum.db.sql.rows import insert_missing, make_rows
from feinsum.db.sql.tables import Base, RecordingRow, UtcDateTime
from feinsum.errors import StoreUnavailableError
from feinsum.records import Retraction


def upgrade(connection: Connection, version: str) -> None:
    """Upgrade a database of an older version, in the open transaction."""
    add_missing(connection)
    for changed_in, convert in CONVERSIONS.items():
        if version < changed_in:
            convert(connection)


def add_missing(connection: Connection) -> None:
    """Add the tables and columns that a database lacks, with their defaults.

    Raises:
        StoreUnavailableError: if a table of that name is another program's.
    """
    Base.metadata.create_all(connection)
    present = inspect(connection)
    for table in Base.metadata.sorted_tables:
        names = {column["name"] for column in present.get_columns(table.name)}
        if missing := {*table.primary_key.columns.keys()} - names:
            raise StoreUnavailableError(
                f"the database has another program's table {table.name!r}, without "
                f"the column {min(missing)!r}; rename that table, then upgrade again"
            )
        for column in table.columns:
            if column.name not in names:
                described = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(
                    f"ALTER TABLE {table.name} ADD COLUMN {described}"
                )


def trust_administrators(connection: Connection) -> None:
    """0006: facts that administrators sent are trusted, those of other keys not."""
    # by name: recordings have the recorder, not the key
    connection.exec_driver_sql(
        "UPDATE recordings SET is_trusted = TRUE WHERE recorder IN "
        "(SELECT name FROM api_keys WHERE scope = 'admin')"
    )


def free_recordings(connection: Connection) -> None:
    """0010: recordings are of plans, too, and refer to no table of records."""
    table = RecordingRow.__table__
    if not inspect(connection).get_foreign_keys(table.name):
        return
    # SQLite cannot drop a constraint, so the table is created again
    connection.exec_driver_sql(
        "CREATE TABLE recordings_before AS SELECT * FROM recordings"
    )
    table.drop(connection)
    table.create(connection)
    names = ", ".join(table.columns.keys())
    connection.exec_driver_sql(
        f"INSERT INTO recordings ({names}) SELECT {names} FROM recordings_before"  # noqa: S608
    )
    connection.exec_driver_sql("DROP TABLE recordings_before")


UNTRUST = """
UPDATE recordings SET is_trusted = FALSE
WHERE record_id IN (SELECT record_id FROM quarantine)
"""

ATTRIBUTE = """
INSERT INTO recordings (record_id, recorder, received_at, is_trusted)
SELECT record_id, 'anonymous', received_at, FALSE FROM quarantine
WHERE record_id NOT IN (SELECT record_id FROM recordings)
"""
"""A fact without a recorder would be taken for one that was recorded here."""

TRUST = """
UPDATE recordings SET is_trusted = TRUE
WHERE record_id IN (SELECT record_id FROM verdicts WHERE is_accepted)
"""

REJECTED = """
SELECT record_id, decided_at FROM verdicts
WHERE NOT is_accepted
AND record_id NOT IN (SELECT document_id FROM retractions)
"""


def end_quarantine(connection: Connection) -> None:
    """0011: waiting facts become untrusted, accepted ones trusted.

    An operator's rejection becomes a retraction, so that no rejected fact comes back.
    Every fact and plan stays.
    """
    present = inspect(connection)
    # In this order: an accepted fact that was still waiting is trusted in the end.
    if present.has_table("quarantine"):  # since 0004
        connection.exec_driver_sql(UNTRUST)
        connection.exec_driver_sql(ATTRIBUTE)
        connection.exec_driver_sql("DROP TABLE quarantine")
    if present.has_table("verdicts"):  # since 0006
        connection.exec_driver_sql(TRUST)
        _retract_rejected(connection)
        connection.exec_driver_sql("DROP TABLE verdicts")


def _retract_rejected(connection: Connection) -> None:
    rejected = text(REJECTED).columns(record_id=String, decided_at=UtcDateTime)
    reason = "rejected by the operator, before quarantine was removed"
    for record_id, decided_at in connection.execute(rejected).all():
        decided = decided_at.replace(microsecond=0).isoformat()
        retraction = Retraction(record_id, reason, "operator", decided)
        insert_missing(connection, make_rows(retraction))


CONVERSIONS: dict[str, Callable[[Connection], None]] = {
    "0006": trust_administrators,
    "0010": free_recordings,
    "0011": end_quarantine,
}
"""The changes of rows in order, by the version of the schema since which they hold."""
