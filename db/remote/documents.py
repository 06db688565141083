"""Documents from a service, checked like the rows of a database."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from feinsum.db.sql.rows import document_of
from feinsum.errors import InvalidRecordError
from feinsum.records import (
    DevicePeaks,
    PlanRecord,
    Retraction,
    TuningRecord,
    from_json,
    untrusted,
)
from feinsum.records.document import to_text

logger = logging.getLogger(__name__)

F = TypeVar("F", TuningRecord, PlanRecord)

_DIGITS = frozenset("0123456789abcdef")


def is_content_id(text: object) -> bool:
    """Whether a text can be the id of a document."""
    return isinstance(text, str) and len(text) == 64 and _DIGITS.issuperset(text)


def record_of(record_id: str, document: Any) -> TuningRecord:
    """Return the record in a document, after checking its id.

    Raises:
        InvalidRecordError: if it is not well formed, or is another one.
    """
    record = document_of("record", record_id, _text(record_id, document))
    assert isinstance(record, TuningRecord)
    return record


def _text(record_id: str, document: Any) -> str:
    """Return the canonical text of a parsed document."""
    try:
        return to_text(document)
    # RecursionError: JSON may be nested as deeply as its sender likes
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(
            f"record {record_id} is not a valid document: {error}"
        ) from None


def retraction_of(entry: Any) -> Retraction:
    """Return the retraction of an entry of a list.

    Raises:
        InvalidRecordError: if it is not well formed, or is another one.
    """
    retraction_id, document = _parts(entry)
    try:
        retraction = from_json(Retraction, json.dumps(document))
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(
            f"a service sent an invalid retraction: {error}"
        ) from None
    if retraction.id != retraction_id:
        raise InvalidRecordError(
            f"the retraction {retraction_id} has the content id {retraction.id}; "
            "expected them to be equal"
        )
    return retraction


def valid_records(
    entries: Iterable[Any], workload: str | None = None
) -> list[TuningRecord]:
    """Return the records of a list of facts that match their ids, in order.

    Those of recorders that the service does not trust are marked.

    Damaged records, and records of other workloads, are skipped, which is logged once.
    """
    return _valid(entries, record_of, workload)


def valid_plans(
    entries: Iterable[Any], workload: str | None = None
) -> list[PlanRecord]:
    """Return the plans of a list that match their ids, in order."""
    return _valid(entries, _plan_of, workload)


def _plan_of(record_id: str, document: Any) -> PlanRecord:
    record = document_of("plan", record_id, _text(record_id, document))
    assert isinstance(record, PlanRecord)
    return record


def _valid(
    entries: Iterable[Any], read: Callable[[str, Any], F], workload: str | None
) -> list[F]:
    documents: list[F] = []
    problems = []
    for entry in entries:
        try:
            record = read(*_parts(entry))
            if workload not in (None, record.workload):
                raise InvalidRecordError(
                    f"record {record.id} belongs to another workload"
                )
        except InvalidRecordError as error:
            problems.append(str(error))
        else:
            is_trusted = entry.get("is_trusted") is not False  # older: no such field
            documents.append(record if is_trusted else untrusted(record))
    # One line for all: a hostile service could fill the log.
    if problems:
        first = "".join(c if c.isprintable() else "?" for c in problems[0][:500])
        logger.error(
            "skipped %d facts of a service; the first one: %s", len(problems), first
        )
    return documents


def peaks_of(document: Any, device_id: str) -> DevicePeaks:
    """Return the limits of a device in a document.

    Raises:
        InvalidRecordError: if they are not well formed, or of another device.
    """
    try:
        peaks = from_json(DevicePeaks, json.dumps(document))
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(
            f"a service sent invalid device limits: {error}"
        ) from None
    if peaks.device.id != device_id:
        raise InvalidRecordError(
            f"a service sent the limits of the device {peaks.device.id}, expected "
            f"those of {device_id}"
        )
    return peaks


def _parts(entry: Any) -> tuple[str, Any]:
    if not isinstance(entry, dict) or not is_content_id(entry.get("id")):
        raise InvalidRecordError(
            "an entry has no content id; expected 64 hexadecimal digits"
        )
    return entry["id"], entry.get("document")
