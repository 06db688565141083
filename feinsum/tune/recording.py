"""From trials to facts: the fastest again in one run, then into the store."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from feinsum.db import SqlStore
from feinsum.errors import StoreUnavailableError
from feinsum.records import RecordStore, TransformSpec, TuningRecord
from feinsum.tune.isolation import IsolatedBench
from feinsum.tune.outcome import TrialOutcome

__all__ = ["check_writable", "compare_apart", "fastest", "record", "record_best"]

logger = logging.getLogger(__name__)

N_FINALISTS = 3


def check_writable(store: RecordStore) -> None:
    """Refuse a store that cannot take facts before work is done for them.

    Raises:
        StoreUnavailableError: if it is open for reading only.
    """
    if isinstance(store, SqlStore) and (info := store.info()).is_read_only:
        raise StoreUnavailableError(
            f"the database {info.location} is open for reading only and cannot take "
            "what a tuning finds: ask for write permission on the file and on its "
            "folder, or give another database"
        )


def fastest(outcomes: Sequence[TrialOutcome]) -> list[TrialOutcome]:
    """The trials that passed, the fastest first."""
    good = [outcome for outcome in outcomes if outcome.is_ok]
    return sorted(good, key=lambda outcome: outcome.median_s)


def record_best(
    bench: IsolatedBench,
    outcomes: Sequence[TrialOutcome],
    store: RecordStore,
    strategy: str,
) -> tuple[TuningRecord, ...]:
    """Time the finalists in one run with the untransformed kernel; record them."""
    finalists = [outcome.spec for outcome in fastest(outcomes)[:N_FINALISTS]]
    if not finalists:
        logger.warning("nothing is recorded: none of %d trials passed", len(outcomes))
        return ()
    finals = compare_apart(bench, finalists)
    for outcome in finals:
        if not outcome.is_ok:
            logger.warning("not recorded: %s", outcome.to_error())
    return record(bench, finals, store, strategy)


def compare_apart(
    bench: IsolatedBench, specs: Sequence[TransformSpec]
) -> tuple[TrialOutcome, ...]:
    """Compare in one run; one by one where that fails, so that one spoils no other."""
    outcomes = bench.compare(specs)
    if len(specs) == 1 or all(outcome.is_ok for outcome in outcomes):
        return outcomes
    return tuple(bench.compare([spec])[0] for spec in specs)


def record(
    bench: IsolatedBench,
    outcomes: Sequence[TrialOutcome],
    store: RecordStore,
    strategy: str,
) -> tuple[TuningRecord, ...]:
    """Keep what a comparison measured; the facts, the fastest first."""
    problem, environment = bench.problem, bench.start()
    records = [
        TuningRecord(
            problem.form.key,
            problem.workload_text,
            environment,
            outcome.spec,
            outcome.measurement,
            {"recorded_by": "feinsum.tune", "strategy": strategy},
        )
        for outcome in outcomes
        if outcome.measurement is not None
    ]
    for fact in records:
        store.add(fact)
    return tuple(sorted(records, key=lambda fact: fact.measurement.median_s))
