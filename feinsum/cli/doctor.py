"""``feinsum doctor``."""

from __future__ import annotations

from dataclasses import asdict

import typer

from feinsum.cli.shared.failure import FAILED
from feinsum.cli.shared.options import AsJson, Database, Device
from feinsum.cli.shared.output import print_json

__all__ = ["EXAMPLES", "doctor"]

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

    Checks settings, versions, devices, the fit of the packaged facts, the database
    with its locks and permissions, all layers, the cache, the clock and, if one is
    set, the service. Changes nothing. Exits with code 1 if there is a problem.
    """
    from feinsum.doctor import examination

    findings = []
    for finding in examination(database, device):
        findings.append(finding)
        if not as_json:
            typer.echo(f"{MARKS[finding.state]} {finding.check}: {finding.text}")
        if finding.advice and not as_json:
            typer.echo(f"    {finding.advice}")
    n_problems = sum(finding.state == "problem" for finding in findings)
    if as_json:
        found = [asdict(finding) for finding in findings]
        print_json({"is_well": not n_problems, "findings": found})
    else:
        many = f"{n_problems} problem{'s' * (n_problems > 1)}"
        typer.echo(many if n_problems else "all is well")
    if n_problems:
        raise typer.Exit(FAILED)
