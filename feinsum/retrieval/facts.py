"""The trusted facts of a database about the einsums of a retrieval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from feinsum.canonical import CanonicalForm, WorkloadKey
from feinsum.records import (
    Device,
    LookUp,
    Policy,
    Store,
    TransformSpec,
    TuningRecord,
)
from feinsum.records.signature import trusted_signers, why_untrusted


@dataclass
class Facts:
    """The candidates of a store for a device and a policy.

    Related queries are sent together, since a store may be far away. If trusted signers
    are configured, facts of others are skipped.

    Attributes:
        wanted: the forms that are queried together with the first of them.

    Raises:
        SignatureError: if the setting of trusted signers is invalid.
    """

    store: Store
    device: Device
    policy: Policy
    wanted: Sequence[CanonicalForm] = ()
    _found: dict[WorkloadKey, tuple[TuningRecord, ...]] = field(default_factory=dict)
    _signers: frozenset[str] = field(default_factory=trusted_signers)

    def ask(self, forms: Iterable[CanonicalForm], *, counts: bool = True) -> None:
        """Query the workloads that were not queried yet.

        Args:
            counts: see :class:`feinsum.records.LookUp`.

        Raises:
            StoreError: if the store fails.
        """
        texts = {f.key: f.text for f in forms if f.key not in self._found}
        if texts:
            look_up = LookUp(texts, self.device, self.policy, counts)
            self._found.update(self.store.candidates(look_up))

    def of(self, form: CanonicalForm) -> tuple[TuningRecord, ...]:
        """The trusted records of a workload."""
        self.ask([form, *self.wanted])
        doubts = self._doubts(form.key)
        return tuple(r for r in self._found[form.key] if r.id not in doubts)

    def passed_over(self, form: CanonicalForm) -> list[tuple[TransformSpec, str]]:
        """The recipes of the untrusted records of a workload, and why."""
        doubts = self._doubts(form.key)
        return [
            (record.spec, f"record {record.id[:12]}: {doubts[record.id]}")
            for record in self._found.get(form.key, ())
            if record.id in doubts
        ]

    def _doubts(self, workload: WorkloadKey) -> dict[str, str]:
        """Records without a trusted signer, by id, with the reason."""
        if not self._signers:
            return {}
        found = {
            record.id: why_untrusted(record, self._signers)
            for record in self._found.get(workload, ())
        }
        return {record_id: why for record_id, why in found.items() if why}

    @property
    def ids(self) -> Mapping[str, tuple[str, ...]]:
        """For each workload that was queried, the ids of its records."""
        return {
            workload: tuple(record.id for record in records)
            for workload, records in self._found.items()
        }
