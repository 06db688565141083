"""Parquet: a database as one flat table, with the documents, for data frames.

It needs pyarrow (``pip install 'feinsum[parquet]'``), which is imported here alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from feinsum.db.exchange.lines import Bad, Entry
from feinsum.db.exchange.merging import batches
from feinsum.db.sql.rows import document_of
from feinsum.errors import InvalidRecordError
from feinsum.extras import requiring
from feinsum.records import (
    KINDS,
    Device,
    Document,
    PlanRecord,
    Trial,
    kind_of,
    to_json,
)
from feinsum.records.plausibility import instant

if TYPE_CHECKING:
    import pyarrow

ROWS = 5000
"""How many rows are in memory at once, and in a row group."""

READ = ("kind", "id", "document")


def write_parquet(documents: Iterable[Document], stream: BinaryIO) -> Counter[str]:
    """Write a table with a row for every document; returns counts by kind.

    Columns that a kind lacks are null. Times are in UTC.

    Raises:
        FeinsumError: if pyarrow is not installed.
    """
    arrow = _arrow()
    schema = _schema(arrow)
    n_written: Counter[str] = Counter()
    with arrow.parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
        for batch in batches(documents, ROWS):
            rows = [_row(document) for document in batch]
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
            n_written.update(row["kind"] for row in rows)
    return n_written


def read_parquet(stream: BinaryIO) -> Iterator[Entry]:
    """Yield the documents of a table, each checked; other columns are ignored.

    Raises:
        InvalidRecordError: if :func:`write_parquet` did not write the table.
        FeinsumError: if pyarrow is not installed.
    """
    arrow = _arrow()
    try:
        with arrow.parquet.ParquetFile(stream) as table:
            number = 0
            # Other columns repeat parts of the document for data frames.
            for batch in table.iter_batches(ROWS, columns=list(READ)):
                for row in batch.to_pylist():
                    number += 1
                    yield _entry(f"row {number}", *(row[name] for name in READ))
    except (arrow.ArrowException, KeyError) as error:
        raise InvalidRecordError(
            f"it is not a Parquet table that 'feinsum db export' wrote: {error}"
        ) from None


def _entry(position: str, kind: Any, document_id: Any, text: Any) -> Entry:
    try:
        if kind not in KINDS or not (
            isinstance(text, str) and isinstance(document_id, str)
        ):
            raise InvalidRecordError(
                f"a row of the kind {kind!r} was given, expected one of "
                f"{', '.join(KINDS)} with an id and a document as text"
            )
        return position, document_of(kind, document_id, text)
    except InvalidRecordError as error:
        return Bad(position, error)


def _row(document: Document) -> dict[str, Any]:
    common: dict[str, Any] = {
        "kind": kind_of(document),
        "id": document.id,
        "document": to_json(document),
    }
    kind = KINDS[kind_of(document)]
    common["recorded_at"] = instant(getattr(document, kind.time))
    if kind.has_recipe:
        common |= _row_of_recipe(document)
    if isinstance(document, PlanRecord):
        common |= {"workload_key": document.workload, "median_s": document.median_s}
    device = kind.device(document)
    return common if device is None else common | _row_of_device(device)


def _row_of_device(device: Device) -> dict[str, Any]:
    return {
        "device_id": device.id,
        "device_name": device.name,
        "platform": device.platform,
        "microarchitecture": device.microarchitecture,
    }


def _row_of_recipe(document: Any) -> dict[str, Any]:
    """Columns common to facts and trials, and those of one of them."""
    common = {
        "workload_key": document.workload,
        "workload_text": document.workload_text,
        "driver_version": document.environment.driver_version,
        "transform_name": document.spec.name,
        "transform_version": document.spec.version,
    }
    if isinstance(document, Trial):
        times = {"status": document.status, "median_s": document.median_s}
        return common | times | {"ratio": document.ratio}
    measured = document.measurement
    return common | {"median_s": measured.median_s, "speedup": measured.speedup}


def _schema(arrow: Any) -> pyarrow.Schema:
    text, real = arrow.string(), arrow.float64()
    return arrow.schema(
        [
            arrow.field("kind", text, nullable=False),
            arrow.field("id", text, nullable=False),
            ("workload_key", text),
            ("workload_text", text),
            ("device_id", text),
            ("device_name", text),
            ("platform", text),
            ("microarchitecture", text),
            ("driver_version", text),
            ("transform_name", text),
            ("transform_version", arrow.int32()),
            ("status", text),
            ("median_s", real),
            ("speedup", real),
            ("ratio", real),
            ("recorded_at", arrow.timestamp("us", tz="UTC")),
            arrow.field("document", text, nullable=False),
        ]
    )


def _arrow() -> Any:
    with requiring("pyarrow", "parquet", "Parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow
