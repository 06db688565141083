"""``feinsum db workloads``, ``feinsum db trials`` and ``feinsum db stats``."""

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
    from datetime import datetime

    from feinsum.canonical import WorkloadKey
    from feinsum.db import SqlStore
    from feinsum.db.sql import DriverCount, Statistics, StoreInfo
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
    shown = counts[:limit]  # the total below counts all of them
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
        print_json({"key": workload, "trials": list(map(_trial_document, shown))})
    else:
        _print_trials(workload, len(trials), shown)


def _workload(store: SqlStore, start: str) -> WorkloadKey:
    """Return the only workload with trials whose key begins so."""
    keys = [key for key in store.tried() if key.startswith(start)]
    # A prefix of several keys is refused: the trials would be of another workload.
    if len(keys) == 1:
        return keys[0]
    raise typer.BadParameter(
        f"{start!r} begins the keys of {counted(len(keys), 'workload')} with "
        "trials, expected one; list them with 'feinsum db workloads'",
        param_hint="KEY",
    )


def _sort_key(trial: Trial) -> tuple[float, str, str]:
    # A failed trial has no ratio, and comes last.
    ratio = inf if trial.ratio is None else trial.ratio
    return ratio, trial.recorded_at, trial.id


def _trial_document(trial: Trial) -> dict[str, Any]:
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


def _print_trials(workload: str, n_trials: int, shown: Sequence[Trial]) -> None:
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
        # Messages of compilers have many lines, which would break the table.
        if trial.message:
            typer.echo(f"{trial.spec}: {' '.join(trial.message.split())}")
    typer.echo(f"trials: {n_trials}")


def _digits(value: float | None) -> str:
    return "-" if value is None else to_digits(value, 3)


STATS_EXAMPLES = """\b
Examples:
  feinsum db stats
  feinsum db stats --database team.sqlite --json
"""


def stats(database: Database = None, as_json: AsJson = False) -> None:
    """Count facts by device and driver, and by transform."""
    from feinsum.db import open_store

    with open_store(database, may_create=False) as store:
        info, statistics = store.info(), store.statistics()
    if as_json:
        print_json(_stats_document(info, statistics))
    else:
        _print_stats(info, statistics)


def _stats_document(info: StoreInfo, statistics: Statistics) -> dict[str, Any]:
    def plain(count: Any) -> dict[str, Any]:
        values = asdict(count)
        # JSON has no type for times
        times = {k: v.isoformat() for k, v in values.items() if k in _TIMES}
        return values | times

    return {
        **asdict(info),
        "oldest": statistics.oldest and statistics.oldest.isoformat(),
        "newest": statistics.newest and statistics.newest.isoformat(),
        "drivers": [plain(count) for count in statistics.drivers],
        "transforms": [plain(count) for count in statistics.transforms],
    }


_TIMES = ("oldest", "newest")


def _print_stats(info: StoreInfo, statistics: Statistics) -> None:
    typer.echo(f"{info.location}: schema {info.schema_version}")
    typer.echo(f"records: {info.n_records}, trials: {info.n_trials}")
    typer.echo(f"workloads: {info.n_workloads}, devices: {info.n_devices}")
    typer.echo(f"bytes: {info.size_bytes}")
    typer.echo(f"recorded: {_day(statistics.oldest)} to {_day(statistics.newest)}")
    print_table(
        ("device", "driver"),
        ("workloads", "records", "oldest", "newest"),
        [
            (
                _device(count),
                count.driver_version,
                f"{count.n_workloads}",
                f"{count.n_records}",
                _day(count.oldest),
                _day(count.newest),
            )
            for count in statistics.drivers
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
            for count in statistics.transforms
        ],
    )


def _device(count: DriverCount) -> str:
    """Return a device with its microarchitecture, if that is known."""
    design = f", {count.microarchitecture}" if count.microarchitecture else ""
    return f"{count.device} ({count.platform}){design}"


def _day(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d}" if time else "never"
