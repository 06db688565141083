"""What one process records in a service, another one retrieves, given only its URL."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from feinsum.db.server.serving import open_serving_store
from feinsum.service import make_key
from tests.docs.pages import ROOT
from tests.service.running import PATIENCE_S, running


def run(folder, *arguments, **variables):
    """What a process of its own says, whose user has nothing but these variables."""
    folder.mkdir()
    own = {
        "FEINSUM_CACHE_DIR": str(folder / "cache"),
        "FEINSUM_DATABASE": str(folder / "facts.sqlite"),
        "FEINSUM_REMOTE_BUDGET_MS": "60000",
        "POCL_CACHE_DIR": str(folder / "pocl"),
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.remote.two", *arguments],
        cwd=ROOT,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_second_process_retrieves_what_a_first_one_recorded(tmp_path):
    """By ``FEINSUM_REMOTE`` and a key, which is nowhere written."""
    database = tmp_path / "team.sqlite"
    secrets = {}
    with open_serving_store(database) as store:
        for scope in ("read", "record"):
            secrets[scope], key = make_key(scope, scope)
            store.add_key(key)
    with running(str(database), tmp_path, anonymous_read=False) as server:
        recorded = run(
            tmp_path / "ann", "record", server.url, FEINSUM_REMOTE_KEY=secrets["record"]
        )
        given = {"FEINSUM_REMOTE": server.url, "FEINSUM_REMOTE_KEY": secrets["read"]}
        found = run(tmp_path / "bob", "retrieve", **given)
    assert found["applied"] == [recorded["spec"]]
    assert found["layers"][-1] == f"remote ({server.url}): queried"
    assert found["error"] < 1e-12
    for path in tmp_path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(secret.encode() in content for secret in secrets.values())
