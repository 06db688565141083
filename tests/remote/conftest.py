"""What the tests of the client share: a user's settings, and no memory."""

from __future__ import annotations

import pytest

from feinsum.db.remote import breaker, layer, shelf


def forget() -> None:
    """Be another process, as far as the client is concerned."""
    breaker.forget_failures()
    shelf.forget_answers()
    layer.forget_warnings()


@pytest.fixture(autouse=True)
def _own(tmp_path, monkeypatch):
    """A user without a database and with an empty cache, who has time."""
    for name in ("", "_KEY", "_KEY_FILE", "_KEY_OVER_HTTP"):
        monkeypatch.delenv(f"FEINSUM_REMOTE{name}", raising=False)
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "own.sqlite"))
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FEINSUM_REMOTE_BUDGET_MS", "60000")
    forget()
    yield
    forget()
