"""Converting between facts and table rows."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, TypeAlias

from feinsum.db.sql.tables import (
    Base,
    DevicePeaksRow,
    DeviceRow,
    EnvironmentRow,
    PlanRow,
    RecordRow,
    RetractionRow,
    TrialRow,
    WorkloadRow,
)
from feinsum.errors import InvalidRecordError
from feinsum.records import (
    KINDS,
    Device,
    DevicePeaks,
    Document,
    DocumentKind,
    Environment,
    PlanRecord,
    Processor,
    Retraction,
    Trial,
    TuningRecord,
    from_json,
    kind_of,
    to_json,
)
from feinsum.records.plausibility import instant

logger = logging.getLogger(__name__)

DEVICE_COLUMNS = (
    "platform", "name", "vendor", "kind", "architecture", "compute_units", "processor",
)  # fmt: skip
"""The columns that a device is made of, in the order of its fields."""

INDEXED = {"key": 500, "workload_key": 500, "transform_name": 500}
"""The most characters in a column with an index, whose entries are bounded."""

INTEGERS = range(-(2**31), 2**31)
"""Range of an integer column."""

Row: TypeAlias = tuple[type[Base], dict[str, Any]]
"""A table, and the values of its columns."""


def rows_of(document: Document, text: str | None = None) -> tuple[Row, ...]:
    """The rows that store a document, each after those that it refers to.

    Args:
        text: of a document that was read from JSON, if it is known.

    Raises:
        InvalidRecordError: if it would not round-trip, or has a value that a column
            cannot hold in SQLite or in PostgreSQL. So accepted documents can always be
            served, and merged into any other database.
    """
    rows = ROWS[kind_of(document)](document, text or _round_trip(document))
    for _, values in rows:
        _check_columns(document, values)
    return rows


def document_of(kind: DocumentKind, document_id: str, text: str) -> Document:
    """The document parsed from a text.

    Raises:
        InvalidRecordError: if it is not well formed, or does not match the id.
    """
    if not isinstance(text, str) or _digest(text) != document_id:
        raise InvalidRecordError(
            f"{kind} {document_id}: the text has another content id; expected them to "
            "be equal: it was changed"
        )
    document = from_json(KINDS[kind].cls, text)
    vars(document)["id"] = document_id  # known now; it is costly to find again
    return document


def device_of(columns: Sequence[Any]) -> Device:
    """The device of its :data:`DEVICE_COLUMNS`.

    An unreadable processor is omitted and logged: such a row is good enough to show,
    and facts contain their own devices.
    """
    fields = dict(zip(DEVICE_COLUMNS, columns, strict=True))
    text = fields["processor"]
    return Device(**{**fields, "processor": text and _processor(text)})


def _processor(text: str) -> Processor | None:
    try:
        return from_json(Processor, text)
    except InvalidRecordError as error:
        logger.error("skipped the processor of a device: %s", error)
        return None


def record_of(record_id: str, text: str) -> TuningRecord:
    """The record of a text; see :func:`document_of`."""
    record = document_of("record", record_id, text)
    assert isinstance(record, TuningRecord)
    return record


def _rows_of_record(record: TuningRecord, text: str) -> tuple[Row, ...]:
    environment, measurement = record.environment, record.measurement
    row = {
        "id": _checked_id(record, text),
        "workload_key": record.workload,
        "environment_id": environment.id,
        "device_id": environment.device.id,
        "transform_name": record.spec.name,
        "transform_version": record.spec.version,
        "median_s": measurement.median_s,
        "speedup": measurement.speedup,
        "recorded_at": instant(record.recorded_at),
        "document": text,
    }
    return (
        _device_row(environment.device),
        _environment_row(environment),
        (WorkloadRow, {"key": record.workload, "text": record.workload_text}),
        (RecordRow, row),
    )


def _rows_of_peaks(peaks: DevicePeaks, text: str) -> tuple[Row, ...]:
    row = {
        "id": _checked_id(peaks, text),
        "device_id": peaks.device.id,
        "measured_at": instant(peaks.measured_at),
        "bandwidth_bytes_per_s": peaks.bandwidth_bytes_per_s,
        "document": text,
    }
    return (_device_row(peaks.device), (DevicePeaksRow, row))


def _rows_of_retraction(retraction: Retraction, text: str) -> tuple[Row, ...]:
    row = {
        "id": _checked_id(retraction, text),
        "document_id": retraction.document,
        "retracted_by": retraction.retracted_by,
        "retracted_at": instant(retraction.retracted_at),
        "document": text,
    }
    return ((RetractionRow, row),)


def _rows_of_trial(trial: Trial, text: str) -> tuple[Row, ...]:
    row = {
        "id": _checked_id(trial, text),
        "workload_key": trial.workload,
        "device_id": trial.environment.device.id,
        "driver_version": trial.environment.driver_version,
        "transform_name": trial.spec.name,
        "transform_version": trial.spec.version,
        "status": trial.status,
        "median_s": trial.median_s,
        "ratio": trial.ratio,
        "recorded_at": instant(trial.recorded_at),
        "document": text,
    }
    return (_device_row(trial.environment.device), (TrialRow, row))


def _rows_of_plan(record: PlanRecord, text: str) -> tuple[Row, ...]:
    device = record.fleet.device
    row = {
        "id": _checked_id(record, text),
        "workload_key": record.workload,
        "plan_id": record.plan_id,
        "device_id": device.id,
        "processes": record.fleet.ranks,
        "engine": record.fleet.engine,
        "median_s": record.median_s,
        "recorded_at": instant(record.recorded_at),
        "document": text,
    }
    return (_device_row(device), (PlanRow, row))


ROWS: dict[DocumentKind, Callable[[Any, str], tuple[Row, ...]]] = {
    "record": _rows_of_record,
    "peaks": _rows_of_peaks,
    "trial": _rows_of_trial,
    "retraction": _rows_of_retraction,
    "plan": _rows_of_plan,
}
"""Functions that make the rows of a document and its text, by kind."""


def _round_trip(document: Document) -> str:
    """The document as text, from which it reads back as it is."""
    try:
        text = to_json(document)
    except ValueError as error:
        raise InvalidRecordError(
            f"a fact without a text form was given ({error}); expected finite "
            "numbers everywhere"
        ) from None
    if to_json(from_json(type(document), text)) != text:
        raise InvalidRecordError(
            f"{type(document).__name__} {document.id}: it does not round-trip; "
            "expected every field to have its declared type, for example no int in "
            "place of a float"
        )
    return text


def _checked_id(document: Document | Environment, text: str) -> str:
    """The content id of a document with some text."""
    digest = _digest(text)
    if vars(document).setdefault("id", digest) != digest:
        raise InvalidRecordError(
            f"{type(document).__name__} {document.id}: its content id is {digest}; "
            "expected them to be equal: its text is not in the canonical form"
        )
    return digest


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _check_columns(document: Document, values: dict[str, Any]) -> None:
    for name, value in values.items():
        problem = None
        if isinstance(value, float) and not isfinite(value):
            problem = f"{value}, expected a finite number"
        elif isinstance(value, int) and value not in INTEGERS:
            problem = "expected an integer of 32 bits"
        elif isinstance(value, str) and "\0" in value:
            problem = "expected a text without the character NUL"
        elif isinstance(value, str) and len(value) > INDEXED.get(name, len(value)):
            problem = f"expected {INDEXED[name]} characters at most"
        if problem is not None:
            raise InvalidRecordError(
                f"{type(document).__name__} {document.id}: {name}: {problem}"
            )


def _device_row(device: Device) -> Row:
    processor = device.processor
    return DeviceRow, {
        "id": device.id,
        **{name: getattr(device, name) for name in DEVICE_COLUMNS},
        "microarchitecture": device.microarchitecture,
        "processor": None if processor is None else to_json(processor),
    }


def _environment_row(environment: Environment) -> Row:
    text = to_json(environment)
    return EnvironmentRow, {
        "id": _checked_id(environment, text),
        "device_id": environment.device.id,
        "driver_version": environment.driver_version,
        "document": text,
    }
