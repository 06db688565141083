"""JSON Lines: what is written reads back, and nothing else is taken."""

from __future__ import annotations

import io
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from feinsum.db.exchange import files
from feinsum.db.exchange.files import Bad, make_line_schema, read_lines, write_lines
from feinsum.errors import InvalidRecordError, SchemaVersionError
from feinsum.records import Document, get_kind, to_json
from feinsum.records.document import digest_of, format_canonical
from tests.db.factories import make_peaks, make_record, make_trial, tuning_records
from tests.db.golden_schema import GOLDEN, schema_text
from tests.strategies import counts

HEADER = b'{"format":"feinsum","kind":"header","version":1}\n'
VALIDATOR = Draft202012Validator(make_line_schema())
documents = st.lists(
    tuning_records()
    | st.builds(make_trial, st.integers(0, 5), second=st.integers(0, 59))
    | st.just(make_peaks()),
    max_size=6,
)


def written(*given_documents: Document) -> bytes:
    stream = io.BytesIO()
    write_lines(given_documents, stream)
    return stream.getvalue()


def read(text: bytes) -> list[Any]:
    """The documents in a text, and what is wrong with the other lines."""
    return [
        entry.problem if isinstance(entry, Bad) else entry[1]
        for entry in read_lines(io.BytesIO(text))
    ]


def line_with(**changes: object) -> bytes:
    """The line of a fact with some fields of its envelope changed."""
    (line,) = written(make_record()).splitlines()[1:]
    return json.dumps(json.loads(line) | changes).encode() + b"\n"


@counts(25, 500)
@given(documents)
def test_what_is_written_reads_back(given_documents):
    """Every document of every kind, in order; the counts are right."""
    stream = io.BytesIO()
    n_written = write_lines(given_documents, stream)
    assert read(stream.getvalue()) == given_documents
    for kind, n in n_written.items():
        assert n == sum(get_kind(document) == kind for document in given_documents)


@counts(20, 500)
@given(documents, documents)
def test_files_can_be_joined(one, two):
    """A header may come again, and lines may be blank."""
    assert read(written(*one) + b"\n\n" + written(*two)) == one + two


def test_the_schema_is_that_of_the_dataclasses():
    """If a dataclass was changed: ``make golden-schema``, and a changelog line."""
    assert GOLDEN.read_text() == schema_text()


@counts(20, 500)
@given(documents)
def test_every_line_is_valid_under_the_schema(given_documents):
    """Another program can rely on the schema."""
    lines = map(json.loads, written(*given_documents).splitlines())
    assert [problem for line in lines for problem in VALIDATOR.iter_errors(line)] == []


def test_what_the_schema_refuses_is_refused():
    """Wrong types, unknown kinds and unknown fields, each named."""
    for changes, reason in (
        ({"kind": "record", "more": 1}, "more"),
        ({"kind": "pickle"}, "kind"),
        ({"id": 3}, "content id"),
        ({"id": "../../etc/passwd"}, "content id"),
        ({"document": None}, "content id"),
        ({"document": json.loads(to_json(make_peaks()))}, "content id"),
    ):
        line = line_with(**changes)
        assert not VALIDATOR.is_valid(json.loads(line))
        (problem,) = read(HEADER + line)
        assert isinstance(problem, InvalidRecordError)
        assert reason in str(problem)


def replaced(old: str, new: str) -> bytes:
    (_, line) = written(make_record()).decode().splitlines()
    assert old in line
    return line.replace(old, new).encode() + b"\n"


def renamed(old: str, new: str) -> bytes:
    """The same under the id of the changed text."""
    line = json.loads(replaced(old, new))
    line["id"] = digest_of(format_canonical(line["document"]))
    return json.dumps(line).encode() + b"\n"


HOSTILE = (
    (replaced('"n":0', '"n":1'), "content id"),
    (renamed('"n_warmup":1', '"n_warmup":true'), "n_warmup"),
    (renamed('"n_warmup":1', '"n_warmup":' + "9" * 20), "n_warmup"),
    (replaced('"n_warmup":1', '"n_warmup":' + "9" * 10_000), "JSON"),
    (replaced("0.001,", "NaN,"), "JSON"),
    (replaced("0.001,", "1e999,"), "JSON"),
    (renamed("0.001,", "-1.0,"), "samples_s"),
    (renamed('"driver_version"', '"a":"/bin/sh","driver_version"'), "environment.a"),
    (renamed('"lanes":8', '"lanes":{"a":8}'), "lanes"),
    (pickle.dumps(make_peaks()).replace(b"\n", b" ") + b"\n", "JSON"),
    (b"[" * 100_000 + b"\n", "JSON"),
    (b'"\xff\xfe"\n', "JSON|line"),
    (b'{"kind":"record"\n', "JSON"),
    (b"\x00\x00\n", "JSON"),
)


def test_a_hostile_line_is_refused():
    """It is named by its number, with the reason; the lines around it are read."""
    lines = [line + written(make_trial(n))[49:] for n, (line, _) in enumerate(HOSTILE)]
    entries = [*read_lines(io.BytesIO(HEADER + b"".join(lines)))]
    for n, (bad, (_, reason)) in enumerate(zip(entries[::2], HOSTILE, strict=True)):
        assert isinstance(bad, Bad)
        assert bad.position == f"line {2 + 2 * n}"
        assert any(word in str(bad) for word in reason.split("|")), str(bad)
        assert len(str(bad)) < 2000
    assert entries[1::2] == [
        (f"line {3 + 2 * n}", make_trial(n)) for n in range(len(HOSTILE))
    ]


class Endless(io.RawIOBase):
    """A stream of one line without an end, which notes how much was asked for."""

    largest = left = 0

    def __init__(self, n_bytes: int) -> None:
        self.left = n_bytes

    def readline(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        assert size > 0
        self.largest = max(self.largest, size)
        n = min(size, self.left)
        self.left -= n
        return b"x" * n


def test_a_line_of_100_megabytes_is_not_read_into_memory():
    """It is refused after a bounded number of bytes, and passed over in pieces."""
    stream: Any = Endless(100 * 2**20)
    with pytest.raises(InvalidRecordError, match=r"line 1.*longer than"):
        list(read_lines(stream))
    assert stream.largest == files.LINE_BYTES + 1
    assert stream.left == 0


def test_a_long_line_is_passed_over(monkeypatch):
    """The line after it is read."""
    monkeypatch.setattr(files, "LINE_BYTES", 3000)
    problem, document = read(
        HEADER + b"x" * 10_000 + b"\n" + written(make_record())[49:]
    )
    assert "longer than 3000 bytes" in str(problem)
    assert document == make_record()


def test_a_file_without_a_header_is_refused():
    """Whatever else it is, it was not written by an export; nor is one of a newer
    format read wrongly. An empty file holds nothing.
    """
    assert read(b"") == []
    for text in (written(make_record())[49:], b"PAR1", b"\x80\x04"):
        with pytest.raises(InvalidRecordError, match=r"line 1: .*expected the header"):
            read(text)
    with pytest.raises(SchemaVersionError, match=r"version 2.*install a newer"):
        read(HEADER.replace(b"1", b"2") + written(make_record()))
