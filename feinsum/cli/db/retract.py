"""``feinsum db retract``."""

from __future__ import annotations

import getpass
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import ID_LENGTH, print_json, print_table, to_digits

if TYPE_CHECKING:
    from feinsum.db.sql import Retracted, Suspect, SuspectPeaks, SuspectPlan

EXAMPLES = """\b
Examples:
  feinsum db retract 0f7c2ab41d03 --reason "wrong clock" --yes
  feinsum db retract --recorder ci --since 2026-01-31T12:00:00Z
  feinsum db retract --transform rowwise@1 --database https://facts.example
"""

N_SHOWN = 20
"""How many facts are printed."""


def retract(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID...]",
            help="Content ids of facts, or the first 12 digits of stored ones.",
            show_default=False,
        ),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(metavar="KEY", help="Facts of this workload.")
    ] = None,
    recorder: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Facts sent to the service only with keys of this name; repeatable.",
            show_default=False,
        ),
    ] = None,
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[@VERSION]", help="Facts with recipes of this transform."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Facts that the service received since then, or, if not sent to one, "
            "measured since then. ISO 8601.",
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Reason; required with --yes.")
    ] = "",
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Retract the facts; otherwise they are listed."),
    ] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Permanently remove facts from every look-up, list and answer.

    Facts must match all given criteria. Retractions are documents that are merged and
    exported like facts, so no merge restores a fact. On a service, this needs the
    scope admin.
    """
    from feinsum.db import opened_documents
    from feinsum.records import RetractionQuery

    query = RetractionQuery(
        ids=tuple(ids or ()),
        workload=workload,
        recorders=tuple(recorder or ()),
        transform=transform,
        since=since,
    )
    if yes and not reason.strip():
        raise typer.BadParameter("give the reason with --reason", param_hint="--yes")
    with opened_documents(database) as store:
        found = store.retract(
            query, reason=reason, retracted_by=getpass.getuser(), is_dry_run=not yes
        )
    if as_json:
        print_json(_document(found))
    else:
        _print(found)


def _document(found: Retracted) -> dict[str, Any]:
    return {
        **asdict(found),
        "suspects": [_listed(one) for one in found.suspects],
        "plans": [_listed(one) for one in found.plans],
        "peaks": [_listed(one) for one in found.peaks],
    }


def _listed(one: Suspect | SuspectPlan | SuspectPeaks) -> dict[str, Any]:
    return {**asdict(one), "recorded_at": one.recorded_at.isoformat()}


def _print(found: Retracted) -> None:
    if found.suspects:
        print_table(
            ("record", "workload", "transform"),
            ("speed-up", "recorded"),
            [
                (
                    one.id[:ID_LENGTH],
                    one.workload,
                    one.transform,
                    to_digits(one.speedup, 3),
                    f"{one.recorded_at:%Y-%m-%d}",
                )
                for one in found.suspects[:N_SHOWN]
            ],
        )
    if found.plans:
        print_table(
            ("record", "workload", "plan"),
            ("recorded",),
            [
                (
                    one.id[:ID_LENGTH],
                    one.workload,
                    one.plan[:ID_LENGTH],
                    f"{one.recorded_at:%Y-%m-%d}",
                )
                for one in found.plans[:N_SHOWN]
            ],
        )
    if found.peaks:
        print_table(
            ("limits", "device"),
            ("GB/s", "measured"),
            [
                (
                    one.id[:ID_LENGTH],
                    one.device[:ID_LENGTH],
                    to_digits(one.bandwidth_bytes_per_s / 1e9, 3),
                    f"{one.recorded_at:%Y-%m-%d}",
                )
                for one in found.peaks[:N_SHOWN]
            ],
        )
    listed = found.suspects, found.plans, found.peaks
    n_shown = sum(min(N_SHOWN, len(one)) for one in listed)
    n_more = found.n_facts - n_shown
    if n_more > 0:
        typer.echo(f"and {n_more} more; --json has all")
    for document_id in found.unknown:
        typer.echo(
            f"not stored here: {document_id}; the retraction applies to any copy"
        )
    if found.n_shared:
        typer.echo(f"kept: {found.n_shared} that others also sent or recorded")
    n = found.n_facts + len(found.unknown)
    if not n:
        typer.echo("no matching facts, or all are already retracted")
    elif found.is_dry_run:
        typer.echo(f"facts to retract: {n}; nothing was written; use --yes")
    else:
        typer.echo(f"facts retracted: {n}")
