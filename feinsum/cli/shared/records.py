"""Facts and plans as commands print them: tables for people, documents for programs.

A row of :func:`print_records`, with a roofline::

    ms (IQR)         speed-up          Gop/s  roof   record        recipe
    0.5100 (0.012)   3.92 (3.80-4.01)  7.843  61.2%  0f7c2ab41d03  rowwise@1(block=64)
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from feinsum.cli.shared.output import ID_LENGTH, print_table, to_digits

if TYPE_CHECKING:
    from feinsum.bounds import Bound
    from feinsum.records import (
        DevicePeaks,
        Match,
        PlanRecord,
        Store,
        TuningRecord,
    )

Fractions: TypeAlias = Mapping[str, float]
"""Fractions of the roofline by record id."""

WIDTH = 80


def compute_fractions(records: Iterable[TuningRecord], store: Store) -> Fractions:
    """Return the fraction of the roofline that each record reaches.

    Records are omitted if ``store`` has no limits of their device, none for a dtype
    that they use, or implausible ones. Nothing is measured.
    """
    from feinsum.bounds import find_roofline_s

    peaks: dict[str, DevicePeaks | None] = {}
    fractions: dict[str, float] = {}
    for record in records:
        device = record.environment.device.id
        # one request per device of a service; most records share a device
        if device not in peaks:
            peaks[device] = store.peaks(device)
        if roof_s := find_roofline_s(record.measurement, peaks[device]):
            fractions[record.id] = roof_s / record.measurement.median_s
    return fractions


def bound_of_first(match: Match, store: Store) -> Bound | None:
    """Return the lower bounds of the best fact on its own device; None without one."""
    from feinsum.bounds import bound_record

    if not match.ranking:
        return None
    record = match.ranking[0]
    return bound_record(record, store.peaks(record.environment.device.id))


def bound_text(bound: Bound, median_s: float) -> str:
    """Format the least time of each level, or its bytes where no time is known.

    >>> from feinsum.bounds import MemoryLevel, compute_bound
    >>> from feinsum.ir import array, einsum
    >>> levels = [MemoryLevel("L1", 1000), MemoryLevel("DRAM", None, 1, 1e9)]
    >>> copied = einsum("ij->ji", array("A", (1000, 1000)))
    >>> bound_text(compute_bound(copied, {}, levels), 0.032)
    'at least: DRAM 16 ms (50%)'
    """
    from feinsum.bounds import compute_shares

    reached = compute_shares(bound, median_s)
    terms = [
        f"{cost.level.name} {cost.n_bytes * 1e-6:.4g} MB"
        if cost.seconds is None
        else f"{cost.level.name} {cost.seconds * 1e3:.4g} ms "
        f"({reached[cost.level.name]:.0%})"
        for cost in bound.levels
    ]
    if bound.operations_s is not None:
        time_s = bound.operations_s
        terms.append(f"arithmetic {time_s * 1e3:.4g} ms ({time_s / median_s:.0%})")
    return textwrap.fill(f"at least: {', '.join(terms)}", WIDTH)


def record_document(record: TuningRecord, fractions: Fractions) -> dict[str, Any]:
    """Summarize a record for JSON, with null for what is unknown or infinite."""
    measured = record.measurement
    return {
        "id": record.id,
        "spec": str(record.spec),
        "workload_text": record.workload_text,
        "median_s": measured.median_s,
        "spread_s": _drop_infinite(measured.spread_s),
        "speedup": _drop_infinite(measured.speedup),
        "speedup_interval": list(map(_drop_infinite, measured.speedup_interval)),
        "giga_operations_per_s": _drop_infinite(measured.giga_operations_per_s),
        "fraction_of_roofline": fractions.get(record.id),
        "sizes": dict(measured.sizes),
        "device": str(record.environment.device),
        "driver_version": record.environment.driver_version,
        "recorded_at": record.recorded_at,
    }


def _drop_infinite(value: float) -> float | None:
    """Replace infinity or nan, which JSON lacks, by None."""
    return value if math.isfinite(value) else None


def print_records(records: Iterable[TuningRecord], fractions: Fractions) -> None:
    """Print records in the order given, with a column of rooflines if one is known."""
    print_table(
        (),
        ("ms (IQR)", "speed-up", "Gop/s", *["roof"] * bool(fractions), "record"),
        [
            (
                format_median(record),
                format_speedup(record),
                to_digits(record.measurement.giga_operations_per_s),
                *[_format_percent(fractions.get(record.id))] * bool(fractions),
                record.id[:ID_LENGTH],
                str(record.spec),
            )
            for record in records
        ],
        last="recipe",
    )


def format_median(record: TuningRecord) -> str:
    """Format the median in milliseconds and, in brackets, the interquartile range."""
    measured = record.measurement
    spread = to_digits(measured.spread_s * 1e3, 2) if measured.spread_s else "0"
    return f"{to_digits(measured.median_s * 1e3)} ({spread})"


def format_speedup(record: TuningRecord) -> str:
    """Format the speed-up and, in brackets, its interval."""
    measured = record.measurement
    low, high = (to_digits(x, 3) for x in measured.speedup_interval)
    return f"{to_digits(measured.speedup, 3)} ({low}-{high})"


def _format_percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{to_digits(fraction * 100, 3)}%"


def plan_documents(records: Iterable[PlanRecord]) -> list[dict[str, Any]]:
    """Summarize each plan for JSON."""
    return [
        {
            "id": record.id,
            "plan_id": record.plan_id,
            "ranks": record.fleet.ranks,
            "hosts": len(record.fleet.hosts),
            "load": record.fleet.load,
            "engine": record.fleet.engine,
            "device": str(record.fleet.device),
            "extents": _get_extents(record),
            "moved": record.counted,
            "median_s": record.median_s,
            "recorded_at": record.recorded_at,
        }
        for record in sorted(records, key=_plan_order)
    ]


def print_plans(records: Sequence[PlanRecord]) -> None:
    """Print plans by their ranks."""
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
                ",".join(f"{i}={n}" for i, n in _get_extents(record).items()),
            )
            for record in sorted(records, key=_plan_order)
        ],
        last="extents",
    )


def _plan_order(record: PlanRecord) -> tuple[int, bool, float, int, str]:
    """Order plans by ranks, then by time, those without a time last."""
    median_s = record.median_s
    ranks = record.fleet.ranks
    return ranks, median_s is None, median_s or 0.0, record.counted, record.id


def _get_extents(record: PlanRecord) -> dict[str, int]:
    """Return the extents, named as in the plan; none if it cannot be read here."""
    from feinsum.distributed.facts import get_inner_plan, read_plan
    from feinsum.errors import FeinsumError

    try:
        return dict(get_inner_plan(read_plan(record.plan)).extents)
    except FeinsumError:
        return {}
