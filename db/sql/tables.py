"""The tables: facts by content id, with a column for everything that is searched.

Every fact stores its whole document as JSON text, so that nothing is lost; the other
columns are derived from it for look-ups. Rows are only ever added; see ``garbage.py``
for the one exception.

The tables of the service (keys, recordings, quarantine, demands) are separate; their
rows change and are deleted.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from sqlalchemy import (
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    Index,
    MetaData,
    String,
    Text,
    TypeDecorator,
    false,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = [
    "ApiKeyRow",
    "Base",
    "DemandCallerRow",
    "DemandRow",
    "DevicePeaksRow",
    "DeviceRow",
    "EnvironmentRow",
    "PlanRow",
    "QuarantineRow",
    "RecordRow",
    "RecordingRow",
    "RetractionRow",
    "TrialRow",
    "UtcDateTime",
    "VerdictRow",
    "WorkloadRow",
]


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: converted to UTC when written, timezone-aware when read."""

    impl = DateTime(timezone=True)
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
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


class Base(DeclarativeBase):
    """Root of the tables; every constraint has a name that migrations can use."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


ContentId = Annotated[str, mapped_column(String(64), primary_key=True)]
DeviceId = Annotated[str, mapped_column(ForeignKey("devices.id"), index=True)]
Document = Annotated[str, mapped_column(Text)]
Instant = Annotated[datetime, mapped_column(UtcDateTime)]
Real = Annotated[float, mapped_column(Double)]
Flag = Annotated[bool, mapped_column(server_default=false())]


class DeviceRow(Base):
    """A device, as OpenCL reports it.

    ``microarchitecture`` and ``processor``, which is a document, are of version 0005;
    NULL for a GPU and for what was recorded before.
    """

    __tablename__ = "devices"

    id: Mapped[ContentId]
    platform: Mapped[str]
    name: Mapped[str]
    vendor: Mapped[str]
    kind: Mapped[str]
    architecture: Mapped[str]
    compute_units: Mapped[int]
    microarchitecture: Mapped[str | None]
    processor: Mapped[Document | None]


class EnvironmentRow(Base):
    """A device with its driver, the software, and the measuring policy."""

    __tablename__ = "environments"

    id: Mapped[ContentId]
    device_id: Mapped[DeviceId]
    driver_version: Mapped[str]
    document: Mapped[Document]


class WorkloadRow(Base):
    """A canonical einsum: its key, and its text as first recorded."""

    __tablename__ = "workloads"

    key: Mapped[str] = mapped_column(Text, primary_key=True)
    text: Mapped[str] = mapped_column(Text)


class RecordRow(Base):
    """A tuning record."""

    __tablename__ = "records"

    id: Mapped[ContentId]
    workload_key: Mapped[str] = mapped_column(ForeignKey("workloads.key"))
    environment_id: Mapped[str] = mapped_column(
        ForeignKey("environments.id"), index=True
    )
    device_id: Mapped[DeviceId]
    transform_name: Mapped[str]
    transform_version: Mapped[int]
    median_s: Mapped[Real]
    speedup: Mapped[Real]
    recorded_at: Mapped[Instant] = mapped_column(index=True)
    document: Mapped[Document]

    __table_args__ = (
        Index(None, "workload_key", "device_id"),
        Index(None, "transform_name", "transform_version"),
    )


class DevicePeaksRow(Base):
    """Measured limits of a device; since schema version 0002."""

    __tablename__ = "device_peaks"

    id: Mapped[ContentId]
    device_id: Mapped[DeviceId]
    measured_at: Mapped[Instant]
    bandwidth_bytes_per_s: Mapped[Real]
    document: Mapped[Document]


class TrialRow(Base):
    """A trial, good or bad: no fact, and in no look-up; since schema version 0003."""

    __tablename__ = "trials"

    id: Mapped[ContentId]
    workload_key: Mapped[str] = mapped_column(Text, index=True)
    device_id: Mapped[DeviceId]
    driver_version: Mapped[str]
    transform_name: Mapped[str]
    transform_version: Mapped[int]
    status: Mapped[str]
    median_s: Mapped[Real | None]
    ratio: Mapped[Real | None]
    recorded_at: Mapped[Instant]
    document: Mapped[Document]


class PlanRow(Base):
    """The traffic and run times of a plan on a fleet; since schema version 0009.

    The key is that of an einsum, or of a program, which has no row of its own.
    """

    __tablename__ = "plans"

    id: Mapped[ContentId]
    workload_key: Mapped[str] = mapped_column(Text, index=True)
    plan_id: Mapped[str] = mapped_column(String(64))
    device_id: Mapped[DeviceId]
    processes: Mapped[int]
    engine: Mapped[str]
    median_s: Mapped[Real | None]
    recorded_at: Mapped[Instant] = mapped_column(index=True)
    document: Mapped[Document]


class RetractionRow(Base):
    """The retraction of a fact or of device limits; since version 0007.

    It may arrive before what it retracts, so that column refers to no table.
    """

    __tablename__ = "retractions"

    id: Mapped[ContentId]
    document_id: Mapped[str] = mapped_column(String(64), index=True)
    retracted_by: Mapped[str]
    retracted_at: Mapped[Instant] = mapped_column(index=True)
    document: Mapped[Document]


class RecordingRow(Base):
    """Who recorded a fact through the service; since schema version 0004.

    Facts are records or plans, so since version 0010 this table and the next two refer
    to no other.
    ``is_trusted``, of version 0006, is whether the recorder was trusted then.
    """

    __tablename__ = "recordings"

    record_id: Mapped[ContentId]
    recorder: Mapped[str] = mapped_column(primary_key=True)
    received_at: Mapped[Instant]
    is_trusted: Mapped[Flag]


class QuarantineRow(Base):
    """A fact that no look-up sees until it is confirmed; since version 0004."""

    __tablename__ = "quarantine"

    record_id: Mapped[ContentId]
    received_at: Mapped[Instant]


class VerdictRow(Base):
    """An operator's decision about a received fact; since version 0006.

    An accepted fact vouches for others; a rejected one stays in quarantine, whoever
    agrees with it.
    """

    __tablename__ = "verdicts"

    record_id: Mapped[ContentId]
    is_accepted: Mapped[bool]
    decided_at: Mapped[Instant]


class DemandRow(Base):
    """An unanswered request for a workload; since schema version 0004.

    ``device`` is as given in the request, or empty; ``workload_text`` is the canonical
    text, once a request had it. ``n_callers`` is of version 0008.
    """

    __tablename__ = "demands"

    workload_key: Mapped[str] = mapped_column(Text, primary_key=True)
    device: Mapped[str] = mapped_column(primary_key=True)
    workload_text: Mapped[str | None] = mapped_column(Text)
    count: Mapped[int] = mapped_column(index=True)
    n_callers: Mapped[int] = mapped_column(server_default="1")
    first_seen: Mapped[Instant]
    last_seen: Mapped[Instant]


class DemandCallerRow(Base):
    """A caller's unanswered request for a workload; since schema version 0008.

    ``caller`` identifies the caller: the name of a key, or the digest of an address.
    """

    __tablename__ = "demand_callers"

    workload_key: Mapped[str] = mapped_column(Text, primary_key=True)
    device: Mapped[str] = mapped_column(primary_key=True)
    caller: Mapped[str] = mapped_column(primary_key=True, index=True)
    count: Mapped[int]
    last_seen: Mapped[Instant]


class ApiKeyRow(Base):
    """A key of the service, stored only as a digest; since version 0004.

    ``is_trusted``, of version 0006, is whether facts sent with it are served at once.
    """

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    scope: Mapped[str]
    digest: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[Instant]
    expires_at: Mapped[Instant | None]
    revoked_at: Mapped[Instant | None]
    is_trusted: Mapped[Flag]
