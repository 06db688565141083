"""Record what a tuning yields: trials, facts of the best recipes, limits of devices.

Trials are stored as they end, and never repeated. The best are timed again in one run,
and the first ones of these become facts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from feinsum.measure import OpenDevice, measure_peaks
from feinsum.measure.disturbance import Watch
from feinsum.measure.own import mark_as_own
from feinsum.records import (
    MESSAGE_LENGTH,
    Device,
    DevicePeaks,
    Environment,
    MatchLevel,
    Measurement,
    Store,
    TransformSpec,
    Trial,
    TuningRecord,
    check_plausible,
    get_match_level,
)
from feinsum.records.signature import sign_if_configured
from feinsum.select import rank_by_ratio
from feinsum.transforms import with_named_steps
from feinsum.tuning.problem import TuningProblem
from feinsum.tuning.progress import Finalist
from feinsum.tuning.trials import TrialBench, TrialOutcome

logger = logging.getLogger(__name__)

NOISY = (
    "timings are noisy: the interquartile range of the best exceeds a fifth of its "
    "median; repeat it with resume=False (--fresh) on an idle machine (see 'feinsum "
    "doctor'), or at larger sizes"
)

N_FINALISTS = 6
"""Number of the best recipes to time again in one run."""


def time_finalists(
    bench: TrialBench, trials: Sequence[Trial], limit: int = N_FINALISTS
) -> tuple[Finalist, ...]:
    """Time the best trials again in one run with the untransformed kernel; best first.

    The order rotates between rounds, so that no kernel always follows the same one.
    Finalists are ranked by the median, over the rounds, of their time relative to the
    first.
    """
    specs = [trial.spec for trial in sort_trials(trials)[:limit]]
    if not specs:
        logger.warning("nothing was recorded: none of %d trials passed", len(trials))
        return ()
    outcomes = _compare_apart(bench, specs)
    for outcome in outcomes:
        if not outcome.is_ok:
            logger.warning("not recorded: %s", outcome.to_error())
    measured = {o.spec: o.measurement for o in outcomes if o.measurement is not None}
    ranking = rank_by_ratio({s: m.samples_s for s, m in measured.items()})
    return tuple(Finalist(s, measured[s], ratio) for s, ratio in ranking)


def _compare_apart(
    bench: TrialBench, specs: Sequence[TransformSpec]
) -> tuple[TrialOutcome, ...]:
    """Compare in one run; if that fails, one by one: one may spoil the others."""
    outcomes = bench.compare(specs)
    # One that crashes the process in the long run takes all others with it.
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

    This installation trusts them from now on, if this machine measured them. Noisy
    times of the first are logged. If times on a GPU are noisy even at the second
    attempt, the fact states their spread.

    Raises:
        ImplausibleError: if the clock or the timer of this machine is wrong.
    """
    problem, environment = bench.problem, bench.start()
    records = tuple(
        sign_if_configured(
            TuningRecord(
                problem.form.key,
                problem.workload_text,
                environment,
                with_named_steps(spec, problem.einsum),
                measurement,
                {
                    "recorded_by": "feinsum.tune",
                    "strategy": strategy,
                    **_describe_noise(measurement, environment.device),
                },
            )
        )
        for spec, measurement in measured
    )
    for fact in records:
        # A wrong clock would give facts that every service refuses.
        check_plausible(fact)
        store.add(fact)
        if bench.is_here:
            mark_as_own(fact.id)
    if records and records[0].measurement.is_noisy:
        logger.warning(NOISY)
    return records


def _describe_noise(measurement: Measurement, device: Device) -> dict[str, str]:
    """Return the provenance that describes noise in the times of a fact."""
    if device.kind != "gpu" or not measurement.is_noisy:
        return {}
    return {"spread": f"{measurement.spread_s / measurement.median_s:.2f}"}


def find_trials(
    store: Store, problem: TuningProblem, environment: Environment
) -> list[Trial]:
    """Return the latest trial of each recipe, oldest first.

    Only those of the same einsum at the same sizes, on the same device and driver.
    """
    latest: dict[object, Trial] = {}
    for trial in store.trials(problem.form.key):
        is_same = (trial.workload_text, trial.sizes) == (
            problem.workload_text,
            problem.sizes,
        )
        if is_same and get_match_level(trial, environment) == MatchLevel.EXACT:
            # Popped first: overwriting a key of a dict keeps its position.
            latest.pop(trial.spec, None)
            latest[trial.spec] = trial
    return list(latest.values())


def make_trial(
    problem: TuningProblem,
    environment: Environment,
    outcome: TrialOutcome,
    cost: float | None,
) -> Trial:
    """Make a trial to store; ``cost`` is None if it failed."""
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


def sort_trials(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials that passed, the fastest first."""
    return sorted((t for t in trials if t.is_ok), key=lambda trial: trial.cost)


def get_peaks(
    opened: OpenDevice,
    store: Store,
    *,
    again: bool = False,
    even_if_busy: bool = False,
    measure: Callable[[OpenDevice], DevicePeaks] = measure_peaks,
    say: Callable[[str], None] = logger.warning,
) -> DevicePeaks:
    """Return the stored limits of a device; if there are none, measure and store them.

    Limits measured while others used the processor are too low. They are returned but
    not stored, and ``say`` receives the reason.

    Args:
        opened: the device.
        store: the store to read and to write.
        again: measure even if the store holds limits.
        even_if_busy: store limits of a busy processor, too.
        measure: called at most once.
        say: receives the message about a busy processor.

    Raises:
        MeasurementError, WrongResultError: see :func:`measure_peaks`.
        StoreError: if the store cannot be read, or cannot take the new limits.
    """
    stored = None if again else store.peaks(opened.device.id)
    if stored is not None:
        return stored
    watch = Watch()
    peaks = measure(opened)
    # Load on the host slows neither a GPU's memory nor its units.
    disturbance = watch.disturbance() if opened.device.kind == "cpu" else ""
    if disturbance and not even_if_busy:
        say(
            f"{disturbance} while the limits of {opened.device} were measured; they "
            "are too low and are not stored; measure on an idle machine with "
            "'feinsum devices --again', or store them with '--even-if-busy'"
        )
        return peaks
    if disturbance:
        say(f"{disturbance} while the limits of {opened.device} were measured")
    store.add(peaks)
    return peaks
