"""Documents from a service, checked like the rows of a database.

A service sends entries, of which only those whose content id is right are used::

    {"id": "7c..", "is_trusted": false, "document": {"workload": ...}}
       -> canonical text of the document -> SHA-256 == "7c.."? -> parsed, marked
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any, cast

from feinsum.db.sql.rows import document_of
from feinsum.errors import InvalidRecordError
from feinsum.records import (
    DevicePeaks,
    Document,
    DocumentKind,
    PlanRecord,
    TuningRecord,
    from_json,
    untrusted,
)
from feinsum.records.document import to_text

logger = logging.getLogger(__name__)

_DIGITS = frozenset("0123456789abcdef")


def is_content_id(text: object) -> bool:
    """Whether a text can be the id of a document."""
    return isinstance(text, str) and len(text) == 64 and _DIGITS.issuperset(text)


def parse_document(kind: DocumentKind, document_id: str, data: Any) -> Document:
    """Return the document of JSON data, after checking its id.

    Raises:
        InvalidRecordError: if it is not well formed, or is another one.
    """
    try:
        text = to_text(data)
    # RecursionError: JSON may be nested as deeply as its sender likes
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(
            f"{kind} {document_id} is not a valid document: {error}"
        ) from None
    return document_of(kind, document_id, text)


def parse_record(record_id: str, data: Any) -> TuningRecord:
    """Return the record of JSON data; see :func:`parse_document`."""
    return cast(TuningRecord, parse_document("record", record_id, data))


def parse_entry(kind: DocumentKind, entry: Any) -> Document:
    """Return the document of an entry of a list; see :func:`parse_document`."""
    if not isinstance(entry, dict) or not is_content_id(entry.get("id")):
        raise InvalidRecordError(
            "an entry has no content id; expected 64 hexadecimal digits"
        )
    document = parse_document(kind, entry["id"], entry.get("document"))
    # an older service does not say whether it trusts the sender
    return untrusted(document) if entry.get("is_trusted") is False else document


def valid_records(
    entries: Iterable[Any], workload: str | None = None
) -> list[TuningRecord]:
    """Return the valid records of a list; see :func:`_valid`."""
    return cast(list[TuningRecord], _valid("record", entries, workload))


def valid_plans(
    entries: Iterable[Any], workload: str | None = None
) -> list[PlanRecord]:
    """Return the valid plans of a list; see :func:`_valid`."""
    return cast(list[PlanRecord], _valid("plan", entries, workload))


def _valid(
    kind: DocumentKind, entries: Iterable[Any], workload: str | None
) -> list[Document]:
    """Return the documents of a list that match their ids, in order.

    Those of recorders that the service does not trust are marked. Damaged documents,
    and those of other workloads, are skipped, which is logged once.
    """
    documents: list[Document] = []
    problems = []
    for entry in entries:
        try:
            document = parse_entry(kind, entry)
            if workload not in (None, getattr(document, "workload", None)):
                raise InvalidRecordError(
                    f"record {document.id} belongs to another workload"
                )
        except InvalidRecordError as error:
            problems.append(str(error))
        else:
            documents.append(document)
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
