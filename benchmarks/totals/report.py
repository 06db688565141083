"""Tables of totals and calls, and the JSON file of all measurements."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.experiments.machine import describe_processor
from benchmarks.tables import make_table
from benchmarks.totals.contestants import CONTESTANTS, OURS
from benchmarks.totals.processes import Conditions
from benchmarks.totals.summary import (
    WHICH,
    Result,
    Totals,
    WorstCall,
    compute_overhead_us,
)

__all__ = ["show_totals", "write_totals"]

NONE = "-"
WIDTH = 120


def show_totals(
    totals: Totals, contestants: Sequence[str], conditions: Conditions
) -> None:
    """Print the totals of each program, their means, and calls if requested."""
    console = Console(width=WIDTH, highlight=False, markup=False)
    console.print(f"{describe_processor()}, numpy {version('numpy')}")
    console.print(f"seconds from start to end; {_describe_conditions(conditions)}")
    console.print(_tabulate_totals(totals.results, contestants))
    if conditions.calls:
        console.print(_tabulate_calls(totals.results))
    for result in totals.results:
        if result.unlike:
            console.print(f"results differ: {result.program}: {result.unlike}")


def write_totals(
    path: Path, totals: Totals, conditions: Conditions, rounds: int
) -> None:
    """Write all measurements as JSON."""
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": describe_processor(),
        "versions": {"python": platform.python_version(), **_list_versions()},
        "rounds": rounds,
        **asdict(conditions),
    }
    programs = {
        result.program: {
            name: dict(zip(WHICH, map(asdict, runs), strict=False))
            for name, runs in result.runs.items()
        }
        for result in totals.results
    }
    document = {"about": about, "programs": programs, "failures": totals.failures}
    path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def _describe_conditions(conditions: Conditions) -> str:
    copies = (
        f", the slowest of {conditions.at_once} at once"
        if conditions.at_once > 1
        else ""
    )
    sizes = "tiny" if conditions.tiny else "full"
    return f"{sizes} sizes{copies}; ratios below 1: ours wins"


def _list_versions() -> dict[str, str]:
    versions = {}
    for contestant in CONTESTANTS.values():
        try:
            versions[contestant.name] = version(contestant.module)
        except PackageNotFoundError:
            continue
    return versions


def _tabulate_totals(results: Sequence[Result], contestants: Sequence[str]) -> Table:
    """Tabulate seconds of all first processes, and of ours, with ratios."""
    n_kinds = max((len(result.runs.get(OURS, ())) for result in results), default=0)
    later = range(1, n_kinds)
    heads = (
        *(f"first: {name}" for name in contestants),
        "ratio to best rival",
        *(
            head
            for k in later
            for head in (f"{WHICH[k]}: {OURS}", "ratio to best rival")
        ),
        f"peak MB: {OURS}",
        "ratio to least rival",
    )
    table = make_table(["program"], heads)
    for result in results:
        ours = result.runs.get(OURS, ())
        firsts = [result.runs.get(name) for name in contestants]
        table.add_row(
            result.program,
            *(_format_number(runs[0].total_s if runs else None) for runs in firsts),
            _format_number(result.time_ratio(0)),
            *(
                _format_number(number)
                for k in later
                for number in (
                    ours[k].total_s if k < len(ours) else None,
                    result.time_ratio(k),
                )
            ),
            f"{ours[0].peak_bytes / 1e6:.0f}" if ours else NONE,
            _format_number(result.peak_ratio),
        )
    table.add_section()
    table.add_row(
        "geometric mean",
        *("" for _ in contestants),
        _format_mean([result.time_ratio(0) for result in results]),
        *(
            cell
            for k in later
            for cell in ("", _format_mean([result.time_ratio(k) for result in results]))
        ),
        "",
        _format_mean([result.peak_ratio for result in results]),
    )
    return table


def _tabulate_calls(results: Sequence[Result]) -> Table:
    """Tabulate the worst call of each process of ours, and the overhead of calls."""
    heads = ("worst call", "ms", "numpy ms", "ratio less 200 us", "us beside tiny")
    table = make_table(["program"], ("process", *heads))
    for result in results:
        for which, run in zip(WHICH, result.runs.get(OURS, ()), strict=False):
            worst = WorstCall.of(run)
            overhead = compute_overhead_us(run)
            table.add_row(
                result.program,
                which,
                *_format_worst(worst),
                NONE if overhead is None else f"{overhead:.1f}",
            )
    return table


def _format_worst(worst: WorstCall | None) -> list[str]:
    if worst is None:
        return [NONE] * 4
    times = (f"{1e3 * x:.3f}" for x in (worst.seconds, worst.numpy_s))
    return [_shorten(worst.subscripts), *times, _format_number(worst.ratio)]


def _shorten(subscripts: str) -> str:
    """Shorten subscripts, which fill lines for networks.

    >>> _shorten("ij,jk->ik")
    'ij,jk->ik'
    """
    return subscripts if len(subscripts) <= 30 else f"{subscripts[:27]}..."


def _format_number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _format_mean(ratios: Sequence[float | None]) -> Any:
    finite = [ratio for ratio in ratios if ratio is not None]
    return f"{geometric_mean(finite):.2f}" if finite else NONE
