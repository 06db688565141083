"""Between facts and rows of the tables."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeAlias

from feinsum.db.tables import (
    Base,
    DevicePeaksRow,
    DeviceRow,
    EnvironmentRow,
    RecordRow,
    TrialRow,
    WorkloadRow,
)
from feinsum.errors import InvalidRecordError
from feinsum.records import (
    Device,
    DevicePeaks,
    Environment,
    Trial,
    TuningRecord,
    from_json,
    to_json,
)

__all__ = [
    "Row",
    "peaks_of",
    "record_of",
    "rows_of_peaks",
    "rows_of_record",
    "rows_of_trial",
    "trial_of",
]

Row: TypeAlias = tuple[type[Base], dict[str, Any]]
"""A table, and the values of its columns."""


def rows_of_record(record: TuningRecord) -> tuple[Row, ...]:
    """The rows that keep a record, each after those that it refers to.

    Raises:
        InvalidRecordError: if the record would not read back as it is. What was
            once accepted can always be served.
    """
    document = _document(record)
    record_of(record.id, document)
    environment, measurement = record.environment, record.measurement
    row = {
        "id": record.id,
        "workload_key": record.workload,
        "environment_id": environment.id,
        "device_id": environment.device.id,
        "transform_name": record.spec.name,
        "transform_version": record.spec.version,
        "median_s": measurement.median_s,
        "speedup": measurement.speedup,
        "recorded_at": _instant(record.recorded_at),
        "document": document,
    }
    return (
        _device_row(environment.device),
        _environment_row(environment),
        (WorkloadRow, {"key": record.workload, "text": record.workload_text}),
        (RecordRow, row),
    )


def rows_of_peaks(peaks: DevicePeaks) -> tuple[Row, ...]:
    """The rows that keep measured limits; see :func:`rows_of_record`."""
    document = _document(peaks)
    peaks_of(peaks.id, document)
    row = {
        "id": peaks.id,
        "device_id": peaks.device.id,
        "measured_at": _instant(peaks.measured_at),
        "bandwidth_bytes_per_s": peaks.bandwidth_bytes_per_s,
        "document": document,
    }
    return (_device_row(peaks.device), (DevicePeaksRow, row))


def rows_of_trial(trial: Trial) -> tuple[Row, ...]:
    """The rows that keep a trial; see :func:`rows_of_record`."""
    document = _document(trial)
    trial_of(trial.id, document)
    row = {
        "id": trial.id,
        "workload_key": trial.workload,
        "device_id": trial.environment.device.id,
        "driver_version": trial.environment.driver_version,
        "transform_name": trial.spec.name,
        "transform_version": trial.spec.version,
        "status": trial.status,
        "median_s": trial.median_s,
        "ratio": trial.ratio,
        "recorded_at": _instant(trial.recorded_at),
        "document": document,
    }
    return (_device_row(trial.environment.device), (TrialRow, row))


def record_of(record_id: str, document: str) -> TuningRecord:
    """The record of a document.

    Raises:
        InvalidRecordError: if the document is not well formed, or if its
            content is not what its id says.
    """
    record = from_json(TuningRecord, document)
    _check_id("record", record_id, record.id)
    return record


def peaks_of(peaks_id: str, document: str) -> DevicePeaks:
    """The measured limits of a document; see :func:`record_of`."""
    peaks = from_json(DevicePeaks, document)
    _check_id("measured limits", peaks_id, peaks.id)
    return peaks


def trial_of(trial_id: str, document: str) -> Trial:
    """The trial of a document; see :func:`record_of`."""
    trial = from_json(Trial, document)
    _check_id("trial", trial_id, trial.id)
    return trial


def _document(fact: object) -> str:
    try:
        return to_json(fact)
    except ValueError as error:
        raise InvalidRecordError(
            f"a fact was given that has no text form ({error}); expected finite "
            "numbers everywhere"
        ) from None


def _check_id(kind: str, given: str, content: str) -> None:
    if given != content:
        raise InvalidRecordError(
            f"{kind} {given}: the document has the content id {content}; expected "
            "them to be equal: it was changed, or a field has the wrong type"
        )


def _device_row(device: Device) -> Row:
    return DeviceRow, {
        "id": device.id,
        "platform": device.platform,
        "name": device.name,
        "vendor": device.vendor,
        "kind": device.kind,
        "architecture": device.architecture,
        "compute_units": device.compute_units,
    }


def _environment_row(environment: Environment) -> Row:
    return EnvironmentRow, {
        "id": environment.id,
        "device_id": environment.device.id,
        "driver_version": environment.driver_version,
        "document": to_json(environment),
    }


def _instant(text: str) -> datetime:
    """An ISO 8601 time; one without an offset is UTC already."""
    try:
        instant = datetime.fromisoformat(text)
        return (instant if instant.tzinfo else instant.replace(tzinfo=UTC)).astimezone(
            UTC
        )
    except (ValueError, OverflowError):
        raise InvalidRecordError(
            f"the time {text!r} was given, expected ISO 8601 in UTC, such as "
            "'2025-01-31T12:00:00+00:00' (feinsum.records.utc_now)"
        ) from None
