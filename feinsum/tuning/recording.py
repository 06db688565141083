"""From trials to facts: time the best again in one run, then record the first ones.

Trials are stored as they end, and never repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from feinsum.measure.own import mark_as_own
from feinsum.records import (
    MESSAGE_LENGTH,
    Device,
    Environment,
    Level,
    Measurement,
    Store,
    TransformSpec,
    Trial,
    TuningRecord,
    check_plausible,
    level_of,
)
from feinsum.records.signature import signed_if_wanted
from feinsum.transforms import in_full
from feinsum.tuning.problem import Problem
from feinsum.tuning.progress import Finalist
from feinsum.tuning.trials import TrialBench, TrialOutcome, by_ratio

logger = logging.getLogger(__name__)

N_FINALISTS = 6
"""How many of the best are timed again in one run."""


def finals(
    bench: TrialBench, trials: Sequence[Trial], limit: int = N_FINALISTS
) -> tuple[Finalist, ...]:
    """Time the best trials again in one run with the untransformed kernel; best first.

    The order rotates between rounds, so that no kernel always follows the same one.
    Finalists are ranked by the median, over the rounds, of their time relative to the
    first.
    """
    specs = [trial.spec for trial in best_first(trials)[:limit]]
    if not specs:
        logger.warning("nothing was recorded: none of %d trials passed", len(trials))
        return ()
    outcomes = _compare_apart(bench, specs)
    for outcome in outcomes:
        if not outcome.is_ok:
            logger.warning("not recorded: %s", outcome.to_error())
    measured = {o.spec: o.measurement for o in outcomes if o.measurement is not None}
    return tuple(Finalist(s, measured[s], ratio) for s, ratio in by_ratio(measured))


def _compare_apart(
    bench: TrialBench, specs: Sequence[TransformSpec]
) -> tuple[TrialOutcome, ...]:
    """Compare in one run; one by one where that fails, so that one spoils no other."""
    outcomes = bench.compare(specs)
    if len(specs) == 1 or any(outcome.is_ok for outcome in outcomes):
        return outcomes
    return tuple(bench.compare([spec])[0] for spec in specs)


def record(
    bench: TrialBench,
    measured: Sequence[tuple[TransformSpec, Measurement]],
    store: Store,
    strategy: str,
) -> tuple[TuningRecord, ...]:
    """Record the results of a comparison; returns the facts, in the given order.

    This installation trusts them from now on, if this machine measured them. Facts of a
    GPU whose times are noisy, even at the second attempt, have their spread.

    Raises:
        ImplausibleError: if the clock or the timer of this machine is wrong.
    """
    problem, environment = bench.problem, bench.start()
    records = tuple(
        signed_if_wanted(
            TuningRecord(
                problem.form.key,
                problem.workload_text,
                environment,
                in_full(spec, problem.einsum),
                measurement,
                {
                    "recorded_by": "feinsum.tune",
                    "strategy": strategy,
                    **_doubt(measurement, environment.device),
                },
            )
        )
        for spec, measurement in measured
    )
    for fact in records:
        check_plausible(fact)
        store.add(fact)
        if bench.is_here:
            mark_as_own(fact.id)
    return records


def _doubt(measurement: Measurement, device: Device) -> dict[str, str]:
    """What the provenance of a fact says against its times."""
    if device.kind != "gpu" or not measurement.is_noisy:
        return {}
    return {"spread": f"{measurement.spread_s / measurement.median_s:.2f}"}


def known_trials(
    store: Store, problem: Problem, environment: Environment
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
