"""Requests made from the description, right and wrong ones, find no failure."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from feinsum.db.server.serving import open_serving_store
from feinsum.service import make_key
from feinsum.service.paging import to_cursor
from tests.service import refused_by_rule
from tests.service.examples import PEAKS, PLAN, RECORD
from tests.service.running import running

RULES = "".join(f'    "{route}",\n' for route in refused_by_rule.RULES)

CONFIGURATION = f"""
hooks = "{refused_by_rule.__file__}"

# Reading needs no key here.
[checks]
ignored_auth.enabled = false

# More rules than a schema says: the check of the hooks is in the place of this one.
[[operations]]
include-name = [
{RULES}
]
checks.positive_data_acceptance.enabled = false

# A retracted fact stays away if it is sent again; what became of it is told.
[[operations]]
include-name = "GET /v1/facts/{{record_id}}"
checks.ensure_resource_availability.enabled = false

[[operations]]
include-name = "GET /v1/facts/{{record_id}}/trust"
checks.use_after_free.enabled = false

# Cursors are what the service gave; tests/hostile has others.
[[operations]]
include-name = [
    "GET /v1/workloads", "GET /v1/devices", "GET /v1/facts", "GET /v1/plans",
]
parameters = {{ "query.cursor" = "{to_cursor("k")}" }}

[[operations]]
include-name = "GET /v1/demand"
parameters = {{ "query.cursor" = "{to_cursor(1, 1, "k", "")}" }}

[[operations]]
include-name = "GET /v1/retractions"
parameters = {{ "query.cursor" = "{to_cursor("2026-01-31T12:00:00+00:00", "k")}" }}

[[operations]]
include-name = "GET /v1/best/{{key}}"
parameters = {{ "query.cursor" = "{to_cursor(0)}" }}
"""


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_schemathesis_finds_no_failure(tmp_path: Path) -> None:
    """All of its checks hold in all of its phases, sequences of requests included, with
    a key that opens everything, in at least 10,000 cases.
    """
    assert n_cases(attacked(tmp_path, "--max-examples", "500")) >= 10_000


def test_a_few_cases_find_no_failure(tmp_path: Path) -> None:
    """The same with the examples and few cases of each route."""
    phases = ("--phases", "examples,fuzzing,stateful", "--max-examples", "2")
    assert n_cases(attacked(tmp_path, *phases)) > 50


def n_cases(output: str) -> int:
    """How many cases a run says that it made."""
    found = re.search(r"^Test cases:\s+(\d+) generated", output, re.MULTILINE)
    assert found, output[-2000:]
    return int(found[1])


def attacked(folder: Path, *options: str) -> str:
    """What Schemathesis says of a new service, which has withstood it."""
    database = folder / "facts.sqlite"
    secret, key = make_key("tester", "admin")
    with open_serving_store(database) as store:
        store.add_key(key)
        store.add(RECORD)
        store.add(PEAKS)
        store.add(PLAN)
    (folder / "schemathesis.toml").write_text(CONFIGURATION)
    with running(str(database), folder, rate_per_s=0) as server:
        command = [sys.executable, "-m", "schemathesis.cli", "run", "--seed", "1"]
        command += [f"{server.url}/openapi.json", "--continue-on-failure", *options]
        command += ["--header", f"Authorization: Bearer {secret}"]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=folder
        )
    assert done.returncode == 0, done.stdout[-9000:] + done.stderr[-2000:]
    return done.stdout
