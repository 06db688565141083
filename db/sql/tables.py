"""The tables: facts by content id, with a column for everything that is searched.

Every fact stores its whole document as JSON text, so that nothing is lost; the other
columns are derived from it for look-ups: each names the attribute of the document that
it has. Rows are only ever added; see ``garbage.py`` for the one exception.

The tables of the service (keys, recordings, demands) are separate; their rows change
and are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

from sqlalchemy import (
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    false,
)
from sqlalchemy.types import TypeEngine


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: converted to UTC when written, timezone-aware when read."""

    impl = DateTime(timezone=True)
    # the type has no state, so SQLAlchemy may cache statements that contain it
    cache_ok = True

    def process_bind_param(
        self, value: datetime | None, dialect: Dialect
    ) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(
        self, value: datetime | None, dialect: Dialect
    ) -> datetime | None:
        if value is None:
            return None
        # SQLite stores no offset; what is written is UTC
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


T = TypeVar("T")


class Base:
    """A table whose columns are attributes of a class.

    Attributes:
        sources: by the name of a column, what reads its value from a document.

    SQLAlchemy's ORM declares tables like this, too. But rows are read as tuples, never
    as objects, and importing and mapping it would slow down the start of every process.
    """

    # Every constraint has a name that migrations can use.
    metadata: ClassVar[MetaData] = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    __tablename__: ClassVar[str]
    __table_args__: ClassVar[tuple[Index, ...]] = ()
    __table__: ClassVar[Table]
    sources: ClassVar[Mapping[str, Callable[[Any], Any]]]

    def __init_subclass__(cls) -> None:
        columns = {k: v for k, v in vars(cls).items() if isinstance(v, Column)}
        for name, column in columns.items():
            column.name = column.key = name
        paths = {name: column.info.get("source") for name, column in columns.items()}
        cls.sources = {name: attrgetter(path) for name, path in paths.items() if path}
        parts = (*columns.values(), *cls.__table_args__)
        cls.__table__ = Table(cls.__tablename__, cls.metadata, *parts)

    @classmethod
    def __clause_element__(cls) -> Table:
        """Return the table, which SQLAlchemy uses for the class in a statement."""
        return cls.__table__


def _make_column(
    kind: TypeEngine[T] | type[TypeEngine[T]],
    source: str = "",
    *more: Any,
    **options: Any,
) -> ColumnElement[T]:
    """Make a column; ``source`` is the path of attributes with its value, if any."""
    options = {"nullable": False, "info": {"source": source}, **options}
    column: Column[T] = Column(kind, *more, **options)
    return column


def _make_id_column() -> ColumnElement[str]:
    return _make_column(String(64), "id", primary_key=True)


def _make_device_column(source: str) -> ColumnElement[str]:
    # neither SQLite nor PostgreSQL indexes the columns of a foreign key by itself
    return _make_column(String(64), source, ForeignKey("devices.id"), index=True)


def _make_flag_column() -> ColumnElement[bool]:
    # a column that is not null can be added to a table with rows only with a default
    return _make_column(Boolean, server_default=false())


class DeviceRow(Base):
    """A device, as OpenCL reports it.

    ``microarchitecture`` and ``processor``, which is a document, are of version 0005;
    NULL for a GPU and for what was recorded before.
    """

    __tablename__ = "devices"

    id = _make_id_column()
    platform = _make_column(String, "platform")
    name = _make_column(String, "name")
    vendor = _make_column(String, "vendor")
    kind = _make_column(String, "kind")
    architecture = _make_column(String, "architecture")
    compute_units = _make_column(Integer, "compute_units")
    microarchitecture = _make_column(String, "microarchitecture", nullable=True)
    processor = _make_column(Text, nullable=True)


class EnvironmentRow(Base):
    """A device with its driver, the software, and the measuring policy."""

    __tablename__ = "environments"

    id = _make_id_column()
    device_id = _make_device_column("device.id")
    driver_version = _make_column(String, "driver_version")
    document = _make_column(Text)


class WorkloadRow(Base):
    """A canonical einsum: its key, and its text as first recorded."""

    __tablename__ = "workloads"

    key = _make_column(Text, "workload", primary_key=True)
    text = _make_column(Text, "workload_text")


class RecordRow(Base):
    """A tuning record."""

    __tablename__ = "records"

    id = _make_id_column()
    workload_key = _make_column(Text, "workload", ForeignKey("workloads.key"))
    environment_id = _make_column(
        String(64), "environment.id", ForeignKey("environments.id"), index=True
    )
    device_id = _make_device_column("environment.device.id")
    transform_name = _make_column(String, "spec.name")
    transform_version = _make_column(Integer, "spec.version")
    median_s = _make_column(Double, "measurement.median_s")
    speedup = _make_column(Double, "measurement.speedup")
    recorded_at = _make_column(UtcDateTime, "recorded_at", index=True)
    document = _make_column(Text)

    __table_args__ = (
        # by its first column, it also serves queries by workload alone
        Index(None, "workload_key", "device_id"),  # the look-up
        Index(None, "transform_name", "transform_version"),  # retractions, statistics
    )


