"""The history of trials: they are stored as they end, and never repeated."""

from __future__ import annotations

from collections.abc import Iterable

from feinsum.records import (
    MESSAGE_LENGTH,
    Environment,
    FactSource,
    Level,
    Trial,
    level_of,
)
from feinsum.tuning.outcome import TrialOutcome
from feinsum.tuning.problem import Problem

__all__ = ["best_first", "known_trials", "make_trial"]


def known_trials(
    store: FactSource, problem: Problem, environment: Environment
) -> list[Trial]:
    """The latest trial of each recipe, oldest first.

    Only those of the same einsum at the same sizes, on the same device and driver.
    """
    latest: dict[object, Trial] = {}
    for trial in store.trials(problem.form.key):
        is_same = (trial.workload_text, trial.sizes) == (
            problem.workload_text,
            problem.sizes,
        )
        if is_same and level_of(trial, environment) == Level.EXACT:
            latest.pop(trial.spec, None)
            latest[trial.spec] = trial
    return list(latest.values())


def make_trial(
    problem: Problem,
    environment: Environment,
    outcome: TrialOutcome,
    cost: float | None,
) -> Trial:
    """A trial to store; ``cost`` is None if it failed."""
    return Trial(
        problem.form.key,
        problem.workload_text,
        problem.sizes,
        environment,
        outcome.spec,
        outcome.status,
        outcome.message[:MESSAGE_LENGTH],
        outcome.median_s if outcome.is_ok else None,
        cost,
    )


def best_first(trials: Iterable[Trial]) -> list[Trial]:
    """The trials that passed, the fastest first."""
    return sorted((t for t in trials if t.is_ok), key=lambda trial: trial.cost)
