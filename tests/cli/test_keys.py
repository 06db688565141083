"""``feinsum keys``."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

from feinsum.db.server.serving import open_serving_store


@pytest.fixture(autouse=True)
def _created(database):
    """The database exists: a key needs one."""
    open_serving_store(database).close()


def test_a_key_creates_no_database(run, database, tmp_path):
    """A path that may be misspelt is refused; the message says how to create one."""
    other = tmp_path / "tema.sqlite"
    result = run("keys", "create", "ci", "--database", str(other))
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"there is no database {other}" in result.stderr
    assert "'feinsum db init'" in result.stderr
    assert not other.exists()


def test_a_key_is_shown_once(run, database):
    """It is all of stdout, only its digest is stored, and the list has its id."""
    result = run("keys", "create", "ci", "--scope", "record")
    assert result.exit_code == 0
    secret = result.stdout.strip()
    assert secret.startswith("feinsum_")
    with open_serving_store(database) as store:
        (key,) = store.keys()
    assert (key.name, key.scope, key.expires_at) == ("ci", "record", None)
    listed = run("keys", "list").stdout
    assert key.id in listed
    assert secret not in listed
    assert max(map(len, listed.splitlines())) <= 80


def test_a_key_ends_when_it_is_told_to(run):
    """``--expires`` counts from now."""
    for text, n_days in (("90d", 90), ("4w", 28), ("1y", 365)):
        found = json.loads(
            run("keys", "create", "x", "--expires", text, "--json").stdout
        )
        made, ends = (
            datetime.fromisoformat(found[k]) for k in ("created_at", "expires_at")
        )
        assert abs(ends - made - timedelta(days=n_days)) < timedelta(minutes=10)
        assert (found["state"], found["scope"]) == ("valid", "read")


def test_what_makes_no_key_is_bad_usage(run, database):
    """A time, a name or a scope that is none makes no key."""
    for arguments in (
        ["x", "--expires", "soon"],
        ["x", "--expires", "0d"],
        [""],
        ["a\nb"],
        ["y" * 101],
        ["x", "--scope", "all"],
    ):
        assert run("keys", "create", *arguments).exit_code == 2
    with open_serving_store(database) as store:
        assert store.keys() == ()


def test_a_revoked_key_stays_revoked(run):
    """Revoking is for good; an unknown id is a failure."""
    key_id = json.loads(run("keys", "create", "x", "--json").stdout)["id"]
    assert key_id in run("keys", "revoke", key_id).stdout
    first = json.loads(run("keys", "list", "--json").stdout)
    assert run("keys", "revoke", key_id, "--json").exit_code == 0
    assert json.loads(run("keys", "list", "--json").stdout) == first
    assert first[0]["state"] == "revoked"
    result = run("keys", "revoke", "00000000")
    assert (result.exit_code, "record-not-found" in result.stderr) == (1, True)


def test_a_key_is_marked_trusted_and_no_more(run):
    """The list says so; administrators always are."""
    made = json.loads(run("keys", "create", "ci", "--trusted", "--json").stdout)
    run("keys", "create", "root", "--scope", "admin")
    assert made["is_trusted"]

    def trusted():
        found = json.loads(run("keys", "list", "--json").stdout)
        return {key["name"]: key["is_trusted"] for key in found}

    assert trusted() == {"ci": True, "root": True}
    assert "not trusted" in run("keys", "distrust", made["id"]).stdout
    assert trusted() == {"ci": False, "root": True}
    run("keys", "trust", made["id"])
    assert trusted()["ci"]
    assert run("keys", "trust", "00000000").exit_code == 1
