"""``feinsum doctor``: it finds what is wrong, says what to do, and changes nothing."""

from __future__ import annotations

import json
import os
import tempfile
from types import SimpleNamespace

import pytest

from feinsum.canonical import FORM_VERSION
from feinsum.db import open_store
from feinsum.db.remote.layer import open_remote
from feinsum.doctor import machine
from feinsum.errors import StoreUnavailableError
from feinsum.records import LookUp
from feinsum.targets.devices import DeviceState
from feinsum.targets.processor import describe_host_processor
from tests.db.conftest import locked_by_another_process, public_folder, unprivileged
from tests.db.factories import make_device, make_environment, make_record
from tests.remote.chaos import answering, chaos, refusing, silent

__all__ = ["public_folder"]


@pytest.fixture(autouse=True)
def _own(tmp_path, monkeypatch):
    """A user without a database, with a cache."""
    monkeypatch.setenv("FEINSUM_DATABASE", str(tmp_path / "facts.sqlite"))
    monkeypatch.setenv("FEINSUM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("FEINSUM_VERIFY", raising=False)


@pytest.fixture
def findings(run):
    """The findings by check, and whether they are what the exit code says."""

    def look(*options):
        result = run("doctor", "--json", *options)
        document = json.loads(result.stdout)
        states = [finding["state"] for finding in document["findings"]]
        assert document["is_well"] == ("problem" not in states)
        assert result.exit_code == (0 if document["is_well"] else 1)
        for finding in document["findings"]:
            assert bool(finding["advice"]) == (finding["state"] != "ok")
        return {finding["check"]: finding for finding in document["findings"]}

    return look


def test_a_home_and_room_that_are_missing_are_told(tmp_path, monkeypatch, findings):
    """Each with what follows from it, and what to do."""
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("HOME", str(file / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("FEINSUM_CACHE_DIR")
    monkeypatch.setattr(tempfile, "tempdir", str(file / "tmp"))
    found = findings()
    assert found["cache"]["text"] == f"{file} is not a folder: nothing is cached"
    assert "numpy answers calls" in found["temporary files"]["text"]
    assert "TMPDIR" in found["temporary files"]["advice"]
    assert found["loopy"]["state"] == "note"


def test_a_healthy_installation_is_well(run, tmp_path, findings):
    """Every check has a finding; nothing is made but the cache, and no database."""
    found = findings()
    assert {
        "settings", "versions", "devices", "device", "packaged facts", "database",
        "layers", "layer memory", "layer packaged", "cache", "clock", "compiler",
        "contractions", "machine", "openblas", "temporary files",
    } - set(found) <= {"openblas"}  # fmt: skip
    busy = {"machine", "openblas"}  # what others do, and which numpy there is
    assert {f["state"] for name, f in found.items() if name not in busy} == {"ok"}
    assert "will be created" in found["database"]["text"]
    assert {path.name for path in tmp_path.iterdir()} <= {"cache"}
    result = run("doctor")
    assert result.exit_code == 0
    assert result.stdout.endswith(
        ("no problems found\n", "0 problems, 1 note\n", " notes\n")
    )


def test_an_unknown_processor_is_worth_knowing(findings, monkeypatch):
    """Without it no fact is exact; the advice says what a container has to show."""
    environment = make_environment(make_device())
    opened = SimpleNamespace(
        device=environment.device, environment=lambda policy: environment
    )
    state = DeviceState("host", environment.device, "")
    monkeypatch.setattr(machine, "device_states", lambda: [state])
    monkeypatch.setattr(machine, "open_device", lambda selector: opened)
    found = findings()["processor"]
    assert (found["state"], "exact match" in found["text"]) == ("note", True)
    assert "/proc/cpuinfo" in found["advice"]


def test_a_locked_database_is_a_problem(tmp_path, findings, run):
    """Its facts are counted; another process that keeps its write lock is seen. The
    line of a device has its processor.
    """
    with open_store(tmp_path / "facts.sqlite") as store:
        store.add(make_record())
    found = findings()
    assert found["database"]["text"].endswith(": 1 fact, writable")
    assert str(describe_host_processor()) in found["devices"]["text"]
    with locked_by_another_process(tmp_path / "facts.sqlite"):
        found = findings()["database"]
        result = run("doctor")
    assert found["state"] == "problem"
    assert "lock" in found["text"]
    assert result.exit_code == 1
    assert "! database: " in result.stdout
    assert result.stdout.splitlines()[-1].startswith("1 problem")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_database_that_cannot_be_written_is_a_problem(
    public_folder, findings, is_there
):
    """Whether there is one or not."""
    path = public_folder / "facts.sqlite"
    if is_there:
        with open_store(path):
            pass
    public_folder.chmod(0o555)
    with unprivileged():
        found = findings("--database", str(path))["database"]
    assert found["state"] == "problem"
    assert "writ" in found["text"]


def test_garbage_and_open_caches_are_problems(tmp_path, findings, monkeypatch):
    """What is no database is named, nothing is kept where others can write, and the
    file system may have another time; the other checks go on.
    """
    (tmp_path / "facts.sqlite").write_bytes(b"garbage" * 1000)
    (tmp_path / "cache").mkdir(mode=0o755)
    (tmp_path / "cache").chmod(0o755)
    found = findings()
    assert "is not an SQLite database" in found["database"]["text"]
    assert found["cache"]["state"] == "problem"
    assert "accessible to others" in found["cache"]["text"]
    assert found["clock"]["state"] == "ok"
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert findings()["clock"]["state"] == "problem"


SETTINGS = (
    (
        ("FEINSUM_POLICY", "lax", "settings", "problem", "'lax'"),
        ("FEINSUM_DEVICE", "Cray-1", "device", "problem", "'Cray-1'"),
        ("FEINSUM_CACHE_DIR", "off", "cache", "note", "off"),
        ("FEINSUM_REMOTE", "facts.example", "remote", "problem", "not a web URL"),
    ),
    (
        ("FEINSUM_VERIFY", "off", "settings", "note", "neither verified"),
        ("FEINSUM_SITE_DATABASE", "/no/site", "layer site", "problem", "no database"),
    ),
    (("FEINSUM_LAYERS", "users", "layers", "problem", "'users'"),),
)
"""Variables that are set together, and what is found of each."""


@pytest.mark.parametrize("variables", SETTINGS, ids=["odd", "site", "layers"])
def test_settings_are_looked_at(findings, monkeypatch, variables):
    """A value that cannot work is a problem; one that costs something is a note."""
    for variable, value, *_ in variables:
        monkeypatch.setenv(variable, value)
    found = findings()
    for _, _, check, state, words in variables:
        assert found[check]["state"] == state
        assert words in found[check]["text"]


def test_settings_of_the_service_are_read(findings, monkeypatch, tmp_path):
    """The file is checked, with the database that it names; a misspelt variable has
    the nearest name.
    """
    assert "service" not in findings()
    file, database = tmp_path / "service.toml", tmp_path / "team.sqlite"
    file.write_text(f"workers = 2\ndatabase = '{database}'\n")
    monkeypatch.setenv("FEINSUM_SERVE_SETTINGS", str(file))
    monkeypatch.setenv("FEINSUM_SERVE_WORKRES", "3")
    found = findings()
    assert found["service"]["state"] == "ok"
    assert str(database) in found["database of the service"]["text"]
    assert found["variables"]["advice"] == "rename it to FEINSUM_SERVE_WORKERS"
    database.write_bytes(b"garbage" * 1000)
    assert findings()["database of the service"]["state"] == "problem"
    file.write_text("wrokers = 2\n")
    found = findings()["service"]
    assert (found["state"], "did you mean 'workers'?" in found["text"]) == (
        "problem",
        True,
    )


def capabilities(**changes):
    return json.dumps({"version": "7.1", "form_version": FORM_VERSION, **changes})


def test_a_service_is_asked(findings, monkeypatch):
    """One of ours that answers is well; one that refuses or is silent is a problem."""
    with chaos(answering("200 OK", capabilities())) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", f"{server.url}/")
        found = findings()["remote"]
        assert (found["state"], "answers, version 7.1" in found["text"]) == ("ok", True)
        for behave, words in (
            (answering("200 OK", capabilities(form_version="fe0")), "'fe0'"),
            (answering("200 OK", "{}"), "as a feinsum service"),
            (answering("503 No", "", "text/plain"), "status 503"),
            (refusing(401, "not-authenticated", "expired"), "[not-authenticated]"),
            (silent, "did not answer"),
        ):
            server.behave = behave
            found = findings()["remote"]
            assert (found["state"], words in found["text"]) == ("problem", True), found


def test_a_service_that_failed_just_now_is_a_note(findings, monkeypatch):
    """It answers the doctor, but look-ups leave it alone for a while."""
    with chaos(answering("500 No", "", "text/plain")) as server:
        monkeypatch.setenv("FEINSUM_REMOTE", server.url)
        with pytest.raises(StoreUnavailableError):
            open_remote().candidates(LookUp({"fe2-x": ""}))
        server.behave = answering("200 OK", capabilities())
        found = findings()["remote"]
        assert (found["state"], "status 500" in found["text"]) == ("note", True)


def test_a_check_that_fails_is_a_finding(findings, monkeypatch):
    """The doctor goes on to the next."""

    def fail(*_):
        raise OSError("odd")

    monkeypatch.setattr(os, "access", fail)
    found = findings()["cache"]
    assert "OSError: odd" in found["text"]
