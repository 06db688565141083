"""What the tests of the client share: a user's settings, and no memory."""

from __future__ import annotations

import pytest

from feinsum.memory import Memory, use_fresh_memory, use_memory


def forget() -> None:
    """Be another process, as far as the client is concerned."""
    use_memory(Memory())


@pytest.fixture(autouse=True)
def _own(tmp_path, monkeypatch):
    """A user without a database and with an empty cache, who has time."""
    for name in ("", "_KEY", "_KEY_FILE", "_KEY_OVER_HTTP"):
        monkeypatch.delenv(f"FEINSUM_REMOTE{name}", raising=False)
    monkeypatch.delenv("FEINSUM_DATABASE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FEINSUM_REMOTE_BUDGET_MS", "60000")
    with use_fresh_memory():
        yield
