"""``feinsum demand``: look-ups that a service could not answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import print_document, print_table

if TYPE_CHECKING:
    from feinsum.records import Demand

app = typer.Typer(
    rich_markup_mode=None,
    help="List or clear requested workloads without facts.",
    epilog="\b\nExample:\n  feinsum demand list --database team.sqlite",
)

MAX_LISTED = 1000
"""Maximum demands of one page of a service, and of the list of a database."""

MAX_TEXT = 60
"""Maximum characters of an einsum or a device in the table."""


def list_demands(source: str | None) -> Iterator[Demand]:
    """Yield failed look-ups, most wanted first.

    A database gives at most :data:`MAX_LISTED`.

    Args:
        source: URL of a service, or the location of its database.

    Raises:
        StoreUnavailableError: if it does not answer.
        ServiceError: if it refuses, or is not a feinsum service.
    """
    from feinsum.db import HttpStore, is_service
    from feinsum.db.server.serving import open_serving_store

    # a service is read page by page, its database at once
    if source is not None and is_service(source):
        yield from HttpStore.at(source).demands()
        return
    with open_serving_store(source, may_create=False) as store:
        demands = store.demands(limit=MAX_LISTED)
    yield from demands


@app.command(
    "list",
    epilog="\b\nExamples:\n"
    "  feinsum demand list --limit 20 --json\n"
    "  feinsum demand list --database https://facts.example",
)
def list_demand(
    limit: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=MAX_LISTED, help="Maximum number of rows."
        ),
    ] = 100,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List demands of a service or of its database, most wanted first."""
    demands = list(islice(list_demands(database), limit))
    rows = [
        (
            (demand.workload_text or demand.workload)[:MAX_TEXT],
            demand.device[:MAX_TEXT] or "any",
            str(demand.count),
            str(demand.n_callers),
            f"{demand.last_seen:%Y-%m-%d}",
        )
        for demand in demands
    ]
    headings = ("workload", "device"), ("requests", "callers", "last")
    print_document(demands, as_json, lambda: print_table(*headings, rows))


@app.command(
    "clear",
    epilog="\b\nExamples:\n"
    "  feinsum demand clear --workload fe2-nauty2.8-0f7c\n"
    "  feinsum demand clear --all",
)
def clear_demand(
    workload: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Only demands for this workload."),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All demands.")] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Delete demands; later requests are counted from zero."""
    from feinsum.db.server.serving import open_serving_store

    # neither or both are given
    if is_all == (workload is not None):
        raise typer.BadParameter("expected either --workload KEY or --all")
    with open_serving_store(database, may_create=False) as store:
        n_cleared = store.clear_demands(workload)
    document = {"n_cleared": n_cleared}
    print_document(document, as_json, lambda: typer.echo(f"cleared: {n_cleared}"))
