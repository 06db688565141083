"""``feinsum db gc`` and ``feinsum db rekey``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feinsum import words
from feinsum.cli.shared.failure import FAILED, say
from feinsum.cli.shared.options import AsJson, Database, Write
from feinsum.cli.shared.output import ID_LENGTH, print_json, print_table
from feinsum.cli.shared.progress import counted, counting

if TYPE_CHECKING:
    from rich.progress import Progress

    from feinsum.db.exchange import (
        Collected,
        GarbagePlan,
        Kind,
        OnProgress,
        RekeyPlan,
        Unreadable,
    )

GC_EXAMPLES = """\b
Examples:
  feinsum db gc
  feinsum db gc --keep 10 --write
"""

N_SHOWN = 20
"""How many facts are printed."""


def gc(
    keep: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Facts to keep besides those tied for the best, for each workload, "
            "device, driver, sizes and transform.",
        ),
    ] = 3,
    retracted: Annotated[
        bool,
        typer.Option("--retracted", help="Also remove retracted facts."),
    ] = False,
    write: Write = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the backup and the removed facts. Default: the folder of "
            "the database file; required for a server.",
        ),
    ] = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Remove facts that no look-up can prefer.

    First backs up the database and writes the removed facts to a file that
    'feinsum db import' reads. Device limits, trials and retractions stay.
    """
    from feinsum.db import open_store
    from feinsum.db.exchange import collect_garbage, find_garbage

    with open_store(database, may_create=False) as store:
        # The facts that are removed are written there first, so there must be one.
        backups = folder or (store.path.parent if store.path else None)
        if write and backups is None:
            raise typer.BadParameter("a database on a server needs --folder")
        with counting("reading ...") as step:
            # one workload at a time: facts of different ones never compete
            groups = (store.query(key) for key in store.workloads())
            plan = find_garbage(counted(groups, step), keep)
        # A retraction hides its fact for ever, so the fact itself is of no more use.
        if retracted:
            ids = tuple(fact.id for fact in store.retracted())
            plan = replace(plan, retracted=ids)
        collected = None
        if write and backups is not None and not plan.is_empty:
            collected = collect_garbage(store, plan, backups)
    if as_json:
        print_json(_garbage_document(plan, collected))
    else:
        _print_garbage(plan, collected)


def _garbage_document(
    plan: GarbagePlan, collected: Collected | None
) -> dict[str, object]:
    return {
        "n_records": plan.n_records,
        "surplus": [
            {**asdict(entry), "reason": entry.reason} for entry in plan.surplus
        ],
        "retracted": list(plan.retracted),
        "n_removed": collected.n_removed if collected else 0,
        "backup": str(collected.backup) if collected else None,
        "removed": str(collected.removed) if collected else None,
    }


def _print_garbage(plan: GarbagePlan, collected: Collected | None) -> None:
    if plan.surplus:
        print_table(
            ("record", "why"),
            (),
            [
                (entry.id[:ID_LENGTH], entry.reason, entry.recipe)
                for entry in plan.surplus[:N_SHOWN]
            ],
            last="recipe",
        )
    n_more = len(plan.surplus) - N_SHOWN
    if n_more > 0:
        typer.echo(f"and {n_more} more; --json has all")
    n = words.counted(plan.n_records, "record")
    typer.echo(f"{len(plan.surplus)} of {n} can be removed")
    if plan.retracted:
        typer.echo(f"{len(plan.retracted)} more are retracted and can be removed")
    if collected is None:
        advice = "" if plan.is_empty else "; remove them with --write"
        typer.echo(f"nothing was removed{advice}")
        return
    typer.echo(f"records removed: {collected.n_removed}")
    typer.echo(f"removed records: {collected.removed}")
    typer.echo(f"backup of the database: {collected.backup}")


REKEY_EXAMPLES = """\b
Examples:
  feinsum db rekey
  feinsum db rekey --write --database team.sqlite
"""


def rekey(
    write: Write = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Add facts and trials again under the current keys of their einsums.

    Keys change with the versions of the canonical form and the canonicalizer;
    documents under older keys stay, but are no longer found. Exits with code 1 if
    the einsum of a fact or trial cannot be read.
    """
    plan, n_added = _rekey(database, write, is_shown=not as_json)
    if as_json:
        print_json(_rekey_document(plan, write, n_added))
    else:
        _print_rekey(plan, write, n_added)
    _report_unreadable(plan.unreadable)
    if plan.unreadable:
        raise typer.Exit(FAILED)


def _rekey(
    database: str | None, write: bool, is_shown: bool
) -> tuple[RekeyPlan, Counter[Kind]]:
    """Plan and, if wanted, rekey, with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import Progress

    from feinsum.db import opened_store
    from feinsum.db.exchange import plan_rekey, rekey

    console = Console(stderr=True)
    # A bar would mix with JSON, and fill a log with lines.
    is_hidden = not (is_shown and console.is_terminal)
    with (
        opened_store(database) as store,
        Progress(console=console, transient=True, disable=is_hidden) as bar,
    ):
        plan = plan_rekey(store, _task(bar, "reading ..."))
        n_added: Counter[Kind] = Counter()
        if write:
            n_added = rekey(store, plan, _task(bar, "adding ..."))
    return plan, n_added


def _task(bar: Progress, description: str) -> OnProgress:
    task = bar.add_task(description, total=None)

    def show(n_done: int, n_total: int) -> None:
        bar.update(task, completed=n_done, total=n_total)

    return show


def _rekey_document(
    plan: RekeyPlan, write: bool, n_added: Counter[Kind]
) -> dict[str, Any]:
    return {
        "n_records": plan.n_records,
        "n_trials": plan.n_trials,
        "prefixes": [asdict(count) for count in plan.count()],
        "unreadable": [
            {
                "kind": entry.kind,
                "id": entry.id,
                "key": entry.old,
                "code": entry.problem.code,
                "message": str(entry.problem),
            }
            for entry in plan.unreadable
        ],
        "is_written": write,
        "n_added": n_added["record"],
        "n_trials_added": n_added["trial"],
    }


def _print_rekey(plan: RekeyPlan, write: bool, n_added: Counter[Kind]) -> None:
    counts = plan.count()
    if counts:
        print_table(
            ("kind", "from", "to"),
            ("number", "keys", "there", "missing", "unreadable"),
            [tuple(map(str, asdict(count).values())) for count in counts],
        )
    n_wrong = Counter(move.kind for move in plan.moves)
    n_wrong.update(entry.kind for entry in plan.unreadable)
    n_looked_at: dict[Kind, int] = {"record": plan.n_records, "trial": plan.n_trials}
    for kind, n in n_looked_at.items():
        typer.echo(f"{n - n_wrong[kind]} of {n} {kind}s have the current key")
    if write:
        numbers = f"records added: {n_added['record']}, trials: {n_added['trial']}"
        typer.echo(f"{numbers}; nothing was deleted or changed")
    elif plan.missing:
        typer.echo("nothing was written; use --write to add them")
    else:
        typer.echo("nothing was written; nothing needs to be added")


def _report_unreadable(unreadable: Iterable[Unreadable]) -> None:
    """Report each workload that is left in one line on stderr."""
    # The same text fails for each of its facts: one line says it once.
    left = Counter((e.kind, e.old, e.problem.code, str(e.problem)) for e in unreadable)
    for (kind, key, code, message), n in left.items():
        say(f"[{code}] {kind}s left under the key {key}: {n}; {message}")
