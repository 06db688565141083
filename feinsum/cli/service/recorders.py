"""``feinsum recorders``: what became of what was sent, and decisions about it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from feinsum.cli.shared.options import AsJson, Database, Write
from feinsum.cli.shared.output import ID_LENGTH, print_json, print_table, to_digits

if TYPE_CHECKING:
    from feinsum.db.server import Judged

__all__ = ["app"]

app = typer.Typer(
    rich_markup_mode=None,
    help="List recorders; accept or reject their facts.",
    epilog="\b\nExample:\n  feinsum recorders list",
)

N_SHOWN = 20
"""How many facts are printed."""

Recorder: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the recorder, as listed.", show_default=False
    ),
]

Since: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="Facts received since: ISO 8601, in UTC if it has no offset.",
        show_default=False,
    ),
]


@app.command("list", epilog="\b\nExample:\n  feinsum recorders list --json")
def list_recorders(database: Database = None, as_json: AsJson = False) -> None:
    """List recorders: how many facts are served, quarantined and rejected."""
    from feinsum.db.server import open_serving_store

    with open_serving_store(database, may_create=False) as store:
        found = store.reputations()
    if as_json:
        print_json(
            [
                asdict(one)
                | {
                    "first_at": one.first_at.isoformat(),
                    "last_at": one.last_at.isoformat(),
                }
                for one in found
            ]
        )
        return
    print_table(
        ("name",),
        ("trusted", "sent", "served", "wait", "rejected", "best", "last"),
        [
            (
                one.recorder,
                "yes" if one.is_trusted else "no",
                f"{one.n_sent}",
                f"{one.n_served}",
                f"{one.n_waiting}",
                f"{one.n_rejected}",
                to_digits(one.best_speedup, 3),
                f"{one.last_at:%Y-%m-%d}",
            )
            for one in found
        ],
    )


@app.command(
    epilog="\b\nExamples:\n"
    "  feinsum recorders accept ci --since 2026-01-31\n"
    "  feinsum recorders accept ci --since 2026-01-31 --write"
)
def accept(
    name: Recorder,
    since: Since,
    write: Write = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Release all facts that a recorder sent since a given time; they then vouch."""
    _judge(name, since, database, is_accepted=True, is_dry=not write, as_json=as_json)


@app.command(
    epilog="\b\nExamples:\n"
    "  feinsum recorders reject eve --since 2026-01-31\n"
    "  feinsum recorders reject eve --since 2026-01-31T12:00:00Z --write"
)
def reject(
    name: Recorder,
    since: Since,
    write: Write = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Quarantine all facts that a recorder sent since a given time.

    They stay there, even if others confirm them or sent them too. 'accept' undoes it.
    """
    _judge(name, since, database, is_accepted=False, is_dry=not write, as_json=as_json)


def _judge(
    name: str,
    since: str,
    database: str | None,
    *,
    is_accepted: bool,
    is_dry: bool,
    as_json: bool,
) -> None:
    from feinsum.db.server import open_serving_store

    at = _instant(since)
    with open_serving_store(database, may_create=False) as store:
        found = store.judge_recorder(name, at, is_accepted=is_accepted, is_dry=is_dry)
    if as_json:
        print_json(asdict(found) | {"is_written": not is_dry})
    else:
        _print(found, is_dry=is_dry)


def _print(found: Judged, *, is_dry: bool) -> None:
    what = "accepted" if found.is_accepted else "rejected"
    for record_id in found.ids[:N_SHOWN]:
        typer.echo(record_id[:ID_LENGTH])
    if len(found.ids) > N_SHOWN:
        typer.echo(f"and {len(found.ids) - N_SHOWN} more; --json has all")
    state = "would be" if is_dry else "are"
    typer.echo(
        f"{len(found.ids)} facts of {found.recorder} {state} {what}; "
        f"{found.n_decided} already were"
    )
    if is_dry and found.ids:
        typer.echo("nothing was changed; use --write")


def _instant(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: expected a time such as 2026-01-31 or 2026-01-31T12:00:00Z",
            param_hint="--since",
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
