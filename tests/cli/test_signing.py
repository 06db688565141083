"""``feinsum signing``."""

from __future__ import annotations

import json


def test_a_key_is_made_and_shown(run, tmp_path):
    """What one command prints is what another one prints; no key is replaced."""
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
    missing = run("signing", "show", str(tmp_path / "none.pem"))
    assert missing.exit_code == 1
    assert "feinsum signing create" in missing.stderr
