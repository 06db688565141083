"""Backups: whole, made while others write, and never over another file."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from feinsum.db import open_store
from feinsum.db.exchange.files import read_file
from feinsum.db.exchange.merging import back_up_store, compare, import_entries, merge
from feinsum.errors import StoreUnavailableError
from feinsum.records import InMemoryStore
from tests.db.factories import make_peaks, make_record, make_trial
from tests.db.writer import Writer


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # if JAX was imported
def test_a_file_is_copied_while_others_write(database, tmp_path):
    """The copy is whole, and has every fact that was acknowledged before it began."""
    with Writer(database, 0, 10_000) as writer:
        acknowledged = {writer.stdout.readline().strip() for _ in range(20)}
        with open_store(database, is_read_only=True) as store:
            copy = back_up_store(store, tmp_path / "copy.sqlite")
        writer.kill()
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    with open_store(copy) as restored:
        assert acknowledged <= set(restored.ids("record"))


def test_a_copy_can_take_the_place_of_the_database(filled_database, tmp_path):
    """By its name, or by merging it into a new one; nothing differs."""
    with open_store(filled_database) as store:
        store.add(make_trial())
        copy = back_up_store(store, tmp_path / "copy.sqlite")
        with open_store(copy) as restored, open_store(tmp_path / "new") as new:
            merge(new, restored)
            for other in (restored, new):
                assert all(found.is_empty for found in compare(store, other))
    assert list(tmp_path.glob("*.part")) == []


def test_a_server_is_written_as_lines(make_postgresql_store, tmp_path):
    """All documents; the suffix says what it is."""
    store = make_postgresql_store()
    store.add_all([make_record(0), make_record(1), make_peaks(), make_trial()])
    copy = back_up_store(store, tmp_path / "monday")
    assert copy == tmp_path / "monday.jsonl"
    restored = InMemoryStore()
    import_entries(restored, read_file(copy), pytest.fail)
    assert all(found.is_empty for found in compare(store, restored))


def test_no_file_is_overwritten(filled_database, tmp_path):
    """What exists stays, also the database itself."""
    other = tmp_path / "precious"
    other.write_text("precious")
    with open_store(filled_database) as store:
        for path in (other, filled_database):
            with pytest.raises(StoreUnavailableError, match=r"File exists.*new file"):
                back_up_store(store, path)
        assert len(store) == 3
    assert other.read_text() == "precious"
