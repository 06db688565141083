"""What a store knows of the einsums of a kernel, each asked for once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from feinsum.canonical import CanonicalForm, WorkloadKey
from feinsum.records import (
    Device,
    LookUp,
    Policy,
    RecordStore,
    TuningRecord,
    candidates,
)

__all__ = ["Facts"]


class Facts:
    """The candidates of a store for a device and a policy.

    What is needed together is asked for together: a store may be far away.
    """

    def __init__(self, store: RecordStore, device: Device, policy: Policy) -> None:
        self._store, self._device, self._policy = store, device, policy
        self._found: dict[WorkloadKey, tuple[TuningRecord, ...]] = {}

    def ask(self, forms: Iterable[CanonicalForm]) -> None:
        """Ask for the workloads that were not asked for yet.

        Raises:
            StoreError: if the store fails.
        """
        texts = {f.key: f.text for f in forms if f.key not in self._found}
        if texts:
            look_up = LookUp(texts, self._device, self._policy)
            self._found.update(candidates(self._store, look_up))

    def of(self, form: CanonicalForm) -> tuple[TuningRecord, ...]:
        """The records of a workload."""
        self.ask([form])
        return self._found[form.key]

    @property
    def ids(self) -> Mapping[str, tuple[str, ...]]:
        """Of each workload that was asked for, the ids of its records."""
        return {
            workload: tuple(record.id for record in records)
            for workload, records in self._found.items()
        }
