"""Databases that cannot be used: one clear error, and nothing is changed."""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from feinsum.db import open_store
from feinsum.db.exchange.merging import back_up_store
from feinsum.errors import StoreUnavailableError
from feinsum.words import describe_type
from tests.db.conftest import locked_by_another_process, unprivileged
from tests.db.factories import WORKLOAD, make_record

SHORT_S = 0.2


def make_foreign(database: Path, *statements: str) -> None:
    """A database of another program."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
        connection.execute("INSERT INTO songs VALUES ('la la la')")
        for statement in statements:
            connection.execute(statement)


def assert_refused(location: object, message: str, **options: object) -> None:
    """Opening raises StoreUnavailableError, and no error of a library behind it."""
    with pytest.raises(StoreUnavailableError, match=message) as caught:
        open_store(location, **options)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_garbage_is_refused(database):
    """A file that is no SQLite database is refused and left as it is: shorter than a
    header, longer, or with a header alone.
    """
    for content, message in (
        (b"garbage", "is not an SQLite database; expected"),
        (b"garbage" * 99, "is not an SQLite database; expected"),
        (b"garbage" * 5000, "is not an SQLite database; expected"),
        (b"SQLite format 3\x00" + b"\xff" * 9000, str(database)),
    ):
        database.write_bytes(content)
        assert_refused(database, message)
        assert database.read_bytes() == content
        assert list(database.parent.iterdir()) == [database]


def test_empty_file_is_refused(database):
    """A file of no bytes is no database, and stays as it is."""
    database.touch()
    assert_refused(database, "empty file; expected a database of feinsum: remove it")
    assert database.read_bytes() == b""
    assert list(database.parent.iterdir()) == [database]
    database.unlink()
    with open_store(database) as store:
        assert store.add(make_record())


def test_truncated_file_is_refused(filled_database):
    """A database of which a part is missing is refused and left as it is."""
    whole = filled_database.read_bytes()
    for part in (0.0005, 0.01, 0.5, 0.99):
        half = whole[: int(len(whole) * part)]
        filled_database.write_bytes(half)
        assert_refused(filled_database, "truncated.*restore")
        assert filled_database.read_bytes() == half


def test_damage_within_is_reported(filled_database):
    """Pages overwritten by garbage raise StoreUnavailableError when they are read."""
    content = bytearray(filled_database.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    filled_database.write_bytes(content)
    with (
        pytest.raises(StoreUnavailableError, match=r"damaged.*restore"),
        open_store(filled_database) as store,
    ):
        store.query(WORKLOAD)


def test_foreign_database_is_refused(database):
    """A database of another program, also one that Alembic migrates, is refused and
    never changed.
    """
    for extra in ((), ("CREATE TABLE alembic_version (version_num TEXT)",)):
        database.unlink(missing_ok=True)
        make_foreign(database, *extra)
        before = database.read_bytes()
        assert_refused(database, "belongs to another program.*of its own")
        assert database.read_bytes() == before
        assert list(database.parent.iterdir()) == [database]


def test_foreign_database_in_use_is_refused(database):
    """So is one whose tables are in a log that is not yet in the file."""
    with closing(sqlite3.connect(database)) as owner:
        owner.execute("PRAGMA journal_mode=WAL")
        make_foreign(database)
        before = database.read_bytes()
        assert_refused(database, "belongs to another program")
        assert database.read_bytes() == before
        assert owner.execute("SELECT * FROM songs").fetchall() == [("la la la",)]


def test_folder_and_file_are_not_confused(tmp_path):
    """A folder is not a database, and a file cannot be used as a folder."""
    assert_refused(tmp_path, "is a folder, expected a database file.*facts.sqlite")
    (tmp_path / "file").touch()
    for inner in ("facts.sqlite", "sub/facts.sqlite"):
        assert_refused(tmp_path / "file" / inner, "cannot create a database")


WRONG_LOCATIONS = (
    ("https://facts.example", "the URL of a service was given"),
    ("sqlite://", "in memory"),
    ("sqlite:///:memory:", "in memory"),
    (":memory:", "in memory"),
    ("mysql://user:secret@host/facts", "'mysql' are not supported"),
    ("postgresql://user:secret@host:port/facts", "not well formed"),
    ("nonsense://", "not (well formed|supported)"),
    ("postgresql+nonsense://user:secret@host/facts", "not supported"),
    ("bad\0name", "null byte; give another path"),
    ("sqlite:///bad\0name", "null byte; give another path"),
    ("x" * 5000, "as the path of a database.*too long"),
    ("sqlite:///" + "x" * 5000, "as the path of a database.*too long"),
    ("x" * 300 + "/facts.sqlite", "too long"),
    ("file:facts.sqlite", "a path.*SQLAlchemy"),
    ("file:///facts.sqlite?mode=ro", "a path.*SQLAlchemy"),
    ("FILE:facts.sqlite", "a path.*SQLAlchemy"),
    (3, "does not locate"),
    (b"facts.sqlite", "does not locate"),
    (["a"], "does not locate"),
    (object(), "does not locate"),
)


def test_wrong_locations_are_explained():
    """A location that cannot be meant is refused, and no password is shown; what is
    neither a text nor a path names its type.
    """
    for location, message in WRONG_LOCATIONS:
        if not isinstance(location, str):
            message = f"{describe_type(location)} {message}"
        with pytest.raises(StoreUnavailableError, match=message) as caught:
            open_store(location)
        assert "secret" not in str(caught.value)


@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused(tmp_path):
    """A pipe, a socket, a device, or a link to one is refused without waiting."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    with closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(str(tmp_path / "socket"))
        for path in (*sorted(tmp_path.iterdir()), Path("/dev/null")):
            for is_read_only in (False, True):
                assert_refused(
                    path, "expected a database file", is_read_only=is_read_only
                )


