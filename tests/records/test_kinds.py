"""A kind of documents is one entry of a table."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from functools import cached_property

import pytest

from feinsum.db.exchange import files, merging
from feinsum.db.sql.rows import TABLES
from feinsum.records import KINDS, InMemoryStore, Kind, get_kind, judge
from feinsum.records.document import STRICT, compute_content_id


@dataclass(frozen=True)
class Note:
    """What somebody wrote down."""

    __pydantic_config__ = STRICT

    text: str
    written_at: str

    @cached_property
    def id(self) -> str:
        return compute_content_id(self)


NOTE = Note("the machine was warm", "2026-01-01T00:00:00+00:00")


@pytest.fixture
def notes(monkeypatch):
    """A kind that is nothing but an entry."""
    kind = Kind(Note, "A note.", "written_at", lambda _note: None)
    monkeypatch.setitem(KINDS, "note", kind)


def test_every_table_by_kind_has_every_kind():
    """Whoever adds a kind is told where else it needs an entry."""
    for table in (TABLES, merging.ORDER):
        assert set(table) == set(KINDS)


def test_every_kind_says_what_is_asked_of_it():
    """Its time is a field, as is its recipe if it has one."""
    for kind in KINDS.values():
        assert kind.has_recipe == ("spec" in kind.cls.__annotations__)
        assert kind.time in kind.cls.__annotations__


def test_a_new_kind_is_kept_written_read_and_judged(notes):
    """With one entry, and without a line of code."""
    store = InMemoryStore()
    assert get_kind(NOTE) == "note"
    assert [store.add_all([NOTE]), store.add_all([NOTE])] == [1, 0]
    assert list(store.documents("note")) == [NOTE]
    assert list(store.ids("note")) == [NOTE.id]
    text = io.BytesIO()
    assert files.write_lines([NOTE], text) == {"note": 1}
    text.seek(0)
    assert list(files.read_lines(text)) == [("line 2", NOTE)]
    assert "note" in files.make_line_schema()["discriminator"]["mapping"]
    assert judge(NOTE) == ()
    late = replace(NOTE, written_at="9999-01-01T00:00:00+00:00")
    assert [finding.code for finding in judge(late)] == ["future"]


def test_a_new_kind_goes_through_parquet(notes):
    """Columns of recipes and devices are empty."""
    pytest.importorskip("pyarrow")
    stream = io.BytesIO()
    files.write_parquet([NOTE], stream)
    stream.seek(0)
    assert list(files.read_parquet(stream)) == [("row 1", NOTE)]
