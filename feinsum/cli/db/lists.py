"""``feinsum db workloads`` and ``feinsum db trials``."""

from __future__ import annotations

from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import print_json, print_table, to_digits
from feinsum.words import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from feinsum.canonical import WorkloadKey
    from feinsum.db import SqlStore
    from feinsum.records import Trial

WORKLOADS_EXAMPLES = """\b
Examples:
  feinsum db workloads
  feinsum db workloads --limit 10 --database team.sqlite --json
"""

TRIALS_EXAMPLES = """\b
Examples:
  feinsum db trials fe2-nauty2.8-0f7c
  feinsum db trials fe2-nauty2.8-0f7c --json
"""

KEY_LENGTH = 24
"""How much of a key is shown: its version, and enough to tell workloads apart."""

Limit: TypeAlias = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Maximum number of rows. Default: all."),
]
Key: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="Key of the workload, or a prefix, as listed by 'feinsum db workloads'.",
        show_default=False,
    ),
]


def workloads(
    limit: Limit = None, database: Database = None, as_json: AsJson = False
) -> None:
    """List the workloads of a database, with their facts and trials.

    Most facts first. The speed-up is the highest on record.
    """
    from feinsum.db import open_store

    with open_store(database, may_create=False) as store:
        counts = store.listed_workloads()
    shown = counts[:limit]
    if as_json:
        print_json({"workloads": [asdict(count) for count in shown]})
        return
    print_table(
        ("key",),
        ("facts", "devices", "trials", "speed-up"),
        [
            (
                count.key[:KEY_LENGTH],
                f"{count.n_records}",
                f"{count.n_devices}",
                f"{count.n_trials}",
                _digits(count.highest_speedup),
                count.text,
            )
            for count in shown
        ],
        last="einsum",
    )
    typer.echo(f"workloads: {len(counts)}")


def trials(
    key: Key, limit: Limit = None, database: Database = None, as_json: AsJson = False
) -> None:
    """List the trials of a workload, the fastest first.

    The ratio is relative to the untransformed kernel. Failed trials come last, with
    the reason.
    """
    from feinsum.db import open_store

    with open_store(database, may_create=False) as store:
        workload = _workload(store, key)
        trials = sorted(store.trials(workload), key=_sort_key)
    shown = trials[:limit]
    if as_json:
        print_json({"key": workload, "trials": list(map(_document, shown))})
    else:
        _print(workload, len(trials), shown)


def _workload(store: SqlStore, start: str) -> WorkloadKey:
    """Return the only workload with trials whose key begins so."""
    keys = [key for key in store.tried() if key.startswith(start)]
    if len(keys) == 1:
        return keys[0]
    raise typer.BadParameter(
        f"{start!r} begins the keys of {counted(len(keys), 'workload')} with "
        "trials, expected one; list them with 'feinsum db workloads'",
        param_hint="KEY",
    )


def _sort_key(trial: Trial) -> tuple[float, str, str]:
    ratio = inf if trial.ratio is None else trial.ratio
    return ratio, trial.recorded_at, trial.id


def _document(trial: Trial) -> dict[str, Any]:
    return {
        "spec": str(trial.spec),
        "status": trial.status,
        "message": trial.message,
        "median_s": trial.median_s,
        "ratio": trial.ratio,
        "sizes": dict(trial.sizes),
        "device": str(trial.environment.device),
        "driver_version": trial.environment.driver_version,
        "recorded_at": trial.recorded_at,
        "id": trial.id,
    }


def _print(workload: str, n_trials: int, shown: Sequence[Trial]) -> None:
    typer.echo(f"key: {workload}\ncanonical: {shown[0].workload_text}")
    print_table(
        ("status",),
        ("ms", "ratio", "device", "tried"),
        [
            (
                trial.status,
                _digits(trial.median_s and trial.median_s * 1e3),
                _digits(trial.ratio),
                trial.environment.device.name,
                trial.recorded_at[:10],
                str(trial.spec),
            )
            for trial in shown
        ],
        last="recipe",
    )
    for trial in shown:
        if trial.message:
            typer.echo(f"{trial.spec}: {' '.join(trial.message.split())}")
    typer.echo(f"trials: {n_trials}")


def _digits(value: float | None) -> str:
    return "-" if value is None else to_digits(value, 3)