def test_unreachable_server_is_explained():
    """A server that does not answer, or whose driver is missing, is reported."""
    for url in (
        "postgresql://user:secret@127.0.0.1:1/facts",
        "postgresql://user@127.0.0.1:1/facts?password=secret",
    ):
        with pytest.raises(StoreUnavailableError) as caught:
            open_store(url)
        assert re.search(r"psycopg|127\.0\.0\.1", str(caught.value))
        assert "secret" not in str(caught.value)


def test_new_database_locked_by_another(database):
    """Opening waits for the busy timeout, then says that the database is locked."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM")  # a header, no table, the older journal
    with locked_by_another_process(database):
        assert_refused(database, "locked.*0.2 s.*wait", busy_timeout_s=SHORT_S)
    with open_store(database) as store:
        assert store.add(make_record())


def test_locked_by_another(filled_database):
    """While another process writes, facts are read; adding waits, then raises."""
    with open_store(filled_database, busy_timeout_s=SHORT_S) as store:
        with locked_by_another_process(filled_database):
            assert len(store.query(WORKLOAD)) == 3
            with pytest.raises(StoreUnavailableError, match="is locked"):
                store.add(make_record(9))
        assert store.add(make_record(9))


@pytest.mark.parametrize("form", ["{}", "sqlite:///{}?mode=ro"])
def test_read_only_by_wish(filled_database, form):
    """A database opened for reading reads fine, and says what to do to write."""
    location = form.format(filled_database)
    with open_store(location, is_read_only="mode" not in form) as store:
        assert len(store.query(WORKLOAD)) == len(store) == 3
        assert store.stats().is_read_only
        with pytest.raises(StoreUnavailableError, match=r"read-only.*permission"):
            store.add(make_record(9))


def test_reading_follows_writing(filled_database):
    """A store opened for reading sees facts that another one adds later."""
    with open_store(filled_database, is_read_only=True) as reader:
        with open_store(filled_database) as store:
            store.add(make_record(9))
            assert len(reader) == 4
        assert len(reader) == 4


def test_reading_waits_for_a_writer(filled_database):
    """With the older journal, a reader waits, and never reads a half-written file."""
    with closing(sqlite3.connect(filled_database)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    options = {"is_read_only": True, "busy_timeout_s": SHORT_S}
    with locked_by_another_process(filled_database):
        assert_refused(filled_database, "is locked", **options)
    with open_store(filled_database, **options) as store:
        assert len(store) == 3


def test_nothing_to_read(database):
    """A database that is to be read only must be there, and must not be empty."""
    assert_refused(database, "there is no database", is_read_only=True)
    assert not database.exists()
    database.touch()
    assert_refused(database, "is an empty file", is_read_only=True)


def test_permissions_are_missing(public_folder):
    """A database in a folder that cannot be written is read and copied; a new one is
    refused, as is one that may not be read.
    """
    database = public_folder / "facts.sqlite"
    with open_store(database) as store:
        store.add(make_record())
    public_folder.chmod(0o555)
    with unprivileged():
        with open_store(database) as store:
            assert store.stats().is_read_only
            assert store.get(make_record().id) == make_record()
            with pytest.raises(StoreUnavailableError, match="read-only"):
                store.add(make_record(1))
            with tempfile.TemporaryDirectory() as folder:
                copy = back_up_store(store, Path(folder) / "copy.sqlite")
                with open_store(copy) as restored:
                    assert restored.get(make_record().id) == make_record()
        for new in ("new.sqlite", "sub/new.sqlite"):
            assert_refused(public_folder / new, "cannot create a database")
    assert list(public_folder.iterdir()) == [database]
    database.chmod(0)
    with unprivileged():
        assert_refused(database, "Permission denied")
