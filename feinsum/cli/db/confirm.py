"""``feinsum db confirm``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feinsum.cli.shared.failure import FAILED, say
from feinsum.cli.shared.options import AsJson, Database, Device, Write
from feinsum.cli.shared.output import ID_LENGTH, print_json, print_table, to_digits

if TYPE_CHECKING:
    from feinsum.db.server import ServingStore
    from feinsum.records import TuningRecord
    from feinsum.tuning.confirming import Confirmed

__all__ = ["EXAMPLES", "confirm"]

EXAMPLES = """\b
Examples:
  feinsum db confirm --database team.sqlite
  feinsum db confirm --claims 5 --write
"""

PAGE = 500


def confirm(
    claims: Annotated[
        int, typer.Option(min=1, metavar="N", help="Maximum number of claims.")
    ] = 10,
    write: Write = False,
    device: Device = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Measure the quarantined facts with the highest claims here.

    The measurements are recorded and vouch for others: facts that claim no more are
    released. Exits with code 1 if a trial failed, or a claim was not reached within a
    factor of 2.
    """
    from feinsum.db.server import open_serving_store
    from feinsum.measure import open_device
    from feinsum.tuning.confirming import measure_again, winners

    here = open_device(device).device
    with open_serving_store(database, may_create=False) as store:
        chosen = winners(_waiting(store), here)[:claims]
        done: list[Confirmed] = []
        for fact in chosen if write else ():
            say(f"measuring {fact.spec} ...")
            done.append(measure_again(fact, store, device=device))
        states = {fact.id: store.trust(fact.id).is_quarantined for fact in chosen}
    seen = {one.claimed.id: one for one in done}
    documents = [_document(fact, seen.get(fact.id), states[fact.id]) for fact in chosen]
    if as_json:
        print_json(documents)
    else:
        _print(documents, is_written=write)
    if any(document["is_contradicted"] for document in documents):
        raise typer.Exit(FAILED)


def _waiting(store: ServingStore) -> Iterator[TuningRecord]:
    """The facts in quarantine that no one decided about, page by page."""
    from feinsum.db.sql.rows import record_of
    from feinsum.records import is_apart

    last = ""
    while page := store.page_of_quarantine(last, PAGE):
        last = page[-1].id
        found = (record_of(one.id, one.document) for one in page)
        yield from (record for record in found if not is_apart(record))


def _document(
    fact: TuningRecord, done: Confirmed | None, is_quarantined: bool
) -> dict[str, Any]:
    from feinsum.db.server.trust import AGREEMENT

    claimed = fact.measurement.speedup
    measured = done.measured.measurement.speedup if done and done.measured else None
    reached = measured is not None and claimed <= AGREEMENT * measured
    return {
        "id": fact.id,
        "spec": str(fact.spec),
        "claimed_speedup": claimed,
        "measured_speedup": measured,
        "problem": done.problem if done else "",
        "is_contradicted": done is not None and not reached,
        "is_quarantined": is_quarantined,
    }


def _print(documents: Sequence[dict[str, Any]], *, is_written: bool) -> None:
    if documents:
        print_table(
            (),
            ("claimed", "measured", "state", "record"),
            [
                (
                    to_digits(one["claimed_speedup"], 3),
                    _number(one["measured_speedup"]),
                    "waiting" if one["is_quarantined"] else "released",
                    one["id"][:ID_LENGTH],
                    one["spec"],
                )
                for one in documents
            ],
            last="recipe",
        )
    for one in documents:
        if one["problem"]:
            say(f"{one['id'][:ID_LENGTH]}: {one['problem']}")
    typer.echo(f"claims in quarantine for this device: {len(documents)}")
    if documents and not is_written:
        typer.echo("nothing was measured; measure them with --write")


def _number(value: float | None) -> str:
    return "-" if value is None else to_digits(value, 3)
