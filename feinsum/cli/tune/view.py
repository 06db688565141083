"""Output of a tuning: a progress bar and a table, or lines of JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

import typer

from feinsum.cli.shared.failure import say
from feinsum.cli.shared.output import print_json, to_digits
from feinsum.cli.shared.recommended import recommend_trials
from feinsum.cli.shared.records import Fractions, print_records, record_document
from feinsum.records import Trial
from feinsum.tuning import Finalist, TuningProgress, TuningReport, TuningStart
from feinsum.tuning.bar import TuningBar
from feinsum.words import format_count, format_sizes

USELESS = (
    "no recipe beats the untransformed kernel, so look-ups ignore these facts; "
    "--trials {} tries more recipes"
)


class JsonEvents(nullcontext[None]):
    """One JSON object per line and event: the start, every trial, finals, facts."""

    def begin(self, start: TuningStart) -> None:
        """Print what is tuned, before the first trial."""
        self._print(
            "start",
            key=start.problem.form.key,
            canonical=start.problem.workload_text,
            sizes=dict(start.problem.sizes),
            device=str(start.environment.device),
            driver_version=start.environment.driver_version,
            n_known=len(start.earlier),
            n_trials=start.n_trials,
            roofline_s=start.roofline_s,
        )

    def show(self, progress: TuningProgress) -> None:
        """Print a trial."""
        trial, best = progress.trial, progress.best
        self._print(
            "trial",
            n_done=progress.n_done,
            n_trials=progress.n_trials,
            spec=str(trial.spec),
            status=trial.status,
            message=trial.message,
            median_s=trial.median_s,
            ratio=trial.ratio,
            fraction_of_roofline=_compute_fraction(trial, progress.roofline_s),
            best_spec=None if best is None else str(best.spec),
            best_median_s=None if best is None else best.median_s,
            best_ratio=None if best is None else best.ratio,
            best_fraction_of_roofline=_compute_fraction(best, progress.roofline_s),
            seconds_left=progress.seconds_left,
        )

    def final(self, finalists: Sequence[Finalist]) -> None:
        """Print the best trials after they were timed again, fastest first."""
        self._print("final", finalists=[_make_finalist_document(f) for f in finalists])

    def finish(self, report: TuningReport, fractions: Fractions) -> None:
        """Print what was recorded."""
        self._print(
            "recorded",
            key=report.problem.form.key,
            canonical=report.problem.workload_text,
            sizes=dict(report.problem.sizes),
            records=[record_document(r, fractions) for r in report.records],
        )

    def _print(self, event: str, **fields: Any) -> None:
        print_json({"event": event, **fields}, is_line=True)


class ProgressBar(TuningBar):
    """A progress bar on stderr while trials run, then a table on stdout."""

    def begin(self, start: TuningStart) -> None:
        """Show how many trials are known, before the first one."""
        super().begin(start)
        if start.earlier:
            trials = format_count(len(start.earlier), "trial")
            self.console.print(f"already known: {trials}; --fresh tries them again")

    def finish(self, report: TuningReport, fractions: Fractions) -> None:
        """Print the report after all trials."""
        problem = report.problem
        sizes = format_sizes(problem.sizes)
        if report.subscripts:
            typer.echo(f"einsum: {report.subscripts}")
        typer.echo(f"canonical: {problem.workload_text}")
        typer.echo(f"key: {problem.form.key}")
        typer.echo(f"sizes: {sizes or '(none)'}")
        typer.echo(f"trials: {_format_tally(report.trials, report.n_known)}")
        for line in explain_failures(report.trials):
            typer.echo(line)
        if report.records:
            baseline_s = median(report.records[0].measurement.baseline_s)
            typer.echo(f"untransformed: {to_digits(baseline_s * 1e3)} ms")
            print_records(report.records, fractions)
            # facts that are no faster are recorded, so that no tuning repeats them
            if not any(record.measurement.is_faster for record in report.records):
                say(USELESS.format(recommend_trials(len(report.trials))))


def explain_failures(trials: Sequence[Trial]) -> list[str]:
    """Format a line per status of failed trials: how many, and the first reason."""
    failed = [trial for trial in trials if not trial.is_ok]
    lines = []
    for status, n in Counter(trial.status for trial in failed).most_common():
        # one reason for each status: trials fail alike
        first = next(trial for trial in failed if trial.status == status)
        message = " ".join(first.message.split()).removeprefix(f"{first.spec} ")
        why = message or "no reason given"
        lines.append(f"  {n} {status}; the first, {first.spec}: {why}")
    return lines


def _compute_fraction(trial: Trial | None, roofline_s: float | None) -> float | None:
    if trial is None or trial.median_s is None or roofline_s is None:
        return None
    return roofline_s / trial.median_s


def _make_finalist_document(finalist: Finalist) -> dict[str, Any]:
    measured = finalist.measurement
    return {
        "spec": str(finalist.spec),
        "median_s": measured.median_s,
        "spread_s": measured.spread_s,
        "ratio": 1 / measured.speedup,
        "ratio_to_best_trial": finalist.ratio,
    }


def _format_tally(trials: Sequence[Trial], n_known: int) -> str:
    """Format the number of trials by status: ``3 (2 ok, 1 build-failed)``."""
    counts = Counter(trial.status for trial in trials).most_common()
    repeated = f"; {n_known} already known" if n_known else ""
    statuses = ", ".join(f"{n} {status}" for status, n in counts)
    return f"{len(trials)} ({statuses}){repeated}"
