"""Every command, with what it was not made for: one error, a documented exit code."""

from __future__ import annotations

import json

import pytest
import typer

from feinsum.cli import app
from feinsum.cli.shared.failure import FAILED, USAGE


def leaves(command, path=()):
    """The names and the object of each command that is no group."""
    below = getattr(command, "commands", None)
    if not below:
        yield path, command
    for name, one in (below or {}).items():
        yield from leaves(one, (*path, name))


COMMANDS = dict(leaves(typer.main.get_command(app)))

ARGUMENTS = {
    "db trials": ["fe2"],
    "db export": ["facts.jsonl"],
    "db import": ["facts.jsonl"],
    "db backup": ["copy.sqlite"],
    "db diff": ["facts.sqlite", "facts.sqlite"],
    "db merge": ["facts.sqlite"],
    "db retract": ["0123456789ab", "--reason", "wrong", "--yes"],
    "db sign": ["--key", "key"],
    "demand clear": ["--all"],
    "keys create": ["me"],
    "keys revoke": ["0123456789ab"],
    "keys trust": ["0123456789ab"],
    "keys distrust": ["0123456789ab"],
}
"""Required ones of the commands that only work with a database."""

OF_DATABASE = [
    path
    for path in COMMANDS
    if path[0] in {"db", "demand", "keys"} and path != ("db", "path")
]


def assert_is_one_error(result, code, *, is_json):
    """One line on stderr, without a traceback, and with ``--json`` a document."""
    assert result.exit_code == code, result.output
    errors = [x for x in result.stderr.splitlines() if x.startswith("feinsum: [")]
    assert len(errors) == 1, result.stderr
    assert not errors[0].startswith("feinsum: [internal]")
    assert "Traceback" not in result.output
    if is_json:
        error = json.loads(result.stdout)["error"]
        assert errors == [f"feinsum: [{error['code']}] {error['message']}"]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_a_misspelt_call_is_a_usage_error(path, run, monkeypatch):
    """An unknown option, one that is nearly right, and too many arguments."""
    monkeypatch.setenv("COLUMNS", "40")
    many = [str(number) for number in range(9)]
    wrong = [["--colour"], ["--databse", "x"], ["--jsn"]]
    if not any(one.nargs == -1 for one in COMMANDS[path].params):
        wrong.append(many)
    for given in wrong:
        for is_json in (False, True):
            result = run(*path, *given, *["--json"] * is_json)
            assert_is_one_error(result, USAGE, is_json=is_json)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_fits_a_narrow_terminal(path, run, monkeypatch):
    """It names the command, and every option."""
    monkeypatch.setenv("COLUMNS", "40")
    result = run(*path, "--help")
    assert result.exit_code == 0
    assert path[-1] in result.stdout
    for option in COMMANDS[path].params:
        if option.param_type_name == "option" and not option.hidden:
            assert option.opts[0] in result.stdout


@pytest.mark.parametrize("path", OF_DATABASE, ids=" ".join)
def test_a_file_that_is_no_database_is_a_failure(path, run, database, monkeypatch):
    """Also a folder."""
    monkeypatch.chdir(database.parent)
    database.write_bytes(b"no database" * 999)
    (database.parent / "folder").mkdir()
    arguments = ARGUMENTS.get(" ".join(path), [])
    for other in ("facts.sqlite", "folder"):
        monkeypatch.setenv("FEINSUM_DATABASE", other)
        is_json = other != "folder"
        result = run(*path, *arguments, *["--json"] * is_json)
        assert_is_one_error(result, FAILED, is_json=is_json)