class DevicePeaksRow(Base):
    """Measured limits of a device; since schema version 0002."""

    __tablename__ = "device_peaks"

    id = _make_id_column()
    device_id = _make_device_column("device.id")
    measured_at = _make_column(UtcDateTime, "measured_at")
    bandwidth_bytes_per_s = _make_column(Double, "bandwidth_bytes_per_s")
    document = _make_column(Text)


class TrialRow(Base):
    """A trial, good or bad: no fact, and in no look-up; since schema version 0003."""

    __tablename__ = "trials"

    id = _make_id_column()
    workload_key = _make_column(Text, "workload", index=True)
    device_id = _make_device_column("environment.device.id")
    driver_version = _make_column(String, "environment.driver_version")
    transform_name = _make_column(String, "spec.name")
    transform_version = _make_column(Integer, "spec.version")
    status = _make_column(String, "status")
    median_s = _make_column(Double, "median_s", nullable=True)
    ratio = _make_column(Double, "ratio", nullable=True)
    recorded_at = _make_column(UtcDateTime, "recorded_at")
    document = _make_column(Text)


class PlanRow(Base):
    """The traffic and run times of a plan on a fleet; since schema version 0009.

    The key is that of an einsum, or of a program, which has no row of its own.
    """

    __tablename__ = "plans"

    id = _make_id_column()
    workload_key = _make_column(Text, "workload", index=True)
    plan_id = _make_column(String(64), "plan_id")
    device_id = _make_device_column("fleet.device.id")
    processes = _make_column(Integer, "fleet.ranks")
    engine = _make_column(String, "fleet.engine")
    median_s = _make_column(Double, "median_s", nullable=True)
    recorded_at = _make_column(UtcDateTime, "recorded_at", index=True)
    document = _make_column(Text)


class RetractionRow(Base):
    """The retraction of a fact or of device limits; since version 0007."""

    __tablename__ = "retractions"

    id = _make_id_column()
    # no foreign key: a retraction may arrive before the document
    document_id = _make_column(String(64), "document", index=True)
    retracted_by = _make_column(String, "retracted_by")
    retracted_at = _make_column(UtcDateTime, "retracted_at", index=True)
    document = _make_column(Text)


class RecordingRow(Base):
    """Who recorded a fact through the service; since schema version 0004.

    Facts are records, plans or limits of devices, so since version 0010 it refers to no
    other table. ``is_trusted``, of version 0006, is whether the recorder was trusted
    then; a fact without a row was recorded in the database itself.
    """

    __tablename__ = "recordings"

    record_id = _make_id_column()
    recorder = _make_column(String, primary_key=True)
    received_at = _make_column(UtcDateTime)
    is_trusted = _make_flag_column()


class DemandRow(Base):
    """An unanswered request for a workload; since schema version 0004.

    ``device`` is as given in the request, or empty; ``workload_text`` is the canonical
    text, once a request had it. ``n_callers`` is of version 0008.
    """

    __tablename__ = "demands"

    workload_key = _make_column(Text, primary_key=True)
    device = _make_column(String, primary_key=True)
    workload_text = _make_column(Text, nullable=True)
    count = _make_column(Integer, index=True)
    n_callers = _make_column(Integer, server_default="1")
    first_seen = _make_column(UtcDateTime)
    last_seen = _make_column(UtcDateTime)


class DemandCallerRow(Base):
    """A caller's unanswered request for a workload; since schema version 0008.

    ``caller`` identifies the caller: the name of a key, or the digest of an address.
    """

    __tablename__ = "demand_callers"

    workload_key = _make_column(Text, primary_key=True)
    device = _make_column(String, primary_key=True)
    caller = _make_column(String, primary_key=True, index=True)
    count = _make_column(Integer)
    last_seen = _make_column(UtcDateTime)


class ApiKeyRow(Base):
    """A key of the service, stored only as a digest; since version 0004.

    ``is_trusted``, of version 0006, is whether facts sent with it rank first.
    """

    __tablename__ = "api_keys"

    id = _make_column(String, primary_key=True)
    name = _make_column(String)
    scope = _make_column(String)
    digest = _make_column(String(64))
    created_at = _make_column(UtcDateTime)
    expires_at = _make_column(UtcDateTime, nullable=True)
    revoked_at = _make_column(UtcDateTime, nullable=True)
    is_trusted = _make_flag_column()
