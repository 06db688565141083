"""JSON Lines: a database as text, one document a line, and its schema.

The first line is a header. Every other line is an envelope: the kind of a document, its
content id, and the document. Files may be concatenated, so headers may repeat::

    {"format":"feinsum","kind":"header","version":1}
    {"document":{"document":"0f..","reason":"...",...},"id":"7c..","kind":"retraction"}
    {"document":{"workload":"fe2-...",...},"id":"a1..","kind":"record"}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, make_dataclass
from functools import reduce
from itertools import count
from operator import or_
from typing import Annotated, Any, BinaryIO, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from feinsum.errors import FeinsumError, InvalidRecordError, SchemaVersionError
from feinsum.records import (
    KINDS,
    Document,
    DocumentKind,
    Kind,
    check_unique_names,
    from_json,
    kind_of,
    to_json,
)
from feinsum.records.document import STRICT

FORMAT_VERSION = 1

LINE_BYTES = 16 * 2**20
"""Maximum bytes of a line; a fact has at most 64 KiB.

Without a limit, a file of one endless line would fill the memory.
"""

ContentId: TypeAlias = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Header:
    """The first line."""

    __pydantic_config__ = STRICT

    kind: Literal["header"]
    format: Literal["feinsum"]
    version: int


def _line_class(name: DocumentKind, kind: Kind) -> type[Any]:
    """Make the envelope of a kind of documents."""
    fields = [("kind", Literal[name]), ("id", ContentId), ("document", kind.cls)]
    body = {"__pydantic_config__": STRICT, "__doc__": kind.summary}
    return make_dataclass(f"{name.title()}Line", fields, namespace=body, frozen=True)


def _line_type() -> Any:
    """Make the type of a line: the header, or the envelope of a kind."""
    classes = (_line_class(name, kind) for name, kind in KINDS.items())
    return Annotated[reduce(or_, classes, Header), Field(discriminator="kind")]


_LINE = _line_type()


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


def line_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a line.

    >>> sorted(line_schema()["discriminator"]["mapping"])
    ['header', 'peaks', 'plan', 'record', 'retraction', 'trial']
    """
    schema = TypeAdapter[Any](_LINE).json_schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"A line of a database of feinsum, format version {FORMAT_VERSION}",
        **schema,
    }


def write_lines(documents: Iterable[Document], stream: BinaryIO) -> Counter[str]:
    """Write a header and a line for every document; returns counts by kind."""
    header = Header("header", "feinsum", FORMAT_VERSION)
    stream.write(to_json(header).encode() + b"\n")
    n_written: Counter[str] = Counter()
    for document in documents:
        kind = kind_of(document)
        # as to_json writes a line, names in order, without parsing the document again
        line = {"document": to_json(document), "id": f'"{document.id}"'}
        text = ",".join(f'"{name}":{value}' for name, value in line.items())
        stream.write(f'{{{text},"kind":"{kind}"}}\n'.encode())
        n_written[kind] += 1
    return n_written


def read_lines(stream: BinaryIO) -> Iterator[Entry]:
    """Yield the documents of a stream, each checked; one line is in memory.

    Raises:
        InvalidRecordError: if the first line is not a header.
        SchemaVersionError: if it is a header of a newer format.
    """
    # Anything without a header is another file, of which no line is imported.
    has_header = False
    for number, text in _lines(stream):
        position = f"line {number}"
        try:
            line = _parsed(text)
        except InvalidRecordError as error:
            if not has_header:
                raise InvalidRecordError(
                    f"{position}: expected the header of a file that 'feinsum db "
                    f"export' wrote: {error}"
                ) from None
            yield Bad(position, error)
            continue
        if isinstance(line, Header):
            _check_version(position, line)
            has_header = True
        elif not has_header:
            raise InvalidRecordError(
                f"{position}: a {line.kind} was given, expected the header of a file "
                "that 'feinsum db export' wrote"
            )
        else:
            yield position, line.document


def checked(kind: DocumentKind, document_id: str, document: Document) -> Document:
    """Return a document after checking its id.

    Raises:
        InvalidRecordError: if the id does not match.
    """
    if document.id != document_id:
        raise InvalidRecordError(
            f"the {kind} {document_id} has the content id {document.id}; expected them "
            "to be equal; the document was changed"
        )
    return document


def _lines(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
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


def _parsed(text: bytes | None) -> Any:
    """Parse the header, or an envelope."""
    if text is None:
        raise InvalidRecordError(
            f"the line is longer than {LINE_BYTES} bytes, expected one document"
        )
    check_unique_names(text)
    line = from_json(_LINE, text, "line")
    if not isinstance(line, Header):
        checked(line.kind, line.id, line.document)
    return line


def _check_version(position: str, header: Header) -> None:
    if header.version != FORMAT_VERSION:
        raise SchemaVersionError(
            f"{position}: the file has the format version {header.version}, but this "
            f"installation of feinsum knows {FORMAT_VERSION}: install a newer feinsum"
        )
