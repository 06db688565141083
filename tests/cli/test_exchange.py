"""``feinsum db export``, ``import``, ``diff``, ``merge`` and ``backup``."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from feinsum.cli import app
from feinsum.db import open_store
from feinsum.records import to_json
from tests.db.factories import make_peaks, make_record, make_trial


@pytest.fixture
def filled(database):
    """Three facts, limits of a device and a trial in the default database."""
    with open_store(database) as store:
        store.add_all([make_record(n) for n in range(3)])
        store.add_all([make_peaks(), make_trial()])
    return database


def test_what_is_exported_can_be_imported(run, filled, tmp_path):
    """Into another database, and again: nothing is new, and nothing differs."""
    file, other = str(tmp_path / "facts.jsonl"), str(tmp_path / "other.sqlite")
    result = run("db", "export", file, "--with-trials")
    assert (result.exit_code, result.stderr) == (0, "")
    numbers = "3 records, 1 device's limits, 1 trial"
    assert result.stdout == f"{numbers} written to {file}\n"
    result = run("db", "import", file, "--database", other)
    assert result.stdout == f"read: {numbers}\nnew: {numbers}\n"
    again = run("db", "import", file, "--database", other, "--json")
    document = json.loads(again.stdout)
    assert document["n_read"] == {"record": 3, "peaks": 1, "trial": 1}
    assert (sum(document["n_new"].values()), document["n_bad"]) == (0, 0)
    assert run("db", "diff", str(filled), other).exit_code == 0


def test_streams(filled, tmp_path):
    """``-`` is standard output and standard input; trials come only on demand."""
    other = str(tmp_path / "other.sqlite")
    exported = CliRunner().invoke(app, ["db", "export", "-"])
    lines = exported.stdout_bytes.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == [
        "header",
        *["record"] * 3,
        "peaks",
    ]
    command = ["db", "import", "-", "--database", other]
    result = CliRunner().invoke(app, command, input=exported.stdout_bytes)
    assert result.exit_code == 0, result.output
    with open_store(other) as store:
        assert len(store) == 3


def test_a_stream_takes_nothing_else(run, filled):
    """It is bad usage to mix it with a report, or to write a folder there."""
    for options in (["--json"], ["--kernel-tuner"]):
        result = run("db", "export", "-", *options)
        assert (result.exit_code, "[usage]" in result.stderr) == (2, True)


def test_a_bad_line_ends_an_import(run, database, tmp_path):
    """One error, with the line, the reason, and what to do."""
    file = tmp_path / "facts.jsonl"
    with open_store(database) as store:
        store.add(make_record(0))
        store.add(make_record(1))
    run("db", "export", str(file))
    header, first, second = file.read_text().splitlines()
    file.write_text("\n".join([header, first, second.replace("cpu-0", "gpu"), first]))
    other = str(tmp_path / "other.sqlite")
    result = run("db", "import", str(file), "--database", other)
    assert result.exit_code == 1
    created, refusal = result.stderr.splitlines()
    assert created == f"feinsum: created the database {other}"
    assert refusal.startswith("feinsum: [invalid-record] line 3: record ")
    assert "was changed" in refusal
    assert refusal.endswith("--skip-bad")
    result = run("db", "import", str(file), "--skip-bad", "--database", other, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["n_bad"] == 1
    assert json.loads(result.stdout)["n_read"] == {"record": 2}
    assert result.stderr.startswith("feinsum: [invalid-record] line 3: ")
    text = run("db", "import", str(file), "--skip-bad", "--database", other).stdout
    assert text.splitlines()[-1] == "skipped: 1"


def test_parquet_by_its_suffix(run, filled, tmp_path):
    """The table has the facts; it is imported like lines."""
    file, other = str(tmp_path / "facts.parquet"), str(tmp_path / "other.sqlite")
    assert run("db", "export", file, "--with-trials").exit_code == 0
    assert run("db", "import", file, "--database", other).exit_code == 0
    assert run("db", "diff", str(filled), other).exit_code == 0


def test_t4_into_a_folder(run, filled, tmp_path):
    """A file for the workload on the device, with facts and, on demand, trials."""
    folder = tmp_path / "t4"
    options = "--kernel-tuner", "--with-trials", "--json"
    result = run("db", "export", str(folder), *options)
    assert json.loads(result.stdout)["n_written"] == {"record": 3, "trial": 1}
    (file,) = folder.iterdir()
    assert len(json.loads(file.read_text())["results"]) == 4


def test_databases_that_differ(run, filled, tmp_path):
    """Exit code 1 without a line on stderr; the ids are in the answer."""
    other = tmp_path / "other.sqlite"
    with open_store(other) as store:
        store.add_all([make_record(n) for n in range(20)])
    result = run("db", "diff", str(filled), str(other))
    assert (result.exit_code, result.stderr) == (1, "")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["record", "3", "0", "17"] in rows
    assert ["peaks", "0", "1", "0"] in rows
    assert "and 7 more; --json has all" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    document = json.loads(run("db", "diff", str(filled), str(other), "--json").stdout)
    assert document["is_same"] is False
    assert len(document["kinds"]["record"]["only_b"]) == 17
    assert document["kinds"]["trial"]["only_a"] == [make_trial().id]


def test_what_is_compared_is_not_made(run, filled, tmp_path):
    """A database that is not there is an error, not an empty one."""
    missing = tmp_path / "missing.sqlite"
    for command in (["diff", str(filled)], ["merge"]):
        result = run("db", *command, str(missing))
        assert (result.exit_code, "[store-unavailable]" in result.stderr) == (1, True)
    assert not missing.exists()


def test_merging_adds_what_is_missing(run, filled, tmp_path):
    """Of all sources; the sources stay as they are."""
    other, target = tmp_path / "other.sqlite", str(tmp_path / "target.sqlite")
    with open_store(other) as store:
        store.add_all([make_record(n) for n in range(2, 5)])
    sources = str(filled), str(other)
    result = run("db", "merge", *sources, "--database", target)
    lines = ["records added: 5", "limits of devices added: 1", "trials added: 1"]
    assert result.stdout.splitlines() == lines
    again = json.loads(
        run("db", "merge", *sources, "--database", target, "--json").stdout
    )
    assert sum(again["n_new"].values()) == 0
    with open_store(other) as store:
        assert len(store) == 3


def test_a_backup_is_a_new_file(run, filled, tmp_path):
    """It says what it is; a second one of the same name is refused."""
    file = str(tmp_path / "copy.sqlite")
    result = run("db", "backup", file)
    assert result.stdout.startswith(f"{file}: SQLite, ")
    assert run("db", "diff", str(filled), file).exit_code == 0
    result = run("db", "backup", file)
    assert (result.exit_code, "File exists" in result.stderr) == (1, True)
    document = json.loads(run("db", "backup", f"{file}2", "--json").stdout)
    assert document["format"] == "SQLite"


def test_a_huge_document_is_reported_in_one_line(run, tmp_path):
    """Whatever is in a file, an error stays readable."""
    file = tmp_path / "facts.jsonl"
    line = {"kind": "record", "id": "0" * 64, "document": to_json(make_record()) * 500}
    header = '{"format":"feinsum","kind":"header","version":1}'
    file.write_text(f"{header}\n{json.dumps(line)}\n")
    result = run("db", "import", str(file))
    assert result.exit_code == 1
    assert len(result.stderr) < 1000
