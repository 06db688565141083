"""Autotuning: search the transforms that fit, verify, time, record the best."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

import loopy as lp

from feinsum.db import Database, opened_store
from feinsum.errors import FeinsumError, TransformError
from feinsum.ir import BatchedEinsum
from feinsum.raising import raise_kernel, single_nest
from feinsum.records import RecordStore, TransformSpec, TuningRecord
from feinsum.transforms import applicable_transforms, check_spec
from feinsum.tune.isolation import IsolatedBench
from feinsum.tune.outcome import TrialOutcome
from feinsum.tune.problem import Problem, make_problem
from feinsum.tune.recording import (
    check_writable,
    fastest,
    record,
    record_best,
)
from feinsum.tune.search import Search, Strategy, make_search

__all__ = ["TuningProgress", "TuningReport", "autotune", "record_facts"]

logger = logging.getLogger(__name__)

DEFAULT_TRIALS = 20


@dataclass(frozen=True)
class TuningProgress:
    """How far a tuning has come.

    Attributes:
        n_done, n_trials: trials so far, and at most: no more than there are
            configurations.
        outcome: of the latest trial.
        best: the fastest so far.
    """

    n_done: int
    n_trials: int
    outcome: TrialOutcome
    best: TrialOutcome | None


@dataclass(frozen=True)
class TuningReport:
    """What a tuning found.

    Attributes:
        outcomes: of every trial, in order.
        records: the facts recorded, the fastest first.
    """

    problem: Problem
    outcomes: tuple[TrialOutcome, ...]
    records: tuple[TuningRecord, ...]


def autotune(
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
    on_progress: Callable[[TuningProgress], None] | None = None,
) -> TuningReport:
    """Search for the fastest recipe of an einsum and record it.

    Every candidate runs in a child process, is compared with the numpy reference at the
    given sizes and at ragged run-time extents, and is timed only then. The fastest are
    timed again in one run together with the untransformed kernel; these are recorded,
    also if the search is interrupted.

    Args:
        target: an einsum, or a kernel that is one.
        sizes: values of size parameters; see :func:`feinsum.tune.make_problem`.
        n_trials: at most; by default 20, or all if the strategy is ``exhaustive``.
        budget_s: no new trial starts after this time.
        first: recipes to try before all others, as far as they fit.
        trial_limit_s: after which a trial is stopped.
        on_progress: called after every trial.

    Raises:
        NotAnEinsumError: if the kernel is none.
        InvalidEinsumError: if ``sizes`` do not fit the einsum.
        TransformError: if no transform fits the einsum.
        MeasurementError: if the problem cannot be set up on the device.
        StoreError: if the database cannot be written.
    """
    problem = _problem_of(target, sizes, device)
    transforms = applicable_transforms(problem.einsum)
    if not transforms:
        raise TransformError(
            f"no registered transform fits the einsum {problem.workload_text}"
        )
    search = make_search(strategy, problem.einsum, transforms, seed, first)
    n_trials = _n_trials(n_trials, strategy, search)
    deadline = monotonic() + budget_s if budget_s is not None else None
    outcomes: list[TrialOutcome] = []
    with (
        opened_store(database) as store,
        IsolatedBench(problem, trial_limit_s) as bench,
    ):
        check_writable(store)
        bench.start()
        with _recording_when_stopped(bench, outcomes, store, strategy):
            for outcome in _trials(bench, search, n_trials, deadline):
                outcomes.append(outcome)
                if on_progress is not None:
                    on_progress(_progress(outcomes, n_trials))
        records = record_best(bench, outcomes, store, strategy)
    return TuningReport(problem, tuple(outcomes), records)


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

    The parameters of ``spec`` speak of the canonical einsum.

    Raises:
        TransformError: if the spec is not registered or does not fit.
        MeasurementError: if the trial fails; its message says how.
        StoreError: if the database cannot be written.

    Source: paper, section 7, listing 3.
    """
    problem = make_problem(einsum, sizes, device)
    known = spec if isinstance(spec, TransformSpec) else TransformSpec.parse(spec)
    check_spec(known, problem.einsum)
    with (
        opened_store(database) as store,
        IsolatedBench(problem, trial_limit_s) as bench,
    ):
        check_writable(store)
        (outcome,) = bench.compare([known])
        if not outcome.is_ok:
            raise outcome.to_error()
        (fact,) = record(bench, [outcome], store, "given")
    return fact


def _progress(outcomes: Sequence[TrialOutcome], n_trials: int) -> TuningProgress:
    best = next(iter(fastest(outcomes)), None)
    return TuningProgress(len(outcomes), n_trials, outcomes[-1], best)


def _n_trials(asked: int | None, strategy: Strategy, search: Search) -> int:
    if asked is None:
        asked = search.n_configurations if strategy == "exhaustive" else DEFAULT_TRIALS
    if asked < 1:
        raise FeinsumError(f"n_trials={asked}; expected at least one trial, or None")
    return min(asked, search.n_configurations)


def _problem_of(
    target: BatchedEinsum | lp.TranslationUnit,
    sizes: Mapping[str, int] | None,
    device: str | None,
) -> Problem:
    if not isinstance(target, lp.TranslationUnit):
        return make_problem(target, sizes, device)
    nest = single_nest(raise_kernel(target))
    return make_problem(nest.einsum, {**nest.generalized, **(sizes or {})}, device)


def _trials(
    bench: IsolatedBench,
    search: Search,
    n_trials: int,
    deadline: float | None,
) -> Iterator[TrialOutcome]:
    """Trials until there are ``n_trials``, none is left, or time is up."""
    for k in range(n_trials):
        if deadline is not None and k and monotonic() > deadline:
            return
        spec = search.ask()
        if spec is None:
            return
        outcome = bench.trial(spec)
        search.tell(spec, outcome.median_s)
        yield outcome


@contextmanager
def _recording_when_stopped(
    bench: IsolatedBench,
    outcomes: Sequence[TrialOutcome],
    store: RecordStore,
    strategy: str,
) -> Iterator[None]:
    """Record the best of the trials done so far if the body is interrupted."""
    try:
        yield
    except BaseException:
        if any(outcome.is_ok for outcome in outcomes):
            try:
                record_best(bench, outcomes, store, strategy)
            except FeinsumError:
                logger.exception("what was found before the end is not recorded")
        raise
