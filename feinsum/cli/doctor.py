"""``feinsum doctor``: diagnose an installation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from feinsum.cli.shared.failure import FAILED
from feinsum.cli.shared.options import AsJson, Database, Device
from feinsum.cli.shared.output import print_json
from feinsum.words import format_count

if TYPE_CHECKING:
    from feinsum.doctor.machine import State

EXAMPLES = """\b
Examples:
  feinsum doctor
  feinsum doctor --json
"""

MARKS = {"ok": " ", "note": "-", "problem": "!"}


def doctor(
    database: Database = None, device: Device = None, as_json: AsJson = False
) -> None:
    """Diagnose the installation.

    Checks settings, versions, devices, how well the packaged facts match, the
    database with its locks and permissions, all layers, the cache, the clock and the
    service in use. Changes nothing. Exits with code 1 if there is a problem.
    """
    from feinsum.doctor import run_checks

    findings = []
    # print findings one by one: checks of a slow service take seconds
    for finding in run_checks(database, device):
        findings.append(finding)
        if not as_json:
            typer.echo(f"{MARKS[finding.state]} {finding.check}: {finding.text}")
        if finding.advice and not as_json:
            typer.echo(f"    {finding.advice}")
    n_problems = sum(finding.state == "problem" for finding in findings)
    if as_json:
        documents = [asdict(finding) for finding in findings]
        print_json({"is_well": not n_problems, "findings": documents})
    else:
        typer.echo(_format_summary([finding.state for finding in findings]))
    if n_problems:
        raise typer.Exit(FAILED)


def _format_summary(states: Sequence[State]) -> str:
    """Count the problems and notes in words.

    >>> _format_summary(["ok", "problem", "note", "note"]), _format_summary(["ok"])
    ('1 problem, 2 notes', 'no problems found')
    """
    if set(states) <= {"ok"}:
        return "no problems found"
    counts = {name: states.count(name) for name in ("problem", "note")}
    return ", ".join(format_count(n, name) for name, n in counts.items())
