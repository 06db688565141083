"""Requests made from the description, right and wrong ones, find no failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from feinsum.db.server import open_serving_store
from feinsum.service import new_key
from feinsum.service.examples import PEAKS, RECORD
from tests.service.running import running

NOT_CHECKED = ("ignored_auth", "positive_data_acceptance")
"""Reading needs no key here; and a document of facts has more rules than a schema."""


@pytest.mark.long
def test_schemathesis_finds_no_failure(tmp_path: Path) -> None:
    """All of its checks hold, with a key that opens everything."""
    database = tmp_path / "facts.sqlite"
    secret, key = new_key("tester", "admin")
    with open_serving_store(database) as store:
        store.add_key(key)
        store.add(RECORD)
        store.add_peaks(PEAKS)
    with running(str(database), tmp_path, rate_per_s=0) as server:
        command = [sys.executable, "-m", "schemathesis.cli", "run"]
        command += [f"{server.url}/openapi.json", "--max-examples", "50", "--seed", "1"]
        command += ["--header", f"Authorization: Bearer {secret}", "--checks", "all"]
        command += ["--exclude-checks", ",".join(NOT_CHECKED)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path
        )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
