"""``feinsum cache``."""

from __future__ import annotations

import pytest

from feinsum.cache import DiskCache


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A cache of two entries, which is the default one."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    found = DiskCache(tmp_path / "cache")
    for key in ("one", "two"):
        found.write(key, b"x")
    return found


def test_info_counts_what_is_kept(run, ask, kept):
    """Where, how many, how large, and the bound; in text and as JSON."""
    document = ask("cache", "info")
    assert document["location"] == str(kept.folder)
    assert document["n_entries"] == 2
    assert document["n_bytes"] == kept.info().n_bytes
    assert document["max_bytes"] == kept.max_bytes
    assert "entries: 2" in run("cache", "info").stdout.splitlines()


def test_clear_removes_all_of_it(run, ask, kept):
    """It says how many entries these were, in text and as JSON."""
    assert ask("cache", "clear") == {"n_removed": 2}
    assert run("cache", "clear").stdout == "0 entries removed\n"
    assert kept.info().n_entries == 0


def test_a_cache_that_is_off_is_said_to_be(run, ask, monkeypatch):
    """There is nothing to count and nothing to clear."""
    monkeypatch.setenv("FEINSUM_CACHE_DIR", "off")
    assert run("cache", "info").stdout == "location: off\n"
    assert ask("cache", "info") == {"location": None}
    assert run("cache", "clear").stdout == "0 entries removed\n"
