"""What the tests of the command line share: a runner, a database, a fact."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import feinsum.tuning
from feinsum.cli import app
from feinsum.db import open_store
from feinsum.records import TuningRecord
from tests.cli.facts import matvec_record
from tests.cli.tuning import stand_in

Run = Callable[..., Result]

KERNEL_FILE = """
import loopy as lp
import numpy as np


def build():
    print("this goes to stderr")
    return lp.make_kernel(
        "{[i,j]: 0<=i<n and 0<=j<4}",
        "y[i] = sum(j, A[i,j]*x[j])",
        [
            lp.GlobalArg("A", np.float64, shape=("n", 4)),
            lp.GlobalArg("x", np.float64, shape=(4,)),
            lp.GlobalArg("y", np.float64, shape=("n",)),
            lp.ValueArg("n", np.int32),
        ],
        lang_version=(2018, 2),
        name="matvec",
    )


def increment():
    return lp.make_kernel(
        "{[i]: 0<=i<n}",
        "y[i] = y[i] + 1",
        [
            lp.GlobalArg("y", np.float64, shape=("n",)),
            lp.ValueArg("n", np.int32),
        ],
        lang_version=(2018, 2),
        name="increment",
    )


def number():
    return 3


def fails():
    return 1 / 0
"""


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default database of the test."""
    path = tmp_path / "facts.sqlite"
    monkeypatch.setenv("FEINSUM_DATABASE", str(path))
    return path


BUILT = cache(typer.main.get_command)
"""Building the program takes longer than most calls of it."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in this process, on a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.testing._get_command", BUILT, raising=False)

    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            result.exception
        )
        return result

    return invoke


@pytest.fixture
def ask(run: Run) -> Callable[..., Any]:
    """Runs a command line, and returns the document that it prints with ``--json``."""
    return lambda *arguments: json.loads(run(*arguments, "--json").stdout)


@pytest.fixture
def kernel_file(tmp_path: Path) -> str:
    """A user's file: ``build`` is an einsum, ``increment`` is none."""
    path = tmp_path / "kernels.py"
    path.write_text(KERNEL_FILE)
    return str(path)


@pytest.fixture
def known_records(database: Path) -> list[TuningRecord]:
    """Three facts about :data:`MATVEC` in the default database."""
    records = [matvec_record(number) for number in range(3)]
    with open_store(database) as store:
        for record in records:
            store.add(record)
    return records


@pytest.fixture
def autotune(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Replaces the search; returns the options that it was called with."""

    def replace(**behaviour: Any) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        monkeypatch.setattr(feinsum.tuning, "tune_einsum", stand_in(seen, **behaviour))
        return seen

    return replace
