"""``feinsum db stats``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import print_json, print_table, to_digits

if TYPE_CHECKING:
    from datetime import datetime

    from feinsum.db.sql import DriverCount, Statistics, StoreInfo

EXAMPLES = """\b
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
        print_json(_document(info, statistics))
    else:
        _print(info, statistics)


def _document(info: StoreInfo, statistics: Statistics) -> dict[str, Any]:
    def plain(count: Any) -> dict[str, Any]:
        values = asdict(count)
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


def _print(info: StoreInfo, statistics: Statistics) -> None:
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
