"""Several stores as one: the first takes what is new, all are asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from feinsum.canonical import WorkloadKey
from feinsum.errors import RecordNotFoundError, StoreUnavailableError
from feinsum.records import DevicePeaks, RecordStore, Trial, TrialStore, TuningRecord

__all__ = ["LayeredStore"]


class LayeredStore:
    """A :class:`feinsum.records.RecordStore` over others.

    What is known is the union; which record serves is decided by how well it fits,
    not by where it lies.

    Args:
        layers: the first is the one that is written.
    """

    def __init__(self, layers: Sequence[RecordStore]) -> None:
        self.layers = tuple(layers)

    def add(self, record: TuningRecord) -> bool:
        return self.layers[0].add(record)

    def get(self, record_id: str) -> TuningRecord:
        for layer in self.layers[:-1]:
            try:
                return layer.get(record_id)
            except RecordNotFoundError:
                continue
        return self.layers[-1].get(record_id)

    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        found = {
            record.id: record
            for layer in self.layers
            for record in layer.query(workload, device_id=device_id)
        }
        return tuple(found[record_id] for record_id in sorted(found))

    def records(self) -> Iterator[TuningRecord]:
        found = {r.id: r for layer in self.layers for r in layer.records()}
        for record_id in sorted(found):
            yield found[record_id]

    def __len__(self) -> int:
        return sum(1 for _ in self.records())

    def add_peaks(self, peaks: DevicePeaks) -> bool:
        return self.layers[0].add_peaks(peaks)

    def peaks(self, device_id: str) -> DevicePeaks | None:
        known = [found for layer in self.layers if (found := layer.peaks(device_id))]
        return max(known, key=lambda found: (found.measured_at, found.id), default=None)

    def add_trial(self, trial: Trial) -> bool:
        first = self.layers[0]
        if not isinstance(first, TrialStore):
            raise StoreUnavailableError("the first layer keeps no trials")
        return first.add_trial(trial)

    def trials(self, workload: WorkloadKey) -> tuple[Trial, ...]:
        layers = self._trial_layers()
        found = {t.id: t for layer in layers for t in layer.trials(workload)}
        return tuple(sorted(found.values(), key=lambda t: (t.recorded_at, t.id)))

    def tried(self) -> tuple[WorkloadKey, ...]:
        return tuple(
            sorted({k for layer in self._trial_layers() for k in layer.tried()})
        )

    def _trial_layers(self) -> list[TrialStore]:
        return [layer for layer in self.layers if isinstance(layer, TrialStore)]

    def close(self) -> None:
        for layer in self.layers:
            layer.close()
