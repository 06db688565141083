"""Plans that were recorded: as a table, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from feinsum.cli.shared.output import ID_LENGTH, print_table, to_digits

if TYPE_CHECKING:
    from feinsum.records import PlanRecord


def _sorted(records: Sequence[PlanRecord]) -> list[PlanRecord]:
    """Those of few ranks first, and of these the fastest."""

    def place(record: PlanRecord) -> tuple[int, bool, float, int, str]:
        median_s = record.median_s
        return (
            record.fleet.ranks,
            median_s is None,
            median_s or 0.0,
            record.counted,
            record.id,
        )

    return sorted(records, key=place)


def plan_documents(records: Sequence[PlanRecord]) -> list[dict[str, Any]]:
    """Each in short."""
    return [
        {
            "id": record.id,
            "plan_id": record.plan_id,
            "ranks": record.fleet.ranks,
            "hosts": len(record.fleet.hosts),
            "load": record.fleet.load,
            "engine": record.fleet.engine,
            "device": str(record.fleet.device),
            "extents": _extents(record),
            "moved": record.counted,
            "median_s": record.median_s,
            "recorded_at": record.recorded_at,
        }
        for record in _sorted(records)
    ]


def print_plans(records: Sequence[PlanRecord]) -> None:
    """A table of plans, by their ranks."""
    print_table(
        (),
        ("ranks", "hosts", "engine", "ms", "moved", "plan"),
        [
            (
                f"{record.fleet.ranks}",
                f"{len(record.fleet.hosts)}",
                record.fleet.engine,
                "-" if record.median_s is None else to_digits(record.median_s * 1e3),
                f"{record.counted:,}",
                record.id[:ID_LENGTH],
                ",".join(f"{i}={n}" for i, n in _extents(record).items()),
            )
            for record in _sorted(records)
        ],
        last="extents",
    )


def _extents(record: PlanRecord) -> dict[str, int]:
    """Extents of the indices, named as in the plan; none if it cannot be read here."""
    from feinsum.distributed.facts import plan_in, read_plan
    from feinsum.errors import FeinsumError

    try:
        return dict(plan_in(read_plan(record.plan)).extents)
    except FeinsumError:
        return {}
