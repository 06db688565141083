"""``feinsum db rekey``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from feinsum.cli.shared.failure import FAILED, say
from feinsum.cli.shared.options import AsJson, Database, Write
from feinsum.cli.shared.output import print_json, print_table

if TYPE_CHECKING:
    from rich.progress import Progress

    from feinsum.db.exchange import Kind, OnProgress, RekeyPlan, Unreadable

EXAMPLES = """\b
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
        print_json(_document(plan, write, n_added))
    else:
        _print(plan, write, n_added)
    _report(plan.unreadable)
    if plan.unreadable:
        raise typer.Exit(FAILED)


def _rekey(
    database: str | None, write: bool, is_shown: bool
) -> tuple[RekeyPlan, Counter[Kind]]:
    """The plan, and how much was added; with a progress bar on stderr."""
    from rich.console import Console
    from rich.progress import Progress

    from feinsum.db import opened_store
    from feinsum.db.exchange import plan_rekey, rekey

    console = Console(stderr=True)
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


def _document(plan: RekeyPlan, write: bool, n_added: Counter[Kind]) -> dict[str, Any]:
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


def _print(plan: RekeyPlan, write: bool, n_added: Counter[Kind]) -> None:
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


def _report(unreadable: Iterable[Unreadable]) -> None:
    """A line on stderr for every workload that is left."""
    left = Counter((e.kind, e.old, e.problem.code, str(e.problem)) for e in unreadable)
    for (kind, key, code, message), n in left.items():
        say(f"[{code}] {kind}s left under the key {key}: {n}; {message}")
