"""``feinsum db diff`` and ``feinsum db merge``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from feinsum.cli.shared.failure import DIFFERENT, FAILED, report_bad
from feinsum.cli.shared.kinds import counted_kinds
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    WithImplausible,
    WithoutRetractions,
)
from feinsum.cli.shared.output import ID_LENGTH, print_json, print_table
from feinsum.cli.shared.progress import counting

if TYPE_CHECKING:
    from feinsum.db.exchange import Difference

DIFF_EXAMPLES = """\b
Examples:
  feinsum db diff mine.sqlite team.sqlite
  feinsum db diff mine.sqlite postgresql://ada@host/facts --json
"""

MERGE_EXAMPLES = """\b
Examples:
  feinsum db merge laptop.sqlite cluster.sqlite
  feinsum db merge mine.sqlite --database postgresql://ada@host/facts
"""

N_SHOWN = 10
"""How many ids are printed of a kind."""

DatabaseA = Annotated[
    str,
    typer.Argument(metavar="A", help="A database: path or URL.", show_default=False),
]
DatabaseB = Annotated[
    str, typer.Argument(metavar="B", help="Another database.", show_default=False)
]


def diff(a: DatabaseA, b: DatabaseB, as_json: AsJson = False) -> None:
    """Compare two databases: list what each has and the other lacks.

    Exits with code 1 if they differ.
    """
    from feinsum.db import opened_documents
    from feinsum.db.exchange import compare

    with (
        opened_documents(a, is_read_only=True) as store_a,
        opened_documents(b, is_read_only=True) as store_b,
    ):
        differences = compare(store_a, store_b)
    is_same = all(difference.is_empty for difference in differences)
    if as_json:
        document = {difference.kind: asdict(difference) for difference in differences}
        print_json({"is_same": is_same, "kinds": document})
    else:
        _print(differences)
    if not is_same:
        raise typer.Exit(DIFFERENT)


def merge(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Databases to add: paths or URLs, opened read-only.",
            show_default=False,
        ),
    ],
    with_implausible: WithImplausible = False,
    without_retractions: WithoutRetractions = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Add the facts, plans, limits, trials and retractions of other databases.

    Nothing is changed or removed, and the order does not matter. Facts that any of
    them retracts disappear from look-ups. Implausible documents are skipped and named
    on stderr; the command then exits with code 1.
    """
    from contextlib import ExitStack

    from feinsum.db import opened_documents
    from feinsum.db.exchange import Bad, merge
    from feinsum.records import check_plausible, unchecked

    n_new: Counter[str] = Counter()
    left_out: list[Bad] = []
    check = unchecked if with_implausible else check_plausible
    with ExitStack() as stack:
        opened = [
            stack.enter_context(opened_documents(source, is_read_only=True))
            for source in sources
        ]
        target = stack.enter_context(opened_documents(database, may_create=True))
        step = stack.enter_context(counting("adding ..."))
        wanted = not without_retractions
        for source in opened:
            n_new.update(
                merge(
                    target,
                    source,
                    step,
                    on_bad=left_out.append,
                    check=check,
                    has_retractions=wanted,
                )
            )
    for bad in left_out:
        report_bad(bad)
    if as_json:
        print_json({"n_new": n_new, "n_left_out": len(left_out)})
    else:
        for name, number in counted_kinds(n_new):
            typer.echo(f"{name} added: {number}")
    if left_out:
        raise typer.Exit(FAILED)


def _print(differences: Sequence[Difference]) -> None:
    print_table(
        ("kind",),
        ("in both", "only in A", "only in B"),
        [
            (d.kind, f"{d.n_both}", f"{len(d.only_a)}", f"{len(d.only_b)}")
            for d in differences
        ],
    )
    for difference in differences:
        for name, ids in (("A", difference.only_a), ("B", difference.only_b)):
            for document_id in ids[:N_SHOWN]:
                typer.echo(
                    f"only in {name}: {difference.kind} {document_id[:ID_LENGTH]}"
                )
            if len(ids) > N_SHOWN:
                typer.echo(f"and {len(ids) - N_SHOWN} more; --json has all")
