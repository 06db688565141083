"""The commands of the pages about databases can be run as they stand there."""

from __future__ import annotations

import re
import shlex
import subprocess
from contextlib import chdir
from pathlib import Path

import pytest
from typer.testing import CliRunner

from feinsum.cli import app
from feinsum.db import open_store
from tests.db.factories import make_peaks, make_record, make_trial
from tests.deploy.walk import forked_shell
from tests.docs.pages import fenced, page

REFERENCE = "docs/reference/database.md"


def commands(name: str) -> list[str]:
    """What the sessions of a page call."""
    sessions = "".join(fenced(page(name), "console"))
    return [line.removeprefix("$ ") for line in sessions.splitlines()]


NEEDS_SHELL = re.compile(r"[|&;<>$*]")


@pytest.fixture
def environment(tmp_path: Path, command_server: Path) -> dict[str, str]:
    """A folder with a program and with databases of the names on the page."""
    for name, numbers in {"facts": (0, 1), "laptop": (1, 2), "cluster": (3,)}.items():
        with open_store(tmp_path / f"{name}.sqlite") as store:
            store.add_all([make_record(n) for n in numbers])
            store.add_all([make_peaks(), make_trial(numbers[0])])
    database = {"FEINSUM_DATABASE": str(tmp_path / "facts.sqlite")}
    return forked_shell(tmp_path, command_server, **database)


def succeed(called: list[str], folder: Path, environment: dict[str, str]) -> None:
    for command in called:
        if command.startswith("feinsum ") and not NEEDS_SHELL.search(command):
            succeed_here(shlex.split(command)[1:], folder, environment)
            continue
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, problems(done.stderr)) == (0, []), command


def succeed_here(
    arguments: list[str], folder: Path, environment: dict[str, str]
) -> None:
    """A command alone needs no process of its own."""
    with chdir(folder):
        done = CliRunner().invoke(app, arguments, env=environment)
    assert (done.exit_code, problems(done.stderr)) == (0, []), arguments


def problems(stderr: str) -> list[str]:
    """The lines of what was printed there, but for one that a database is new."""
    created = "feinsum: created the database "
    return [line for line in stderr.splitlines() if not line.startswith(created)]


def test_the_commands_of_the_guide_succeed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Facts of a cluster go to a laptop, and from there to a third database."""
    succeed(commands("docs/how-to/move-facts.md"), tmp_path, environment)
    with open_store(tmp_path / "other.sqlite") as store:
        assert {record.id for record in store.records()} == {
            make_record(n).id for n in (1, 2, 3)
        }


def test_every_command_of_the_page_succeeds(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """One after the other, in one folder; at the end all facts are there."""
    succeed(commands(REFERENCE), tmp_path, environment)
    with open_store(tmp_path / "facts.sqlite") as store:
        assert {record.id for record in store.records()} == {
            make_record(n).id for n in range(4)
        }
