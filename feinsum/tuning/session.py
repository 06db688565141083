"""The trials of one tuning: known, new and stored ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic

from feinsum.bounds import bound_at, levels_of
from feinsum.errors import BoundError, MeasurementError
from feinsum.measure import einsum_operations, footprint_bytes, roofline_s
from feinsum.records import (
    Environment,
    FactStore,
    TransformSpec,
    Trial,
    TuningRecord,
)
from feinsum.tuning.history import best_first, make_trial
from feinsum.tuning.outcome import TrialOutcome
from feinsum.tuning.problem import Problem
from feinsum.tuning.progress import Finalist, TuningProgress, TuningReport
from feinsum.tuning.search import Search
from feinsum.tuning.trial_bench import TrialBench

__all__ = ["Session", "roofline_of"]


MOST_HOPELESS = 50
"""Proposals in a row: a search may know of thousands, and needs time for each."""


@dataclass
class Session:
    """Runs trials and stores them as they end; the only user of the search.

    Attributes:
        n_trials: maximum number of trials, including known ones.
        budget_s: no new trial starts after this time.
        is_hopeless: whether to skip a recipe that is far too slow to be worth a trial.
        trials: all trials so far, known ones first.
        n_known: number of these from an earlier tuning.
        finalists, records: the results of the trials, once available.
    """

    bench: TrialBench
    search: Search
    store: FactStore
    n_trials: int
    budget_s: float | None
    roofline_s: float | None
    is_hopeless: Callable[[TransformSpec], bool] = lambda _spec: False
    trials: list[Trial] = field(default_factory=list)
    n_known: int = 0
    finalists: tuple[Finalist, ...] = ()
    records: tuple[TuningRecord, ...] = ()
    _n_asked: int = field(default=0, init=False)
    started_s: float = field(default_factory=monotonic)

    def learn(self, known: Sequence[Trial]) -> None:
        """Accept trials of an earlier tuning as done, if they are in the space."""
        self.trials = [t for t in known if self.search.learn(t.spec, t.cost)]
        self.n_known = len(self.trials)

    def run(self) -> Iterator[TuningProgress]:
        """Run trials until there are ``n_trials``, none is left, or time is up.

        If none is known, at least one is run, however short the time.
        """
        environment = self.bench.start()
        for outcome in self.bench.outcomes(self._ask):
            cost = self._cost(outcome)
            trial = make_trial(self.bench.problem, environment, outcome, cost)
            self.store.add_trial(trial)
            self.search.tell(trial.spec, trial.cost)
            self.trials.append(trial)
            yield self._progress()

    def report(self, environment: Environment) -> TuningReport:
        """The current report, even before the end."""
        return TuningReport(
            self.bench.problem,
            tuple(self.trials),
            self.records,
            self.finalists,
            environment,
            self.n_known,
            self.roofline_s,
            least_times(self.bench.problem, self.store, environment),
        )

    def _ask(self) -> tuple[TransformSpec, TransformSpec | None] | None:
        """The next recipe with the best so far, while others may be under way."""
        n_begun = self.n_known + self._n_asked
        if n_begun >= self.n_trials or (n_begun and self._budget_left_s() < 0):
            return None
        spec = self._next_hopeful()
        if spec is None:
            return None
        self._n_asked += 1
        best = next(iter(best_first(self.trials)), None)
        return spec, best.spec if best else None

    def _next_hopeful(self) -> TransformSpec | None:
        """The proposal of the search; None if only hopeless recipes are left."""
        for _ in range(MOST_HOPELESS):
            spec = self.search.ask()
            if spec is None or not self.is_hopeless(spec):
                return spec
            self.search.tell(spec, inf)
        return None

    def _cost(self, outcome: TrialOutcome) -> float | None:
        """Its place on the common scale; see :mod:`feinsum.tuning.scale`."""
        if outcome.ratio is None:
            return None
        costs = {trial.spec: trial.cost for trial in self.trials}
        return outcome.ratio * (costs[outcome.reference] if outcome.reference else 1)

    def _progress(self) -> TuningProgress:
        return TuningProgress(
            len(self.trials),
            self.n_trials,
            self.trials[-1],
            next(iter(best_first(self.trials)), None),
            self.roofline_s,
            self._seconds_left(),
        )

    def _seconds_left(self) -> float:
        n_made = len(self.trials) - self.n_known
        each_s = (monotonic() - self.started_s) / n_made
        expected_s = each_s * (self.n_trials - len(self.trials))
        return max(0.0, min(expected_s, self._budget_left_s()))

    def _budget_left_s(self) -> float:
        if self.budget_s is None:
            return float("inf")
        return self.started_s + self.budget_s - monotonic()


def least_times(
    problem: Problem, store: FactStore, environment: Environment
) -> dict[str, float]:
    """For each cache, the minimum time for traffic between it and nearer levels."""
    peaks = store.peaks(environment.device.id)
    if peaks is None or not peaks.cache_bytes_per_s:
        return {}
    levels = levels_of(environment.device, peaks)
    try:
        found = bound_at(problem.einsum, problem.sizes, levels)
    except BoundError:
        return {}
    return {
        one.level.name: one.seconds
        for one in found.levels
        if one.level.n_bytes is not None and one.seconds is not None
    }


def roofline_of(
    problem: Problem, store: FactStore, environment: Environment
) -> float | None:
    """The minimum time that measured limits of the device allow, if there are any."""
    peaks = store.peaks(environment.device.id)
    if peaks is None:
        return None
    operations = einsum_operations(problem.einsum, problem.sizes)
    n_bytes = footprint_bytes(problem.einsum, problem.sizes)
    try:
        return roofline_s(operations, n_bytes, peaks)
    except MeasurementError:  # no peak of a dtype
        return None
