"""The commands of the page about the database can be run as they stand there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from feinsum.db import open_store
from tests.db.factories import make_peaks, make_record, make_trial
from tests.docs.pages import ROOT, fenced, page

COMMANDS = [
    line.removeprefix("$ ")
    for block in fenced(page("docs/reference/database.md"), "console")
    for line in block.splitlines()
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A folder with a program and with databases of the names on the page."""
    for name, numbers in {"facts": (0, 1), "laptop": (1, 2), "cluster": (3,)}.items():
        with open_store(tmp_path / f"{name}.sqlite") as store:
            store.add_all([make_record(n) for n in numbers])
            store.add_all([make_peaks(), make_trial(numbers[0])])
    program = tmp_path / "bin" / "feinsum"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m feinsum.cli "$@"\n')
    program.chmod(0o755)
    return os.environ | {
        "FEINSUM_DATABASE": str(tmp_path / "facts.sqlite"),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


def test_every_command_of_the_page_succeeds(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """One after the other, in one folder; at the end all facts are there."""
    for command in COMMANDS:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), command
    with open_store(tmp_path / "facts.sqlite") as store:
        assert {record.id for record in store.records()} == {
            make_record(n).id for n in range(4)
        }
