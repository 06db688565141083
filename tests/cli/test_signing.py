"""``feinsum signing`` and ``feinsum db sign``."""

from __future__ import annotations

import json

from feinsum.db import open_store
from feinsum.records.signature import why_untrusted
from tests.db.factories import make_record


def test_a_key_is_made_shown_and_used(run, database, tmp_path, monkeypatch):
    """What one command prints is what another one prints, and what has signed."""
    file = str(tmp_path / "signing.pem")
    created = run("signing", "create", file)
    assert created.exit_code == 0
    public = created.stdout.strip()
    assert json.loads(run("signing", "show", file, "--json").stdout) == {
        "public_key": public
    }
    again = run("signing", "create", file)
    assert (again.exit_code, "exists already" in again.stderr) == (1, True)
    assert "[signing-key]" in again.stderr

    with open_store(database) as store:
        store.add_all([make_record(n) for n in range(2)])
    looked = run("db", "sign", "--key", file).stdout.splitlines()
    assert looked[-1] == "facts to sign: 2; nothing was written; use --write"
    monkeypatch.setenv("FEINSUM_SIGNING_KEY", file)
    done = run("db", "sign", "--write")
    assert done.stdout.splitlines()[-1] == f"facts signed: 2, by {public}"
    document = json.loads(run("db", "sign", "--json").stdout)
    assert (document["n_records"], document["n_signed"]) == (2, 0)
    with open_store(database) as store:
        assert [why_untrusted(r, {public}) for r in store.records()] == ["", ""]


def test_without_a_key_nothing_is_signed(run, database, tmp_path, monkeypatch):
    """It has to be named, and to be one."""
    monkeypatch.delenv("FEINSUM_SIGNING_KEY", raising=False)
    assert run("db", "sign").exit_code == 2
    result = run("db", "sign", "--key", str(tmp_path / "none.pem"))
    assert result.exit_code == 1
    assert "feinsum signing create" in result.stderr
