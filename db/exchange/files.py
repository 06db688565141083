"""Files of documents: JSON Lines and Parquet.

The first line of JSON Lines is a header. Every other line is an envelope: the kind of a
document, its content id, and the document. Files may be concatenated, so headers may
repeat::

    {"format":"feinsum","kind":"header","version":1}
    {"document":{"document":"0f..","reason":"...",...},"id":"7c..","kind":"retraction"}
    {"document":{"workload":"fe2-...",...},"id":"a1..","kind":"record"}

A Parquet table has a row for every document, and columns for data frames. It needs
pyarrow (``pip install 'feinsum[parquet]'``), which only this module imports.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, make_dataclass
from functools import reduce
from itertools import count
from operator import or_
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NamedTuple, TypeAlias

from pydantic import Field, TypeAdapter

from feinsum.db.sql.rows import TABLES, make_columns, split_into_batches
from feinsum.errors import (
    FeinsumError,
    InvalidRecordError,
    SchemaVersionError,
    StoreUnavailableError,
)
from feinsum.extras import require_extra
from feinsum.records import KINDS, Document, get_kind, parse_json, to_json
from feinsum.records.document import STRICT, from_json, parse_instant
from feinsum.records.kinds import parse_document, parse_foreign_document

FORMAT_VERSION = 1

LINE_BYTES = 16 * 2**20
"""Maximum bytes of a line; a fact has at most 64 KiB.

