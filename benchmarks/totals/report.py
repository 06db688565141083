"""The table of totals, that of calls, and a file with all numbers."""

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

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.experiments.machine import processor
from benchmarks.totals.contestants import CONTESTANTS, OURS
from benchmarks.totals.processes import How
from benchmarks.totals.summary import WHICH, Found, Result, WorstCall, overhead_us

__all__ = ["show", "write"]

NONE = "-"
WIDTH = 120


def show(totals: Found, contestants: Sequence[str], conditions: How) -> None:
    """Totals of each program, the means of all, and calls where asked for."""
    console = Console(width=WIDTH, highlight=False, markup=False)
    console.print(f"{processor()}, numpy {version('numpy')}")
    console.print(f"seconds from start to end; {_how(conditions)}")
    console.print(_totals(totals.results, contestants))
    if conditions.calls:
        console.print(_calls(totals.results))
    for result in totals.results:
        if result.unlike:
            console.print(f"results differ: {result.program}: {result.unlike}")


def write(path: Path, totals: Found, conditions: How, rounds: int) -> None:
    """Everything as JSON."""
    about = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "processor": processor(),
        "versions": {"python": platform.python_version(), **_versions()},
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


def _how(conditions: How) -> str:
    copies = (
        f", the slowest of {conditions.at_once} at once"
        if conditions.at_once > 1
        else ""
    )
    sizes = "tiny" if conditions.tiny else "full"
    return f"{sizes} sizes{copies}; ratios below 1: ours wins"


def _versions() -> dict[str, str]:
    ratios = {}
    for contestant in CONTESTANTS.values():
        try:
            ratios[contestant.name] = version(contestant.module)
        except PackageNotFoundError:
            continue
    return ratios


def _table(*heads: str) -> Table:
    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column(heads[0], no_wrap=True)
    for head in heads[1:]:
        table.add_column(head, justify="right")
    return table


def _totals(results: Sequence[Result], contestants: Sequence[str]) -> Table:
    """Seconds of all first processes, and of ours; each kind with its ratio."""
    n_kinds = max((len(result.runs.get(OURS, ())) for result in results), default=0)
    later = range(1, n_kinds)
    table = _table(
        "program",
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
    for result in results:
        ours = result.runs.get(OURS, ())
        firsts = [result.runs.get(name) for name in contestants]
        table.add_row(
            result.program,
            *(_number(runs[0].total_s if runs else None) for runs in firsts),
            _number(result.time_ratio(0)),
            *(
                _number(number)
                for k in later
                for number in (
                    ours[k].total_s if k < len(ours) else None,
                    result.time_ratio(k),
                )
            ),
            f"{ours[0].peak_bytes / 1e6:.0f}" if ours else NONE,
            _number(result.peak_ratio),
        )
    table.add_section()
    table.add_row(
        "geometric mean",
        *("" for _ in contestants),
        _mean([result.time_ratio(0) for result in results]),
        *(
            cell
            for k in later
            for cell in ("", _mean([result.time_ratio(k) for result in results]))
        ),
        "",
        _mean([result.peak_ratio for result in results]),
    )
    return table


def _calls(results: Sequence[Result]) -> Table:
    """The worst call of each process of ours, and what tiny calls take."""
    heads = ("worst call", "ms", "numpy ms", "ratio less 200 us", "us beside tiny")
    table = _table("program", "process", *heads)
    for result in results:
        for which, run in zip(WHICH, result.runs.get(OURS, ()), strict=False):
            worst = WorstCall.of(run)
            overhead = overhead_us(run)
            table.add_row(
                result.program,
                which,
                *_worst(worst),
                NONE if overhead is None else f"{overhead:.1f}",
            )
    return table


def _worst(worst: WorstCall | None) -> list[str]:
    if worst is None:
        return [NONE] * 4
    times = (f"{1e3 * x:.3f}" for x in (worst.seconds, worst.numpy_s))
    return [_short(worst.subscripts), *times, _number(worst.ratio)]


def _short(subscripts: str) -> str:
    """Those of networks fill lines.

    >>> _short("ij,jk->ik")
    'ij,jk->ik'
    """
    return subscripts if len(subscripts) <= 30 else f"{subscripts[:27]}..."


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _mean(ratios: Sequence[float | None]) -> Any:
    finite = [ratio for ratio in ratios if ratio is not None]
    return f"{geometric_mean(finite):.2f}" if finite else NONE
