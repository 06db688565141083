"""The cache on disk: what was kept comes back whole, or not at all."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.cache import DiskCache, cache_folder, get_default_cache
from feinsum.cache.folder import MAX_BYTES
from tests.docs.pages import ROOT

KEY = "0" * 64
OTHER = "1" * 64


@pytest.fixture
def kept(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> DiskCache:
    return DiskCache(tmp_path_factory.mktemp("shared") / "cache")


def file_of(kept: DiskCache, key: str) -> Path:
    (path,) = kept.folder.glob(f"{key}*")
    return path


@given(value=st.binary())
def test_what_was_written_is_read(shared, value):
    """The last value of a key comes back, byte by byte."""
    shared.write(KEY, value)
    assert shared.read(KEY) == value


@given(value=st.binary(), damage=st.data())
def test_no_damaged_entry_is_read(shared, value, damage):
    """One changed bit anywhere, or a lost end, and there is no entry any more."""
    shared.write(KEY, value)
    path = file_of(shared, KEY)
    content = bytearray(path.read_bytes())
    at = damage.draw(st.integers(0, len(content) - 1))
    if damage.draw(st.booleans()):
        content[at] ^= 1 << damage.draw(st.integers(0, 7))
    else:
        del content[at:]
    path.write_bytes(content)
    assert shared.read(KEY) is None
    assert not path.exists()


def test_an_entry_under_the_name_of_another_is_not_read(kept):
    """The digest covers the key: entries cannot be swapped."""
    kept.write(KEY, b"one")
    file_of(kept, KEY).rename(kept.folder / f"{OTHER}.entry")
    assert kept.read(OTHER) is None


def test_an_entry_of_another_secret_is_not_read(kept, tmp_path):
    """What was written without the secret of the folder is foreign."""
    foreign = DiskCache(tmp_path / "foreign")
    foreign.write(KEY, b"theirs")
    kept.write(OTHER, b"ours")
    file_of(foreign, KEY).rename(kept.folder / f"{KEY}.entry")
    assert kept.read(KEY) is None
    assert kept.read(OTHER) == b"ours"


def test_all_belongs_to_the_user_alone(kept):
    """Nobody else can read the secret, or an entry, or put one there."""
    kept.write(KEY, b"x")
    for path in (kept.folder, *kept.folder.iterdir()):
        assert path.stat().st_mode & 0o077 == 0


def _open(path, monkeypatch):
    path.chmod(0o777)


def _give_away(path, monkeypatch):
    """To somebody else; only root can, others are somebody else themselves."""
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)


@pytest.mark.parametrize("spoil", [_open, _give_away])
@pytest.mark.parametrize("what", ["", "secret"])
def test_what_is_open_to_others_is_not_used(kept, what, spoil, caplog, monkeypatch):
    """A folder or a secret that others can reach, or that is theirs: nothing is read,
    nothing written.
    """
    kept.write(KEY, b"x")
    spoil(kept.folder / what, monkeypatch)
    with caplog.at_level(logging.WARNING):
        assert kept.read(KEY) is None
        kept.write(OTHER, b"y")
        kept.write(OTHER, b"y")
    assert len(list(kept.folder.glob("*.entry"))) == 1
    (said,) = caplog.messages
    assert "chmod go-rwx" in said


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path, caplog):
    """One warning in the log, and no entries."""
    (tmp_path / "file").write_text("")
    kept = DiskCache(tmp_path / "file" / "cache")
    with caplog.at_level(logging.WARNING):
        kept.write(KEY, b"x")
        kept.write(KEY, b"x")
        assert kept.read(KEY) is None
    assert len(caplog.messages) == 1
    assert kept.clear() == 0


@given(sizes=st.lists(st.integers(0, 500), min_size=1, max_size=8))
def test_the_bound_holds(tmp_path_factory, sizes):
    """After every write, no more bytes lie there than are allowed."""
    kept = DiskCache(tmp_path_factory.mktemp("bound") / "cache", max_bytes=1000)
    for number, size in enumerate(sizes):
        kept.write(f"{number:064}", bytes(size))
        found = kept.info()
        assert found.n_bytes <= found.max_bytes
    assert kept.read(f"{len(sizes) - 1:064}") == bytes(sizes[-1])


def test_what_was_used_longest_ago_goes(kept):
    """Reading counts as use."""
    small = DiskCache(kept.folder, max_bytes=400)
    for age, key in enumerate("abc"):
        small.write(key, bytes(100))
        os.utime(file_of(small, key), ns=(age, age))
    assert small.read("a") is not None
    small.write("d", bytes(100))
    assert [key for key in "abcd" if small.read(key) is not None] == ["a", "c", "d"]


def test_clearing_removes_everything(kept):
    """Entries, the secret, and what a process that was killed left over."""
    for key in (KEY, OTHER):
        kept.write(key, b"x")
    (kept.folder / "part-of-a-killed-process").write_text("")
    assert kept.info().n_entries == 2
    assert kept.clear() == 2
    assert list(kept.folder.iterdir()) == []
    kept.write(KEY, b"y")
    assert kept.read(KEY) == b"y"


WORKER = """
import sys
from pathlib import Path
from feinsum.cache import DiskCache

kept = DiskCache(Path(sys.argv[1]), max_bytes=20_000)
n_read = 0
for step in range(150):
    key = str(step % 7)
    value = kept.read(key)
    assert value in (None, key.encode() * 4000), "half an entry"
    n_read += value is not None
    kept.write(key, key.encode() * 4000)
print(n_read)
"""


def test_processes_share_a_folder(kept):
    """Eight at once, from the first moment on: each entry is whole, the bound holds."""
    command = [sys.executable, "-W", "error", "-c", WORKER, str(kept.folder)]
    workers = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    read = [int(json.loads(worker.communicate()[0])) for worker in workers]
    assert sum(read) > 0
    assert kept.info().n_bytes <= 20_000
    assert not list(kept.folder.glob("part-*"))


def test_the_variable_says_where_the_cache_is(monkeypatch, tmp_path):
    """A folder, ``off``, or nothing for the user's own; 256 MiB."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path))
    assert get_default_cache() == DiskCache(tmp_path, 256 * 2**20)
    monkeypatch.setenv("FEINSUM_CACHE_DIR", "OFF")
    assert get_default_cache() is None
    monkeypatch.delenv("FEINSUM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "feinsum"
    assert MAX_BYTES == 256 * 2**20
