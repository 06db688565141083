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
        info, found = store.info(), store.statistics()
    if as_json:
        print_json(_document(info, found))
    else:
        _print(info, found)


def _document(info: StoreInfo, found: Statistics) -> dict[str, Any]:
    def plain(count: Any) -> dict[str, Any]:
        values = asdict(count)
        times = {k: v.isoformat() for k, v in values.items() if k in _TIMES}
        return values | times

    return {
        **asdict(info),
        "oldest": found.oldest and found.oldest.isoformat(),
        "newest": found.newest and found.newest.isoformat(),
        "drivers": [plain(count) for count in found.drivers],
        "transforms": [plain(count) for count in found.transforms],
    }


_TIMES = ("oldest", "newest")


def _print(info: StoreInfo, found: Statistics) -> None:
    typer.echo(f"{info.location}: schema {info.schema_version}")
    typer.echo(f"records: {info.n_records}, trials: {info.n_trials}")
    typer.echo(f"workloads: {info.n_workloads}, devices: {info.n_devices}")
    typer.echo(f"bytes: {info.size_bytes}")
    typer.echo(f"recorded: {_day(found.oldest)} to {_day(found.newest)}")
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
            for count in found.drivers
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
            for count in found.transforms
        ],
    )


def _device(count: DriverCount) -> str:
    """A device with its microarchitecture, as far as that is known."""
    known = f", {count.microarchitecture}" if count.microarchitecture else ""
    return f"{count.device} ({count.platform}){known}"


def _day(time: datetime | None) -> str:
    return f"{time:%Y-%m-%d}" if time else "never"
