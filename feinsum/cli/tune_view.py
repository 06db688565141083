"""What a tuning shows: a progress bar and a table, or lines of JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from statistics import median
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.text import Text

from feinsum.cli.fractions import Fractions
from feinsum.cli.output import print_json, print_records, record_document, to_digits
from feinsum.records import TuningRecord
from feinsum.tune import TrialOutcome, TuningProgress, TuningReport

__all__ = ["JsonLines", "ProgressBar"]


class JsonLines(nullcontext[None]):
    """One JSON object per line and event: every trial, then the facts."""

    def show(self, progress: TuningProgress) -> None:
        """After a trial."""
        best = progress.best
        event = {
            "event": "trial",
            "n_done": progress.n_done,
            "n_trials": progress.n_trials,
            **_trial_document(progress.outcome),
            "best_spec": None if best is None else str(best.spec),
            "best_median_s": None if best is None else best.median_s,
        }
        print_json(event, is_line=True)

    def finish(self, report: TuningReport, fractions: Fractions) -> None:
        """At the end of all trials."""
        event = {
            "event": "recorded",
            "key": report.problem.form.key,
            "canonical": report.problem.workload_text,
            "sizes": dict(report.problem.sizes),
            "records": _documents(report.records, fractions),
        }
        print_json(event, is_line=True)

    def interrupt(self, records: Sequence[TuningRecord], fractions: Fractions) -> None:
        """At an early end; ``records`` are the new facts."""
        documents = _documents(records, fractions)
        print_json({"event": "interrupted", "records": documents}, is_line=True)


class ProgressBar(Progress):
    """A progress bar on stderr while trials run, then a table on stdout."""

    def __init__(self, budget_s: float | None) -> None:
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            _TimeLeft(budget_s),
            console=Console(stderr=True),
        )
        self._tuning = self.add_task("tuning ...", total=None)

    def show(self, progress: TuningProgress) -> None:
        """After a trial."""
        self.update(
            self._tuning,
            completed=progress.n_done,
            total=progress.n_trials,
            description=_standing(progress.best),
        )

    def finish(self, report: TuningReport, fractions: Fractions) -> None:
        """At the end of all trials."""
        problem = report.problem
        sizes = ", ".join(f"{name}={n}" for name, n in problem.sizes.items())
        typer.echo(f"canonical: {problem.workload_text}")
        typer.echo(f"key: {problem.form.key}")
        typer.echo(f"sizes: {sizes or '(none)'}")
        typer.echo(f"trials: {_tally(report.outcomes)}")
        if report.records:
            baseline_s = median(report.records[0].measurement.baseline_s)
            typer.echo(f"untransformed: {to_digits(baseline_s * 1e3)} ms")
            print_records(report.records, fractions)

    def interrupt(self, records: Sequence[TuningRecord], fractions: Fractions) -> None:
        """Nothing to add to the line on stderr."""


class _TimeLeft(ProgressColumn):
    """The time that the trials left will take, or that is left of the budget."""

    def __init__(self, budget_s: float | None) -> None:
        super().__init__()
        self._budget_s = budget_s

    def render(self, task: Task) -> Text:
        elapsed_s = task.elapsed or 0.0
        limits_s = [] if self._budget_s is None else [self._budget_s - elapsed_s]
        if task.completed and task.remaining is not None:
            limits_s.append(elapsed_s / task.completed * task.remaining)
        if not limits_s:
            return Text("")
        return Text(f"{timedelta(seconds=max(0, round(min(limits_s))))} left")


def _standing(best: TrialOutcome | None) -> str:
    if best is None or best.measurement is None:
        return "no recipe passed yet"
    baseline_s = median(best.measurement.baseline_s)
    return (
        f"best {to_digits(best.median_s * 1e3)} ms, "
        f"untransformed {to_digits(baseline_s * 1e3)} ms"
    )


def _documents(
    records: Sequence[TuningRecord], fractions: Fractions
) -> list[dict[str, Any]]:
    return [record_document(record, fractions) for record in records]


def _trial_document(outcome: TrialOutcome) -> dict[str, Any]:
    measured = outcome.measurement
    return {
        "spec": str(outcome.spec),
        "status": outcome.status,
        "message": outcome.message,
        "median_s": None if measured is None else measured.median_s,
        "baseline_s": None if measured is None else median(measured.baseline_s),
        "speedup": None if measured is None else measured.speedup,
    }


def _tally(outcomes: Sequence[TrialOutcome]) -> str:
    """How many trials ended how: ``3 (2 ok, 1 build-failed)``."""
    counts = Counter(outcome.status for outcome in outcomes).most_common()
    return f"{len(outcomes)} ({', '.join(f'{n} {status}' for status, n in counts)})"
