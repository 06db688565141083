"""Autotuning: search the transforms that fit, verify, time, record the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

import loopy as lp

from feinsum.db import Database, opened_store
from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum
from feinsum.raising import raise_kernel, single_nest
from feinsum.records import (
    Environment,
    RecordStore,
    TransformSpec,
    TuningRecord,
)
from feinsum.transforms import applicable_transforms, check_spec
from feinsum.tune.isolation import IsolatedBench
from feinsum.tune.outcome import TrialOutcome
from feinsum.tune.problem import Problem, make_problem
from feinsum.tune.search import Search, Strategy, make_search

__all__ = ["TuningProgress", "TuningReport", "autotune", "record_facts"]

N_FINALISTS = 3


@dataclass(frozen=True)
class TuningProgress:
    """How far a tuning has come.

    Attributes:
        n_done, n_trials: trials so far and at most.
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
    n_trials: int = 20,
    budget_s: float | None = None,
    strategy: Strategy = "tpe",
    seed: int = 0,
    trial_limit_s: float = 60.0,
    on_progress: Callable[[TuningProgress], None] | None = None,
) -> TuningReport:
    """Search for the fastest recipe of an einsum and record it.

    Every candidate runs in a process of its own, is compared with the numpy
    reference at the given sizes and at ragged run-time extents, and is timed
    only then. The fastest are timed again in one run together with the
    untransformed kernel; these are the facts that are recorded.

    Args:
        target: an einsum, or a kernel that is one.
        sizes: values of size parameters; see :func:`feinsum.tune.make_problem`.
        n_trials: how many configurations at most.
        budget_s: no new trial starts after this time.
        trial_limit_s: after which a trial is stopped.
        on_progress: called after every trial.

    Raises:
        NotAnEinsumError: if the kernel is none.
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
    search = make_search(strategy, problem.einsum, transforms, seed)
    deadline = monotonic() + budget_s if budget_s is not None else None
    with (
        opened_store(database) as store,
        IsolatedBench(problem, trial_limit_s) as bench,
    ):
        environment = bench.start()
        outcomes = _run_trials(bench, search, n_trials, deadline, on_progress)
        records = _record_best(bench, outcomes, environment, store, strategy)
    return TuningReport(problem, outcomes, records)


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
    known = TransformSpec.parse(spec) if isinstance(spec, str) else spec
    check_spec(known, problem.einsum)
    with (
        opened_store(database) as store,
        IsolatedBench(problem, trial_limit_s) as bench,
    ):
        environment = bench.start()
        outcome = bench.trial(known)
        if not outcome.is_ok:
            raise outcome.to_error()
        (record,) = _record_best(bench, (outcome,), environment, store, "given")
    return record


def _problem_of(
    target: BatchedEinsum | lp.TranslationUnit,
    sizes: Mapping[str, int] | None,
    device: str | None,
) -> Problem:
    if isinstance(target, BatchedEinsum):
        return make_problem(target, sizes, device)
    nest = single_nest(raise_kernel(target))
    return make_problem(nest.einsum, {**nest.generalized, **(sizes or {})}, device)


def _run_trials(
    bench: IsolatedBench,
    search: Search,
    n_trials: int,
    deadline: float | None,
    on_progress: Callable[[TuningProgress], None] | None,
) -> tuple[TrialOutcome, ...]:
    outcomes: list[TrialOutcome] = []
    while len(outcomes) < n_trials:
        if deadline is not None and outcomes and monotonic() > deadline:
            break
        spec = search.ask()
        if spec is None:
            break
        outcome = bench.trial(spec)
        search.tell(spec, outcome.median_s)
        outcomes.append(outcome)
        if on_progress is not None:
            best = min((o for o in outcomes if o.is_ok), key=_median_s, default=None)
            on_progress(TuningProgress(len(outcomes), n_trials, outcome, best))
    return tuple(outcomes)


def _median_s(outcome: TrialOutcome) -> float:
    return outcome.median_s


def _record_best(
    bench: IsolatedBench,
    outcomes: tuple[TrialOutcome, ...],
    environment: Environment,
    store: RecordStore,
    strategy: str,
) -> tuple[TuningRecord, ...]:
    """Time the finalists in one run with the untransformed kernel; record them."""
    good = sorted((o for o in outcomes if o.is_ok), key=_median_s)[:N_FINALISTS]
    if not good:
        return ()
    finals = bench.compare([o.spec for o in good])
    problem = bench.problem
    records = [
        TuningRecord(
            problem.form.key,
            problem.workload_text,
            environment,
            outcome.spec,
            outcome.measurement,
            {"recorded_by": "feinsum.tune", "strategy": strategy},
        )
        for outcome in finals
        if outcome.measurement is not None
    ]
    for record in records:
        store.add(record)
    return tuple(sorted(records, key=lambda r: r.measurement.median_s))
