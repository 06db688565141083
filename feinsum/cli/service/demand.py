"""``feinsum demand``: what a service was asked for in vain."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feinsum.cli.shared.demands import PAGE, demands_in
from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import print_json, print_table

if TYPE_CHECKING:
    from feinsum.records import Demand

app = typer.Typer(
    rich_markup_mode=None,
    help="List or clear requested workloads without facts.",
    epilog="\b\nExample:\n  feinsum demand list --database team.sqlite",
)

LONGEST = 60


@app.command(
    "list",
    epilog="\b\nExamples:\n"
    "  feinsum demand list --limit 20 --json\n"
    "  feinsum demand list --database https://facts.example",
)
def list_demand(
    limit: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=PAGE, help="Maximum number of rows."),
    ] = 100,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List demands of a service or of its database, most wanted first."""
    demands = list(islice(demands_in(database), limit))
    if as_json:
        print_json([_document(demand) for demand in demands])
        return
    print_table(
        ("workload", "device"),
        ("asked", "callers", "last"),
        [
            (
                (demand.workload_text or demand.workload)[:LONGEST],
                demand.device[:LONGEST] or "any",
                str(demand.count),
                str(demand.n_callers),
                f"{demand.last_seen:%Y-%m-%d}",
            )
            for demand in demands
        ],
    )


@app.command(
    epilog="\b\nExamples:\n"
    "  feinsum demand clear --workload fe2-nauty2.8-0f7c\n"
    "  feinsum demand clear --all"
)
def clear(
    workload: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Only demands for this workload."),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All demands.")] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Delete demands; later requests are counted from zero."""
    from feinsum.db.server import open_serving_store

    if is_all == (workload is not None):
        raise typer.BadParameter("expected either --workload KEY or --all")
    with open_serving_store(database, may_create=False) as store:
        n_cleared = store.clear_demands(workload)
    if as_json:
        print_json({"n_cleared": n_cleared})
    else:
        typer.echo(f"cleared: {n_cleared}")


def _document(demand: Demand) -> dict[str, Any]:
    return {
        "workload": demand.workload,
        "workload_text": demand.workload_text,
        "device": demand.device,
        "count": demand.count,
        "n_callers": demand.n_callers,
        "first_seen": demand.first_seen.isoformat(),
        "last_seen": demand.last_seen.isoformat(),
    }
