"""``feinsum db retract``."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import ID_LENGTH, print_document, print_table, to_digits

if TYPE_CHECKING:
    from feinsum.db.sql import Retracted, Suspect, SuspectPeaks, SuspectPlan

EXAMPLES = """\b
Examples:
  feinsum db retract 0f7c2ab41d03 --reason "wrong clock" --yes
  feinsum db retract --recorder ci --since 2026-01-31T12:00:00Z
  feinsum db retract --transform rowwise@1 --database https://facts.example
"""

N_SHOWN = 20
"""Maximum facts to print."""


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
    # Checked before the database is opened: a service would need a request to refuse.
    if yes and not reason.strip():
        raise typer.BadParameter("give the reason with --reason", param_hint="--yes")
    # Without --yes, nothing is written: a retraction cannot be taken back.
    with opened_documents(database) as store:
        retracted = store.retract(
            query, reason=reason, retracted_by=getpass.getuser(), is_dry_run=not yes
        )
    print_document(retracted, as_json, lambda: _print(retracted))


def _print(retracted: Retracted) -> None:
    records = [
        (
            r.id[:ID_LENGTH],
            r.workload,
            r.transform,
            to_digits(r.speedup, 3),
            _format_day(r),
        )
        for r in retracted.suspects[:N_SHOWN]
    ]
    plans = [
        (p.id[:ID_LENGTH], p.workload, p.plan[:ID_LENGTH], _format_day(p))
        for p in retracted.plans[:N_SHOWN]
    ]
    peaks = [
        (
            p.id[:ID_LENGTH],
            p.device[:ID_LENGTH],
            to_digits(p.bandwidth_bytes_per_s / 1e9, 3),
            _format_day(p),
        )
        for p in retracted.peaks[:N_SHOWN]
    ]
    if records:
        names = ("record", "workload", "transform")
        print_table(names, ("speed-up", "recorded"), records)
    if plans:
        print_table(("record", "workload", "plan"), ("recorded",), plans)
    if peaks:
        print_table(("limits", "device"), ("GB/s", "measured"), peaks)
    # a service lists only the first facts, but counts all
    if n_more := retracted.n_facts - len(records) - len(plans) - len(peaks):
        typer.echo(f"and {n_more} more; --json has all")
    for document_id in retracted.unknown:
        typer.echo(
            f"not stored here: {document_id}; the retraction applies to any copy"
        )
    if retracted.n_shared:
        typer.echo(f"kept: {retracted.n_shared} that others also sent or recorded")
    n = retracted.n_facts + len(retracted.unknown)
    if not n:
        typer.echo("no matching facts, or all are already retracted")
    elif retracted.is_dry_run:
        typer.echo(f"facts to retract: {n}; nothing was written; use --yes")
    else:
        typer.echo(f"facts retracted: {n}")


def _format_day(suspect: Suspect | SuspectPlan | SuspectPeaks) -> str:
    return f"{suspect.recorded_at:%Y-%m-%d}"
