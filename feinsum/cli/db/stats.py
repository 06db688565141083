"""``feinsum db stats``: totals, workloads and trials of a database."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import print_document, print_table, to_digits
from feinsum.words import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from feinsum.canonical import WorkloadKey
    from feinsum.db import SqlStore
    from feinsum.db.sql import DriverCount, Statistics, WorkloadCount
    from feinsum.records import Trial

EXAMPLES = """\b
Examples:
  feinsum db stats
  feinsum db stats --by-workload --limit 10 --database team.sqlite
  feinsum db stats --trials-of fe2-nauty2.8-0f7c --json
"""

KEY_LENGTH = 24
"""Characters of a key to show: its version, and enough to distinguish workloads."""


def stats(
    by_workload: Annotated[
        bool,
        typer.Option(
            "--by-workload",
            help="List the workloads instead, those with most facts first.",
        ),
    ] = False,
    trials_of: Annotated[
        str | None,
        typer.Option(
            "--trials-of",
            metavar="KEY",
            help="List the trials of the workload whose key begins so, fastest first.",
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Maximum number of rows. Default: all."),
    ] = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Count facts by device and driver, and by transform.

    The speed-up is the highest on record; the ratio of a trial is relative to the
    untransformed kernel. Failed trials come last, with the reason.
    """
    from feinsum.db import open_store

    if by_workload and trials_of is not None:
        raise typer.BadParameter("expected --by-workload or --trials-of KEY, not both")
    with open_store(database, may_create=False) as store:
        if by_workload:
            _print_workloads(store.listed_workloads(), limit, as_json)
        elif trials_of is not None:
            key = _find_workload(store, trials_of)
            _print_trials(key, sorted(store.trials(key), key=_sort_key), limit, as_json)
        else:
            statistics = store.stats()
            print_document(statistics, as_json, lambda: _print_stats(statistics))


def _print_stats(totals: Statistics) -> None:
    typer.echo(f"{totals.location}: schema {totals.schema_version}")
    typer.echo(f"records: {totals.n_records}, trials: {totals.n_trials}")
    typer.echo(f"plans: {totals.n_plans}, retractions: {totals.n_retractions}")
    typer.echo(f"workloads: {totals.n_workloads}, devices: {totals.n_devices}")
    typer.echo(f"bytes: {totals.size_bytes}")
    typer.echo(
        f"recorded: {_format_day(totals.oldest)} to {_format_day(totals.newest)}"
    )
    print_table(
        ("device", "driver"),
        ("workloads", "records", "oldest", "newest"),
        [
            (
                _format_device(count),
                count.driver_version,
                f"{count.n_workloads}",
                f"{count.n_records}",
                _format_day(count.oldest),
                _format_day(count.newest),
            )
            for count in totals.drivers
        ],
    )
    print_table(
        ("transform",),
        ("workloads", "records", "highest speed-up"),
        [
            (
                f"{count.name}@{count.version}",
                f"{count.n_workloads}",
                f"{count.n_records}",
                to_digits(count.highest_speedup, 3),
            )
            for count in totals.transforms
        ],
    )


def _format_device(count: DriverCount) -> str:
    """Return a device with its microarchitecture, if that is known."""
    design = f", {count.microarchitecture}" if count.microarchitecture else ""
    return f"{count.device} ({count.platform}){design}"


def _format_day(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d}" if time else "never"


def _format_digits(value: float | None) -> str:
    return "-" if value is None else to_digits(value, 3)


def _print_workloads(
    counts: Sequence[WorkloadCount], limit: int | None, as_json: bool
) -> None:
    shown = counts[:limit]  # the total counts all of them
    rows = [
        (
            count.key[:KEY_LENGTH],
            f"{count.n_records}",
            f"{count.n_devices}",
            f"{count.n_trials}",
            _format_digits(count.highest_speedup),
            count.text,
        )
        for count in shown
    ]

    def show() -> None:
        headings = ("facts", "devices", "trials", "speed-up")
        print_table(("key",), headings, rows, last="einsum")
        typer.echo(f"workloads: {len(counts)}")

    print_document({"workloads": shown}, as_json, show)


def _find_workload(store: SqlStore, start: str) -> WorkloadKey:
    """Find the only workload with trials whose key begins like this."""
    keys = [key for key in store.tried() if key.startswith(start)]
    # A prefix of several keys is refused: the trials could belong to another workload.
    if len(keys) == 1:
        return keys[0]
    raise typer.BadParameter(
        f"{start!r} begins the keys of {format_count(len(keys), 'workload')} with "
        "trials, expected one; list them with 'feinsum db stats --by-workload'",
        param_hint="--trials-of",
    )


def _sort_key(trial: Trial) -> tuple[float, str, str]:
    # A failed trial has no ratio, and comes last.
    ratio = inf if trial.ratio is None else trial.ratio
    return ratio, trial.recorded_at, trial.id


def _make_trial_document(trial: Trial) -> dict[str, Any]:
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


def _print_trials(
    workload: str, trials: Sequence[Trial], limit: int | None, as_json: bool
) -> None:
    shown = trials[:limit]
    rows = [
        (
            trial.status,
            _format_digits(trial.median_s and trial.median_s * 1e3),
            _format_digits(trial.ratio),
            trial.environment.device.name,
            trial.recorded_at[:10],
            str(trial.spec),
        )
        for trial in shown
    ]

    def show() -> None:
        typer.echo(f"key: {workload}\ncanonical: {shown[0].workload_text}")
        headings = ("ms", "ratio", "device", "tried")
        print_table(("status",), headings, rows, last="recipe")
        for trial in shown:
            # Messages of compilers have many lines, which would break the table.
            if trial.message:
                typer.echo(f"{trial.spec}: {' '.join(trial.message.split())}")
        typer.echo(f"trials: {len(trials)}")

    document = {"key": workload, "trials": list(map(_make_trial_document, shown))}
    print_document(document, as_json, show)
