"""``feinsum doctor``: diagnose an installation."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from feinsum.cli.serve import import_service
from feinsum.cli.shared.failure import FAILED
from feinsum.cli.shared.options import AsJson, Database, Device
from feinsum.cli.shared.output import print_json
from feinsum.errors import FeinsumError
from feinsum.words import format_count

if TYPE_CHECKING:
    from feinsum.doctor.machine import Diagnosis, State

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
    checks = run_checks(
        database,
        device,
        service_variables=_list_service_variables(),
        further={"service": _check_service},
    )
    # print findings one by one: checks of a slow service take seconds
    for finding in checks:
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


def _list_service_variables() -> Sequence[str]:
    """Return the variables of the service; none if it is not installed."""
    try:
        import_service()
    except FeinsumError:
        return ()
    from feinsum.service.settings import list_service_variables

    return list_service_variables()


def _check_service() -> Iterator[Diagnosis]:
    """Check the settings of the service and its database, if any setting is here."""
    from feinsum.doctor.examine import check_database
    from feinsum.doctor.machine import SERVICE_PREFIX, ok, problem

    if not any(name.startswith(SERVICE_PREFIX) for name in os.environ):
        return
    try:
        settings = import_service().read_settings()
    except FeinsumError as error:
        yield problem("service", str(error), "correct what the message names")
        return
    yield ok("service", "its settings are valid")
    if settings.database:
        yield from check_database(settings.database, "database of the service")


def _format_summary(states: Sequence[State]) -> str:
    """Count the problems and notes in words.

    >>> _format_summary(["ok", "problem", "note", "note"]), _format_summary(["ok"])
    ('1 problem, 2 notes', 'no problems found')
    """
    if set(states) <= {"ok"}:
        return "no problems found"
    counts = {name: states.count(name) for name in ("problem", "note")}
    return ", ".join(format_count(n, name) for name, n in counts.items())
