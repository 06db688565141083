"""Autotuning: search the transforms that fit, verify, time, record the best."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from time import monotonic
from typing import TypeVar

import loopy as lp

from feinsum.bounds import compute_bound, list_levels
from feinsum.db import Database, opened_store
from feinsum.errors import BoundError, FeinsumError, MeasurementError, TransformError
from feinsum.ir import BatchedEinsum
from feinsum.measure import compute_roofline_s, count_footprint_bytes, count_operations
from feinsum.measure.intermediates import get_intermediate_limit_bytes, has_room
from feinsum.options import DEVICE_VARIABLE
from feinsum.predict import has_vectors, make_pruning_test, predict_recipes
from feinsum.raising import raise_kernel, single_nest
from feinsum.records import (
    Device,
    Environment,
    Store,
    TransformSpec,
    Trial,
    TuningRecord,
)
from feinsum.records.environment import DeviceKind
from feinsum.records.signature import check_signing_key
from feinsum.targets.host import HOST
from feinsum.transforms import ALL_DEVICES, check_spec, find_applicable_transforms
from feinsum.transforms.cost import Costed
from feinsum.tuning.cluster import ClusterBench
from feinsum.tuning.isolation import IsolatedBench
from feinsum.tuning.problem import TuningProblem, make_problem
from feinsum.tuning.progress import Finalist, TuningProgress, TuningReport, TuningStart
from feinsum.tuning.recording import (
    find_trials,
    make_trial,
    record,
    sort_trials,
    time_finalists,
)
from feinsum.tuning.requirements import check_requirements
from feinsum.tuning.search import (
    ConfigurationSearch,
    Strategy,
    check_strategy,
    find_neighbours,
    make_search,
)
from feinsum.tuning.trials import N_RECORDED, TrialBench, TrialOutcome

logger = logging.getLogger(__name__)

Event = TypeVar("Event")

DEFAULT_TRIALS = 20

N_PREDICTED = 5
"""Number of predicted recipes at the beginning of a search."""


def tune_einsum(
    target: BatchedEinsum | lp.TranslationUnit,
    *,
    sizes: Mapping[str, int] | None = None,
    device: str | None = None,
    database: Database = None,
    n_trials: int | None = None,
    budget_s: float | None = None,
    strategy: Strategy = "tpe",
    seed: int = 0,
    first: Sequence[TransformSpec] = (),
    trial_limit_s: float = 60.0,
    resume: bool = True,
    scheduler: str | None = None,
    subscripts: str = "",
    on_start: Callable[[TuningStart], None] | None = None,
    on_progress: Callable[[TuningProgress], None] | None = None,
    on_final: Callable[[tuple[Finalist, ...]], None] | None = None,
    on_stop: Callable[[TuningReport], None] | None = None,
) -> TuningReport:
    """Search for the fastest recipe of an einsum and record it.

    Every candidate runs in a child process, is compared with the numpy reference at the
    given sizes, and only then timed, in turns with the best so far; see
    :mod:`feinsum.tuning.trials`. The best six are timed again in one run together with
    the untransformed kernel. The first three of these that are also correct at ragged
    run-time extents are recorded, even if the search is interrupted.

    Every trial is stored in the database when it ends, whether it passed or not. A
    trial with the same einsum, sizes, device and driver is not repeated: the search
    learns from it.

    Args:
        target: an einsum, or a kernel that is an einsum.
        sizes: values of size parameters; see :func:`feinsum.tuning.make_problem`.
        device: part of a device name; see :func:`feinsum.measure.open_device`.
        database: the database to read and to record in.
        n_trials: maximum number of trials, including known ones; by default 20, or all
            if the strategy is ``exhaustive``.
        budget_s: no new trial starts after this many seconds.
        strategy: how the next trial is chosen.
        seed: seed of the search.
        first: recipes to try before all others, if they fit. Then come the best ones of
            neighbours in the database, and predicted ones.
        trial_limit_s: time limit of a trial, in seconds.
        resume: False to repeat known trials.
        scheduler: the address of a Dask scheduler, such as ``tcp://host:8786``, whose
            workers run the trials, several at a time; see
            :class:`feinsum.tuning.cluster.ClusterBench`.
        subscripts: the einsum in the names of its user, for the report; by default
            those of the target.
        on_start: called before the first trial.
        on_progress: called after every trial.
        on_final: called with the finalists, best first.
        on_stop: called at an early end with the results so far, before the interrupt or
            the error is raised again.

    Raises:
        NotAnEinsumError: if the kernel is not an einsum.
        InvalidEinsumError: if ``sizes`` do not match the einsum.
        TransformError: if no transform fits the einsum.
        MeasurementError: if the problem cannot be set up on the device, or needs more
            memory or time than available; see :mod:`feinsum.tuning.requirements`.
        StoreError: if the database cannot be written.
    """
    problem, own_subscripts = _pose_problem(target, sizes, device)
    _check(problem, n_trials, strategy, is_here=scheduler is None)
    if scheduler is None:
        check_requirements(problem)
    with (
        opened_store(database, has_shipped=True, may_create=True) as store,
        (
            IsolatedBench(problem, trial_limit_s)
            if scheduler is None
            else ClusterBench(problem, scheduler, trial_limit_s)
        ) as bench,
    ):
        # Check before hours of trials that their results can be stored and signed.
        store.check_writable()
        check_signing_key()
        session = _open_session(bench, store, strategy, seed, n_trials, budget_s, first)
        session.subscripts = subscripts or own_subscripts
        start = session.start(resume=resume)
        try:
            _call(on_start, start)
            with _record_when_stopped(session, strategy):
                for progress in session.run():
                    _call(on_progress, progress)
            session.finalists = time_finalists(bench, session.trials)
            _call(on_final, session.finalists)
            session.record(strategy)
        except BaseException:
            _call(on_stop, session.report())
            raise
        return session.report()


def _open_session(
    bench: TrialBench,
    store: Store,
    strategy: Strategy,
    seed: int,
    n_trials: int | None,
    budget_s: float | None,
    first: Sequence[TransformSpec],
) -> Session:
    """Set up the problem and a search that begins with the most promising recipes."""
    problem, environment = bench.problem, bench.start()
    device = environment.device
    search = _make_search_for(problem, device, strategy, seed)
    if n_trials is None:
        is_all = strategy == "exhaustive"
        n_trials = search.n_configurations if is_all else DEFAULT_TRIALS
    session = Session(
        bench,
        search,
        store,
        min(n_trials, search.n_configurations),
        budget_s,
        compute_roofline(problem, store, environment),
        environment=environment,
    )
    predicted = predict_recipes(problem.einsum, problem.sizes, device)
    if predicted and strategy != "exhaustive":
        session.is_pruned = _make_filter(problem, device, predicted, first)
    # Measurements of a neighbour are more reliable than predictions.
    near = find_neighbours(store, problem.workload_text, environment, search.left)
    best = (candidate.spec for candidate in predicted[:N_PREDICTED])
    search.prefer([*first, *near, *best])
    return session


def _call(callback: Callable[[Event], None] | None, event: Event) -> None:
    if callback is not None:
        callback(event)


def record_facts(
    einsum: BatchedEinsum,
    spec: TransformSpec | str,
    *,
    sizes: Mapping[str, int] | None = None,
    device: str | None = None,
    database: Database = None,
    trial_limit_s: float = 60.0,
) -> TuningRecord:
    """Verify and time one recipe on the idealized einsum, and record the fact.

    The parameters of ``spec`` refer to the canonical einsum.

    Raises:
        TransformError: if the spec is not registered or does not fit.
        MeasurementError: if the trial fails, with the reason.
        StoreError: if the database cannot be written.

    Source: paper, section 7, listing 3.
    """
    problem = make_problem(einsum, sizes, device)
    spec = spec if isinstance(spec, TransformSpec) else TransformSpec.parse(spec)
    check_spec(spec, problem.workload)
    check_requirements(problem)
    with (
        opened_store(database, may_create=True) as store,
        IsolatedBench(problem, trial_limit_s) as bench,
    ):
        store.check_writable()
        check_signing_key()
        (outcome,) = bench.compare([spec])
        if outcome.measurement is None:
            raise outcome.to_error()
        (fact,) = record(bench, [(spec, outcome.measurement)], store, "given")
    return fact


def _make_filter(
    problem: TuningProblem,
    device: Device,
    predicted: Sequence[Costed],
    requested: Sequence[TransformSpec],
) -> Callable[[TransformSpec], bool]:
    """Make a filter of recipes that should take far longer than the best one.

    What the user requested is always tried.
    """
    least_s = min(candidate.seconds for candidate in predicted)
    is_slow = make_pruning_test(problem.einsum, problem.sizes, device, least_s)
    return lambda spec: spec not in requested and is_slow(spec)


def _make_search_for(
    problem: TuningProblem, device: Device, strategy: Strategy, seed: int
) -> ConfigurationSearch:
    """Make a search over everything that fits the einsum, the device and the memory.

    Raises:
        MeasurementError: if the limit of intermediates that is set is no number.
    """
    kind = device.kind
    transforms = find_applicable_transforms(problem.workload, kind)
    if not transforms:
        raise TransformError(
            f"no registered transform fits the einsum {problem.workload_text}"
            f" and devices of the kind {kind!r}"
        )
    einsum, sizes = problem.einsum, problem.sizes
    limit = get_intermediate_limit_bytes(einsum, sizes)

    def is_allowed(spec: TransformSpec) -> bool:
        return has_vectors(spec, einsum, device) and has_room(
            spec, einsum, sizes, limit
        )

    return make_search(strategy, problem.workload, transforms, seed, is_allowed)


def _check(
    problem: TuningProblem, n_trials: int | None, strategy: str, *, is_here: bool
) -> None:
    """Check what can be checked before anything is started."""
    check_strategy(strategy)
    if n_trials is not None and not (isinstance(n_trials, int) and n_trials >= 1):
        raise FeinsumError(
            f"n_trials={n_trials!r}; expected an integer from 1, or None"
        )
    # Refused before devices are opened: drivers take seconds to load.
    named = problem.device or os.environ.get(DEVICE_VARIABLE) or ""
    # only the host needs no driver
    is_host = is_here and named.strip().lower() == HOST.name
    kinds: Collection[DeviceKind] = {"cpu"} if is_host else ALL_DEVICES
    if not any(find_applicable_transforms(problem.workload, kind) for kind in kinds):
        raise TransformError(
            f"no registered transform fits the einsum {problem.workload_text}"
        )


def _pose_problem(
    target: BatchedEinsum | lp.TranslationUnit,
    sizes: Mapping[str, int] | None,
    device: str | None,
) -> tuple[TuningProblem, str]:
    """Pose the problem of a target, and return it with the target's subscripts."""
    if isinstance(target, lp.TranslationUnit):
        nest = single_nest(raise_kernel(target))
        target, sizes = nest.einsum, {**nest.generalized, **(sizes or {})}
    return make_problem(target, sizes, device), target.subscripts


