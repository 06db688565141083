"""The migrations of the schema, one function each, run by Alembic's operations.

Migrations are history: the current tables are in :mod:`feinsum.db.sql.tables`. A
migration adds columns and tables; it does not change facts, whose ids are digests of
their documents. It runs on SQLite and on PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from alembic.migration import MigrationContext
from alembic.operations import Operations

from feinsum.db.sql.schema import APPLICATION_ID
from feinsum.records import Retraction, to_json

TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "id": sa.String(64),
    "string": sa.String(),
    "text": sa.Text(),
    "int": sa.Integer(),
    "double": sa.Double(),
    "time": sa.DateTime(timezone=True),
}


def upgrade(connection: sa.Connection, after: str | None, last: str) -> None:
    """Run the migrations after a version up to another one, in the open transaction.

    Args:
        connection: connection in an open transaction.
        after: the version of the schema; None for an empty database.
        last: the version to reach.
    """
    operations = Operations(MigrationContext.configure(connection))
    for version, migrate in MIGRATIONS.items():
        if (after or "") < version <= last:
            migrate(operations)


def create_table(
    op: Operations,
    name: str,
    columns: str,
    *,
    keys: Sequence[str] = ("id",),
    references: Mapping[str, str] = MappingProxyType({}),
    indexes: Sequence[str] = (),
    ondelete: str | None = None,
) -> None:
    """Create a table whose constraints and indices all have names.

    Args:
        op: operations of the migration.
        name: name of the table.
        columns: names with types of :data:`TYPES`, separated by spaces; ``?`` after a
            type makes the column nullable.
        keys: the primary key.
        references: foreign keys, such as ``{"device_id": "devices.id"}``.
        indexes: columns of each index, joined by ``+``.
        ondelete: what the deletion of a referenced row does, such as ``CASCADE``.
    """
    fields = [column.split(":") for column in columns.split()]
    op.create_table(
        name,
        *(
            sa.Column(column, TYPES[kind.rstrip("?")], nullable=kind.endswith("?"))
            for column, kind in fields
        ),
        sa.PrimaryKeyConstraint(*keys, name=f"pk_{name}"),
        *(
            sa.ForeignKeyConstraint(
                [column],
                [target],
                name=f"fk_{name}_{column}_{target.partition('.')[0]}",
                ondelete=ondelete,
            )
            for column, target in references.items()
        ),
    )
    for index in indexes:
        columns_of_index = index.split("+")
        op.create_index(
            f"ix_{name}_{'_'.join(columns_of_index)}", name, columns_of_index
        )


def create_facts(op: Operations) -> None:
    """0001: devices, environments, workloads and tuning records."""
    if op.get_context().dialect.name == "sqlite":
        # marks the file as ours in its header
        op.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    create_table(
        op,
        "devices",
        "id:id platform:string name:string vendor:string kind:string "
        "architecture:string compute_units:int",
    )
    create_table(
        op,
        "environments",
        "id:id device_id:id driver_version:string document:text",
        references={"device_id": "devices.id"},
        indexes=["device_id"],
    )
    create_table(op, "workloads", "key:text text:text", keys=["key"])
    create_table(
        op,
        "records",
        "id:id workload_key:text environment_id:id device_id:id transform_name:string "
        "transform_version:int median_s:double speedup:double recorded_at:time "
        "document:text",
        references={
            "workload_key": "workloads.key",
            "environment_id": "environments.id",
            "device_id": "devices.id",
        },
        indexes=[
            "workload_key+device_id",
            "environment_id",
            "device_id",
            "transform_name+transform_version",
            "recorded_at",
        ],
    )


def create_device_peaks(op: Operations) -> None:
    """0002: the measured limits of devices, for rooflines."""
    create_table(
        op,
        "device_peaks",
        "id:id device_id:id measured_at:time bandwidth_bytes_per_s:double "
        "document:text",
        references={"device_id": "devices.id"},
        indexes=["device_id"],
    )


def create_trials(op: Operations) -> None:
    """0003: trials, good and bad, from which a tuning goes on."""
    create_table(
        op,
        "trials",
        "id:id workload_key:text device_id:id driver_version:string "
        "transform_name:string transform_version:int status:string median_s:double? "
        "ratio:double? recorded_at:time document:text",
        references={"device_id": "devices.id"},
        indexes=["workload_key", "device_id"],
    )


def create_service(op: Operations) -> None:
    """0004: recordings, quarantine, demands and API keys of the service."""
    references = {"record_id": "records.id"}
    create_table(
        op,
        "recordings",
        "record_id:id recorder:string received_at:time",
        keys=["record_id", "recorder"],
        references=references,
        ondelete="CASCADE",
    )
    create_table(
        op,
        "quarantine",
        "record_id:id received_at:time",
        keys=["record_id"],
        references=references,
        ondelete="CASCADE",
    )
    create_table(
        op,
        "demands",
        "workload_key:text device:string workload_text:text? count:int "
        "first_seen:time last_seen:time",
        keys=["workload_key", "device"],
        indexes=["count"],
    )
    create_table(
        op,
        "api_keys",
        "id:string name:string scope:string digest:id created_at:time "
        "expires_at:time? revoked_at:time?",
    )


def add_processors(op: Operations) -> None:
    """0005: the processors of devices; empty for all that was recorded before."""
    # Facts stay as they are: their documents have no processor, nor have their ids.
    op.add_column("devices", sa.Column("microarchitecture", sa.String, nullable=True))
    op.add_column("devices", sa.Column("processor", sa.Text, nullable=True))


def add_trust(op: Operations) -> None:
    """0006: whether recorders are trusted, and what operators decided about facts.

    Facts that administrators sent before count as trusted, those of other keys do not.
    """
    for table in ("api_keys", "recordings"):
        is_trusted = sa.Column(
            "is_trusted", sa.Boolean, nullable=False, server_default=sa.false()
        )
        op.add_column(table, is_trusted)
    # by name: recordings have the recorder, not the key
    op.execute(
        "UPDATE recordings SET is_trusted = TRUE WHERE recorder IN "
        "(SELECT name FROM api_keys WHERE scope = 'admin')"
    )
    op.create_table(
        "verdicts",
        sa.Column("record_id", sa.String(64), nullable=False),
        sa.Column("is_accepted", sa.Boolean, nullable=False),
        sa.Column("decided_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("record_id", name="pk_verdicts"),
        sa.ForeignKeyConstraint(
            ["record_id"],
            ["records.id"],
            name="fk_verdicts_record_id_records",
            ondelete="CASCADE",
        ),
    )


def create_retractions(op: Operations) -> None:
    """0007: retractions."""
    create_table(
        op,
        "retractions",
        "id:id document_id:id retracted_by:string retracted_at:time document:text",
        indexes=["document_id", "retracted_at"],
    )


def create_demand_callers(op: Operations) -> None:
    """0008: who requested what is in demand."""
    # Earlier demands count as those of one caller: callers were not recorded.
    n_callers = sa.Column("n_callers", sa.Integer, nullable=False, server_default="1")
    op.add_column("demands", n_callers)
    create_table(
        op,
        "demand_callers",
        "workload_key:text device:string caller:string count:int last_seen:time",
        keys=["workload_key", "device", "caller"],
        indexes=["caller"],
    )


def create_plans(op: Operations) -> None:
    """0009: plans."""
    create_table(
        op,
        "plans",
        "id:id workload_key:text plan_id:id device_id:id processes:int engine:string "
        "median_s:double? recorded_at:time document:text",
        references={"device_id": "devices.id"},
        indexes=["workload_key", "device_id", "recorded_at"],
    )


def trust_plans(op: Operations) -> None:
    """0010: recordings, quarantine and verdicts are of plans, too."""
    for table in ("recordings", "quarantine", "verdicts"):
        # SQLite cannot drop a constraint: batch mode copies the table without it
        with op.batch_alter_table(table) as batch:
            batch.drop_constraint(f"fk_{table}_record_id_records", type_="foreignkey")


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

RETRACT = """
INSERT INTO retractions (id, document_id, retracted_by, retracted_at, document)
VALUES (:id, :document_id, 'operator', :retracted_at, :document)
"""


def end_quarantine(op: Operations) -> None:
    """0011: waiting facts become untrusted, accepted ones trusted.

    An operator's rejection becomes a retraction, so that no rejected fact comes back.
    Every fact and plan stays.
    """
    # In this order: an accepted fact that was still waiting is trusted in the end.
    for statement in (UNTRUST, ATTRIBUTE, TRUST):
        op.execute(statement)
    decided_at = sa.DateTime(timezone=True)
    rejected = sa.text(REJECTED).columns(record_id=sa.String, decided_at=decided_at)
    retract = sa.text(RETRACT).bindparams(
        sa.bindparam("retracted_at", type_=decided_at)
    )
    reason = "rejected by the operator, before quarantine was removed"
    for record_id, decided in op.get_bind().execute(rejected).all():
        # SQLite has no time zones; what is stored is UTC
        time = decided if decided.tzinfo else decided.replace(tzinfo=UTC)
        text = time.astimezone(UTC).replace(microsecond=0).isoformat()
        retraction = Retraction(record_id, reason, "operator", text)
        values = {
            "id": retraction.id,
            "document_id": record_id,
            "retracted_at": datetime.fromisoformat(text),
            "document": to_json(retraction),
        }
        op.get_bind().execute(retract, values)
    op.drop_table("quarantine")
    op.drop_table("verdicts")


MIGRATIONS: dict[str, Callable[[Operations], None]] = {
    "0001": create_facts,
    "0002": create_device_peaks,
    "0003": create_trials,
    "0004": create_service,
    "0005": add_processors,
    "0006": add_trust,
    "0007": create_retractions,
    "0008": create_demand_callers,
    "0009": create_plans,
    "0010": trust_plans,
    "0011": end_quarantine,
}
"""The migrations in order, by the version of the schema that they lead to."""
