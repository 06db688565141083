"""The workloads of a database, each with its totals."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from feinsum.db.sql.statements import RETRACTED
from feinsum.db.sql.tables import RecordRow, TrialRow, WorkloadRow


@dataclass(frozen=True)
class WorkloadCount:
    """Totals of a workload.

    Attributes:
        text: its canonical einsum.
        n_records: number of facts that are not retracted.
        n_devices: number of devices on which these were measured.
        highest_speedup: highest speed-up of these facts; None without one.
    """

    key: str
    text: str
    n_records: int
    n_devices: int
    n_trials: int
    highest_speedup: float | None


FACTS = (
    select(
        RecordRow.workload_key,
        WorkloadRow.text,
        func.count(),
        func.count(RecordRow.device_id.distinct()),
        func.max(RecordRow.speedup),
    )
    .join_from(RecordRow, WorkloadRow)
    .where(~RETRACTED)
    .group_by(RecordRow.workload_key, WorkloadRow.text)
)
N_TRIALS = select(TrialRow.workload_key, func.count()).group_by(TrialRow.workload_key)
A_TRIAL = select(TrialRow.workload_key, func.min(TrialRow.document)).group_by(
    TrialRow.workload_key
)


def list_workloads(connection: Connection) -> tuple[WorkloadCount, ...]:
    """Workloads with facts or trials, by number of facts, of trials, then by key."""
    n_trials = {row[0]: row[1] for row in connection.execute(N_TRIALS)}
    found = [
        WorkloadCount(key, text, n, n_devices, n_trials.get(key, 0), speedup)
        for key, text, n, n_devices, speedup in connection.execute(FACTS)
    ]
    rest = sorted({*n_trials} - {one.key for one in found})
    found += [
        WorkloadCount(key, text, 0, 0, n_trials[key], None)
        for key, text in _texts(connection, rest)
    ]
    found.sort(key=lambda one: (-one.n_records, -one.n_trials, one.key))
    return tuple(found)


PAGE = 500


def _texts(connection: Connection, keys: list[str]) -> Iterator[tuple[str, str]]:
    """The einsums of workloads of which there are only trials."""
    for first in range(0, len(keys), PAGE):
        chosen = TrialRow.workload_key.in_(keys[first : first + PAGE])
        for key, document in connection.execute(A_TRIAL.where(chosen)):
            yield key, json.loads(document).get("workload_text", "")
