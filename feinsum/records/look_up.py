"""Looking up: what a store may choose its answer by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from feinsum.canonical import WorkloadKey
from feinsum.records.environment import Device
from feinsum.records.match import Policy
from feinsum.records.record import TuningRecord
from feinsum.records.store import RecordStore

__all__ = ["CandidateStore", "Candidates", "LookUp", "candidates"]

Candidates = Mapping[WorkloadKey, tuple[TuningRecord, ...]]
"""For each workload its records, ordered by id."""


@dataclass(frozen=True)
class LookUp:
    """Workloads that are looked up together.

    Attributes:
        workloads: their canonical texts by key; a text may be empty.
        device: for which; None for any.
        policy: the worst match that is accepted there.
    """

    workloads: Mapping[WorkloadKey, str]
    device: Device | None = None
    policy: Policy = "loose"


@runtime_checkable
class CandidateStore(Protocol):
    """A store that is better asked for many workloads at once, and says less then."""

    def candidates(self, look_up: LookUp) -> Candidates:
        """All records that :func:`feinsum.records.best_match` may choose or needs.

        Those that the policy refuses on that device may be left out.
        """
        ...


def candidates(store: RecordStore, look_up: LookUp) -> Candidates:
    """What a store knows of each workload, asked for in the way that it likes best.

    Raises:
        StoreError: if the store fails.
    """
    if isinstance(store, CandidateStore):
        return store.candidates(look_up)
    return {workload: store.query(workload) for workload in look_up.workloads}
