"""Every command, with what it was not made for: one error, a documented exit code."""

from __future__ import annotations

import json

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


def test_a_misspelt_call_is_a_usage_error(run, monkeypatch):
    """An unknown option, one that is nearly right, and too many arguments."""
    monkeypatch.setenv("COLUMNS", "40")
    for path, command in COMMANDS.items():
        wrong = [["--colour"], ["--databse", "x", "--json"], ["--jsn"]]
        if not any(one.nargs == -1 for one in command.params):
            wrong.append([*map(str, range(9)), "--json"])
        for given in wrong:
            is_json = given[-1] == "--json"
            assert_is_one_error(run(*path, *given), USAGE, is_json=is_json)


def test_help_fits_a_narrow_terminal(run, monkeypatch):
    """It names the command, and every option."""
    monkeypatch.setenv("COLUMNS", "40")
    for path, command in COMMANDS.items():
        result = run(*path, "--help")
        assert result.exit_code == 0
        assert path[-1] in result.stdout
        for option in command.params:
            if option.param_type_name == "option" and not option.hidden:
                assert option.opts[0] in result.stdout, path


def test_a_file_that_is_no_database_is_a_failure(run, database, monkeypatch):
    """Also a folder."""
    monkeypatch.chdir(database.parent)
    database.write_bytes(b"no database" * 999)
    (database.parent / "folder").mkdir()
    for path in OF_DATABASE:
        arguments = ARGUMENTS.get(" ".join(path), [])
        for other, is_json in (("facts.sqlite", True), ("folder", False)):
            monkeypatch.setenv("FEINSUM_DATABASE", other)
            result = run(*path, *arguments, *["--json"] * is_json)
            assert_is_one_error(result, FAILED, is_json=is_json)