@contextmanager
def _record_when_stopped(session: Session, strategy: str) -> Iterator[None]:
    """Record the best of the trials done so far if the body is interrupted."""
    try:
        yield
    except BaseException:
        if any(trial.is_ok for trial in session.trials):
            try:
                # The user is waiting: only recipes to be recorded are timed again.
                best = time_finalists(session.bench, session.trials, limit=N_RECORDED)
                session.finalists = best
                session.record(strategy)
            except FeinsumError:
                logger.exception(
                    "could not record the results of an interrupted tuning"
                )
        raise


MAX_HOPELESS = 50
"""Maximum pruned proposals in a row: each takes time, and there may be thousands."""


@dataclass
class Session:
    """Runs trials and stores them as they end; the only user of the search.

    Attributes:
        n_trials: maximum number of trials, including known ones.
        budget_s: no new trial starts after this time.
        is_pruned: decides whether a recipe is predicted far too slow for a trial.
        trials: all trials so far, known ones first.
        n_known: number of these from an earlier tuning.
        finalists, records: the results of the trials, once available.
        subscripts: the einsum in the names of its user.
    """

    bench: TrialBench
    search: ConfigurationSearch
    store: Store
    n_trials: int
    budget_s: float | None
    roofline_s: float | None
    is_pruned: Callable[[TransformSpec], bool] = lambda _spec: False
    trials: list[Trial] = field(default_factory=list)
    n_known: int = 0
    finalists: tuple[Finalist, ...] = ()
    records: tuple[TuningRecord, ...] = ()
    environment: Environment | None = None
    subscripts: str = ""
    _n_asked: int = field(default=0, init=False)
    started_s: float = field(default_factory=monotonic)

    def start(self, *, resume: bool) -> TuningStart:
        """Describe the work ahead; if ``resume``, learn from trials on record."""
        problem, environment = self.bench.problem, self.bench.start()
        if resume:
            recorded = find_trials(self.store, problem, environment)
            # Trials outside the space, as of a removed transform, do not count.
            self.trials = [t for t in recorded if self.search.learn(t.spec, t.cost)]
            self.n_known = len(self.trials)
        return TuningStart(
            problem, environment, self.n_trials, tuple(self.trials), self.roofline_s
        )

    def run(self) -> Iterator[TuningProgress]:
        """Run trials until there are ``n_trials``, none is left, or time is up.

        If none is known, at least one is run, however short the time.
        """
        environment = self.bench.start()
        for outcome in self.bench.outcomes(self._ask):
            cost = self._compute_cost(outcome)
            trial = make_trial(self.bench.problem, environment, outcome, cost)
            self.store.add(trial)
            self.search.tell(trial.spec, trial.cost)
            self.trials.append(trial)
            yield TuningProgress(
                len(self.trials),
                self.n_trials,
                trial,
                next(iter(sort_trials(self.trials)), None),
                self.roofline_s,
                self._estimate_seconds_left(),
            )

    def record(self, strategy: str) -> None:
        """Record the best of the finalists."""
        best = [(f.spec, f.measurement) for f in self.finalists[:N_RECORDED]]
        self.records = record(self.bench, best, self.store, strategy)

    def report(self) -> TuningReport:
        """Return the current report, even before the end."""
        assert self.environment is not None
        return TuningReport(
            self.bench.problem,
            tuple(self.trials),
            self.records,
            self.finalists,
            self.environment,
            self.n_known,
            self.roofline_s,
            compute_least_times(self.bench.problem, self.store, self.environment),
            self.subscripts,
        )

    def _ask(self) -> tuple[TransformSpec, TransformSpec | None] | None:
        """Propose the next recipe, with the best so far to time it against."""
        # Proposals, not results, are counted: several may be under way on a cluster.
        n_begun = self.n_known + self._n_asked
        if n_begun >= self.n_trials or (n_begun and self._get_budget_left_s() < 0):
            return None
        spec = self._propose()
        if spec is None:
            return None
        self._n_asked += 1
        best = next(iter(sort_trials(self.trials)), None)
        return spec, best.spec if best else None

    def _propose(self) -> TransformSpec | None:
        """Return the next recipe of the search; None if only pruned ones are left."""
        for _ in range(MAX_HOPELESS):
            spec = self.search.ask()
            if spec is None or not self.is_pruned(spec):
                return spec
            # Not stored as a trial: nothing was measured.
            self.search.tell(spec, inf)
        return None

    def _compute_cost(self, outcome: TrialOutcome) -> float | None:
        """Compute the cost on the common scale of :mod:`feinsum.tuning.trials`."""
        if outcome.ratio is None:
            return None
        costs = {trial.spec: trial.cost for trial in self.trials}
        return outcome.ratio * (costs[outcome.reference] if outcome.reference else 1)

    def _estimate_seconds_left(self) -> float:
        n_made = len(self.trials) - self.n_known
        each_s = (monotonic() - self.started_s) / n_made
        expected_s = each_s * (self.n_trials - len(self.trials))
        return max(0.0, min(expected_s, self._get_budget_left_s()))

    def _get_budget_left_s(self) -> float:
        if self.budget_s is None:
            return float("inf")
        return self.started_s + self.budget_s - monotonic()


def compute_least_times(
    problem: TuningProblem, store: Store, environment: Environment
) -> dict[str, float]:
    """Compute the minimum time of the traffic through each cache, by its name."""
    peaks = store.peaks(environment.device.id)
    if peaks is None or not peaks.cache_bytes_per_s:
        return {}
    levels = list_levels(environment.device, peaks)
    try:
        bounds = compute_bound(problem.einsum, problem.sizes, levels)
    except BoundError:
        return {}
    return {
        bound.level.name: bound.seconds
        for bound in bounds.levels
        if bound.level.n_bytes is not None and bound.seconds is not None
    }


def compute_roofline(
    problem: TuningProblem, store: Store, environment: Environment
) -> float | None:
    """Compute the minimum time by the device's measured limits; None without any."""
    peaks = store.peaks(environment.device.id)
    if peaks is None:
        return None
    operations = count_operations(problem.einsum, problem.sizes)
    n_bytes = count_footprint_bytes(problem.einsum, problem.sizes)
    try:
        return compute_roofline_s(operations, n_bytes, peaks)
    except MeasurementError:  # there is no peak for a dtype
        return None
