"""A tuning that takes no time, for the tests of ``feinsum tune``."""

from __future__ import annotations

from feinsum.cli.shared.notation import read_einsum
from feinsum.records import Trial
from feinsum.tuning import (
    Finalist,
    TuningProgress,
    TuningReport,
    TuningStart,
    make_problem,
)
from tests.cli.facts import matvec_record

__all__ = ["good", "stand_in", "trials"]


def good():
    return matvec_record()


def trials():
    """A trial that failed, and one that passed."""
    here = good().workload, good().workload_text, {}, good().environment
    return (
        Trial(*here, matvec_record(1).spec, "build-failed", "no\nway"),
        Trial(*here, good().spec, "ok", "", 1e-3, 0.1),
    )


def stand_in(seen, *, n_recorded=1, stops_with=None):
    """An ``autotune`` that reports two trials and records facts, at once."""
    problem = make_problem(read_einsum("ij,j->i", ["i=n,j=4"]), {"n": 7})

    def autotune(
        target, *, database, on_start, on_progress, on_final, on_stop, **options
    ):
        seen.update(options, target=target)
        n_trials = options["n_trials"] or 2
        on_start(TuningStart(problem, good().environment, n_trials, (), 4e-5))
        for k, trial in enumerate(trials()):
            best = trial if trial.is_ok else None
            on_progress(TuningProgress(k + 1, n_trials, trial, best, 4e-5, 12.0))
        finalists = (Finalist(good().spec, good().measurement, 1.0),)
        on_final(finalists)
        records = tuple(matvec_record(k) for k in range(n_recorded))
        for record in records:
            database.add(record)
        report = TuningReport(problem, trials(), records, finalists)
        if stops_with is None:
            return report
        on_stop(report)
        raise stops_with

    return autotune