Without a limit, a file of one endless line would fill the memory.
"""

ROWS = 5000
"""How many rows of a table are in memory at once, and in a row group."""

COLUMNS = {
    "kind": "string", "id": "string", "workload_key": "string",
    "workload_text": "string", "device_id": "string", "device_name": "string",
    "platform": "string", "microarchitecture": "string", "driver_version": "string",
    "transform_name": "string", "transform_version": "int32", "status": "string",
    "median_s": "float64", "speedup": "float64", "ratio": "float64",
    "recorded_at": "timestamp", "document": "string",
}  # fmt: skip
"""The columns of a table with their types; those that a kind lacks are null."""

READ = ("kind", "id", "document")

ContentId: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Header:
    """The first line."""

    __pydantic_config__ = STRICT

    kind: Literal["header"]
    format: Literal["feinsum"]
    version: int


@dataclass(frozen=True)
class Bad:
    """An invalid entry, and why it is invalid.

    Attributes:
        position: such as ``line 7``.
    """

    position: str
    problem: FeinsumError

    def __str__(self) -> str:
        return f"{self.position}: {self.problem}"


Entry: TypeAlias = tuple[str, Document] | Bad
"""A document with its position in a file, or an invalid entry."""


class Format(NamedTuple):
    """How documents are written to a stream, and read from it."""

    write: Callable[[Iterable[Document], BinaryIO], Counter[str]]
    read: Callable[[BinaryIO], Iterator[Entry]]


def write_file(documents: Iterable[Document], path: Path) -> Counter[str]:
    """Write documents to a file; returns their number by kind.

    An existing file is replaced once the new one is complete and on disk.

    Raises:
        StoreUnavailableError: if it cannot be written.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("xb") as stream:
            n_written = _format_of(path).write(documents, stream)
            stream.flush()
            # a rename may reach the disk before the content of the file
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StoreUnavailableError(
            f"{path} cannot be written: {error}; give another path"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    return n_written


def read_file(path: Path) -> Iterator[Entry]:
    """Yield the documents of a file, each checked.

    Raises:
        StoreUnavailableError: if it cannot be read.
        InvalidRecordError, SchemaVersionError: if it is not a file of documents.
    """
    try:
        with path.open("rb") as stream:
            yield from _format_of(path).read(stream)
    except OSError as error:
        raise StoreUnavailableError(
            f"{path} cannot be read: {error}; give the path of a file that 'feinsum "
            "db export' wrote"
        ) from None


# JSON Lines


def make_line_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a line.

    >>> sorted(make_line_schema()["discriminator"]["mapping"])
    ['header', 'peaks', 'plan', 'record', 'retraction', 'trial']
    """
    body = {"__pydantic_config__": STRICT}
    envelopes = [
        make_dataclass(
            f"{name.title()}Line",
            [("kind", Literal[name]), ("id", ContentId), ("document", kind.cls)],
            namespace=body | {"__doc__": kind.summary},
            frozen=True,
        )
        for name, kind in KINDS.items()
    ]
    any_line: Any = reduce(or_, envelopes, Header)
    line: Any = Annotated[any_line, Field(discriminator="kind")]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a database of feinsum, format version {FORMAT_VERSION}",
        **TypeAdapter[Any](line).json_schema(),
    }


def write_lines(documents: Iterable[Document], stream: BinaryIO) -> Counter[str]:
    """Write a header and a line for every document; returns counts by kind."""
    header = Header("header", "feinsum", FORMAT_VERSION)
    stream.write(to_json(header).encode() + b"\n")
    n_written: Counter[str] = Counter()
    for document in documents:
        kind = get_kind(document)
        # the canonical text of an envelope, without parsing the document again
        line = {"document": to_json(document), "id": f'"{document.id}"'}
        text = ",".join(f'"{name}":{value}' for name, value in line.items())
        stream.write(f'{{{text},"kind":"{kind}"}}\n'.encode())
        n_written[kind] += 1
    return n_written


def read_lines(stream: BinaryIO) -> Iterator[Entry]:
    """Yield the documents of a stream, each checked; only one line is in memory.

    Raises:
        InvalidRecordError: if the first line is not a header.
        SchemaVersionError: if it is a header of a newer format.
    """
    # A file without a header is not ours: none of its lines is imported.
    has_header = False
    for number, text in _split_lines(stream):
        position = f"line {number}"
        try:
            line = _parse_line(text)
            if not has_header and not isinstance(line, Header):
                raise InvalidRecordError(f"a {get_kind(line)} was given")
        except InvalidRecordError as error:
            if not has_header:
                raise InvalidRecordError(
                    f"{position}: expected the header of a file that 'feinsum db "
                    f"export' wrote: {error}"
                ) from None
            yield Bad(position, error)
            continue
        if not isinstance(line, Header):
            yield position, line
            continue
        has_header = True
        if line.version != FORMAT_VERSION:
            raise SchemaVersionError(
                f"{position}: the file has the format version {line.version}, but this "
                f"installation of feinsum knows {FORMAT_VERSION}: install a newer "
                "feinsum"
            )


def _split_lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines that are not blank, with their numbers; None for one too long."""
    for number in count(1):
        line = stream.readline(LINE_BYTES + 1)
        if not line:
            return
        if len(line) <= LINE_BYTES:
            if line.strip():
                yield number, line
            continue
        # skip the rest of a line that is too long, in pieces
        while line and not line.endswith(b"\n"):
            line = stream.readline(LINE_BYTES)
        yield number, None


def _parse_line(text: bytes | None) -> Header | Document:
    if text is None:
        raise InvalidRecordError(
            f"the line is longer than {LINE_BYTES} bytes, expected one document"
        )
    data = parse_json(text)
    fields = data if isinstance(data, dict) else {}
    kind = fields.get("kind")
    if kind == "header":
        return from_json(Header, text)
    if kind not in KINDS or fields.keys() != {"kind", "id", "document"}:
        raise InvalidRecordError(
            f"a line with {', '.join(map(repr, fields))[:200] or 'no fields'} was "
            f"given; expected a kind, an id and a document; kinds: {', '.join(KINDS)}"
        )
    return parse_foreign_document(kind, fields["id"], fields["document"])


# Parquet


def write_parquet(documents: Iterable[Document], stream: BinaryIO) -> Counter[str]:
    """Write a table with a row for every document; returns counts by kind.

    Raises:
        FeinsumError: if pyarrow is not installed.
    """
    arrow = _import_arrow()
    types = {"timestamp": arrow.timestamp("us", tz="UTC")}
    fields = [
        arrow.field(
            name, types.get(kind) or getattr(arrow, kind)(), nullable=name not in READ
        )
        for name, kind in COLUMNS.items()
    ]
    schema = arrow.schema(fields)
    n_written: Counter[str] = Counter()
    with arrow.parquet.ParquetWriter(stream, schema, compression="zstd") as writer:
        for batch in split_into_batches(documents, ROWS):
            rows = [_make_row(document) for document in batch]
            writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
            n_written.update(row["kind"] for row in rows)
    return n_written


def read_parquet(stream: BinaryIO) -> Iterator[Entry]:
    """Yield the documents of a table, each checked; other columns are ignored.

    Raises:
        InvalidRecordError: if :func:`write_parquet` did not write the table.
        FeinsumError: if pyarrow is not installed.
    """
    arrow = _import_arrow()
    try:
        with arrow.parquet.ParquetFile(stream) as table:
            numbers = count(1)
            for batch in table.iter_batches(ROWS, columns=list(READ)):
                for row in batch.to_pylist():
                    yield _parse_entry(next(numbers), *(row[name] for name in READ))
    except (arrow.ArrowException, KeyError) as error:
        raise InvalidRecordError(
            f"it is not a Parquet table that 'feinsum db export' wrote: {error}"
        ) from None


def _parse_entry(number: int, kind: Any, document_id: Any, text: Any) -> Entry:
    try:
        if kind not in KINDS:
            raise InvalidRecordError(
                f"a row of the kind {kind!r} was given, expected one of "
                f"{', '.join(KINDS)}"
            )
        return f"row {number}", parse_document(kind, document_id, text)
    except InvalidRecordError as error:
        return Bad(f"row {number}", error)


def _make_row(document: Document) -> dict[str, Any]:
    name = get_kind(document)
    kind = KINDS[name]
    columns = make_columns(TABLES[name], document) if name in TABLES else {}
    row = columns | {
        "kind": name,
        "id": document.id,
        "document": to_json(document),
        "recorded_at": parse_instant(getattr(document, kind.time)),
        "workload_text": getattr(document, "workload_text", None),
    }
    if environment := getattr(document, "environment", None):
        row["driver_version"] = environment.driver_version
    if device := kind.device(document):
        names = ("platform", "microarchitecture")
        row |= {name: getattr(device, name) for name in names}
        row["device_name"] = device.name
    return row


def _import_arrow() -> Any:
    with require_extra("pyarrow", "parquet", "Parquet"):
        import pyarrow
        import pyarrow.parquet
    return pyarrow


FORMATS = {".parquet": Format(write_parquet, read_parquet)}
"""Formats by the suffix of the file; without one of these it has JSON Lines."""


def _format_of(path: Path) -> Format:
    return FORMATS.get(path.suffix, Format(write_lines, read_lines))
