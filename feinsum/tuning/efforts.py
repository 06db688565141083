"""Facts created on first use, with the requested effort."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from constantdict import constantdict

from feinsum.causes import is_known_cause
from feinsum.db import Database, opened_store
from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum
from feinsum.measure import open_device
from feinsum.predict import Effort
from feinsum.records import (
    Environment,
    LookUp,
    MatchLevel,
    Store,
    get_match_level,
)
from feinsum.tuning.problem import TuningProblem, make_problem
from feinsum.tuning.recording import find_trials
from feinsum.tuning.search import Strategy
from feinsum.tuning.tuning import DEFAULT_TRIALS, tune_einsum

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TuningLimits:
    """The limits of a tuning; see :func:`feinsum.tuning.tune_einsum`.

    Attributes:
        n_trials: maximum number of trials; None for all.
        budget_s: no new trial starts after this time.
    """

    n_trials: int | None
    budget_s: float | None = None
    strategy: Strategy = "tpe"


LIMITS: Mapping[Effort, TuningLimits] = constantdict(
    {
        "measure": TuningLimits(5, budget_s=10.0),
        "patient": TuningLimits(DEFAULT_TRIALS),
        "exhaustive": TuningLimits(None, strategy="exhaustive"),
    }
)
"""Limits of the efforts that measure. A search starts with the predicted recipes, so
``measure`` times only the best of these."""


def ensure_measured(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None,
    effort: Effort,
    *,
    device: str | None = None,
    database: Database = None,
) -> bool:
    """Tune an einsum unless this was done here, at these sizes and with this effort.

    Args:
        einsum: the einsum to tune.
        sizes: see :func:`feinsum.tuning.make_problem`.
        effort: one of those that measure.
        device: as for :func:`feinsum.tuning.tune_einsum`.
        database: as for :func:`feinsum.tuning.tune_einsum`.

    Returns:
        Whether anything was measured.

    Raises:
        FeinsumError: if it cannot be tuned here, or nothing can be recorded.
    """
    problem, limits = make_problem(einsum, sizes, device), LIMITS[effort]
    # Trials depend on the environment, but not on the policy of the measurement.
    with opened_store(database, has_shipped=True, may_create=True) as store:
        if _is_known(problem, limits, store, open_device(device).environment({})):
            return False
        tune_einsum(
            problem.einsum,
            sizes=problem.sizes,
            device=device,
            database=store,
            n_trials=limits.n_trials,
            budget_s=limits.budget_s,
            strategy=limits.strategy,
        )
    return True


def measure_if_possible(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None,
    effort: Effort,
    *,
    device: str | None = None,
    database: Database = None,
) -> None:
    """Run :func:`ensure_measured`, but only log failures.

    A failure of the machine is a warning, once. Without a measurement the recipe is
    predicted.
    """
    try:
        ensure_measured(einsum, sizes, effort, device=device, database=database)
    except FeinsumError as error:
        is_known = is_known_cause(error, "measure")
        level = logging.INFO if is_known else logging.WARNING
        logger.log(level, "nothing is measured for %s: %s", einsum.subscripts, error)


def _is_known(
    problem: TuningProblem, limits: TuningLimits, store: Store, environment: Environment
) -> bool:
    """Return whether enough trials, or with a small budget a fact, are on record."""
    n_known = len(find_trials(store, problem, environment))
    if limits.n_trials is not None and n_known >= limits.n_trials:
        return True
    return limits.budget_s is not None and _has_fact(problem, store, environment)


def _has_fact(problem: TuningProblem, store: Store, environment: Environment) -> bool:
    key = problem.form.key
    look_up = LookUp(
        {key: problem.workload_text}, environment.device, "strict", counts=False
    )
    return any(
        record.workload_text == problem.workload_text
        and record.measurement.sizes == problem.sizes
        and get_match_level(record, environment) == MatchLevel.EXACT
        for record in store.candidates(look_up).get(key, ())
    )
