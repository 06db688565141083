"""Several stores as one: one of them takes what is new, all are asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NoReturn, TypeVar

from feinsum.canonical import WorkloadKey
from feinsum.errors import RecordNotFoundError, StoreError, StoreUnavailableError
from feinsum.records import (
    Candidates,
    DevicePeaks,
    LookUp,
    RecordStore,
    Trial,
    TrialStore,
    TuningRecord,
    candidates,
)

__all__ = ["LayeredStore", "ToldError", "UnavailableStore"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_told: set[str] = set()


class ToldError(StoreUnavailableError):
    """A layer cannot be asked, and the log has said so already."""


class LayeredStore:
    """A :class:`feinsum.records.RecordStore` over others.

    What is known is the union; which record serves is decided by how well it fits,
    not by where it lies. A layer that fails is passed over when something is read: the
    log says so once, and :attr:`problems` says why. Only if all fail is that an error.

    Args:
        layers: in the order in which they are asked.
        written: the one that takes what is new; by default the first.

    Attributes:
        problems: why layers were passed over, by their number.
    """

    def __init__(
        self, layers: Sequence[RecordStore], written: RecordStore | None = None
    ) -> None:
        self.layers = tuple(layers)
        self.written = self.layers[0] if written is None else written
        self.problems: dict[int, StoreError] = {}

    def add(self, record: TuningRecord) -> bool:
        return self.written.add(record)

    def get(self, record_id: str) -> TuningRecord:
        missing = None
        for k, layer in enumerate(self.layers):
            try:
                return layer.get(record_id)
            except RecordNotFoundError as error:
                missing = error
            except StoreError as error:
                self._pass_over(k, error)
        raise missing or self._first_problem()

    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        answers = self._ask(lambda layer: layer.query(workload, device_id=device_id))
        return _union(answers)

    def candidates(self, look_up: LookUp) -> Candidates:
        """What each layer gives by :func:`feinsum.records.candidates`, united."""
        answers = self._ask(lambda layer: candidates(layer, look_up))
        return {
            key: _union(answer[key] for answer in answers) for key in look_up.workloads
        }

    def records(self) -> Iterator[TuningRecord]:
        yield from _union(self._ask(lambda layer: tuple(layer.records())))

    def __len__(self) -> int:
        return sum(1 for _ in self.records())

    def add_peaks(self, peaks: DevicePeaks) -> bool:
        return self.written.add_peaks(peaks)

    def peaks(self, device_id: str) -> DevicePeaks | None:
        answers = self._ask(lambda layer: layer.peaks(device_id))
        known = [found for found in answers if found]
        return max(known, key=lambda found: (found.measured_at, found.id), default=None)

    def add_trial(self, trial: Trial) -> bool:
        if not isinstance(self.written, TrialStore):
            raise StoreUnavailableError("the layer that is written keeps no trials")
        return self.written.add_trial(trial)

    def trials(self, workload: WorkloadKey) -> tuple[Trial, ...]:
        answers = self._ask(
            lambda layer: (
                layer.trials(workload) if isinstance(layer, TrialStore) else ()
            )
        )
        found = {trial.id: trial for trials in answers for trial in trials}
        return tuple(sorted(found.values(), key=lambda t: (t.recorded_at, t.id)))

    def tried(self) -> tuple[WorkloadKey, ...]:
        answers = self._ask(
            lambda layer: layer.tried() if isinstance(layer, TrialStore) else ()
        )
        return tuple(sorted({key for keys in answers for key in keys}))

    def close(self) -> None:
        for layer in self.layers:
            layer.close()

    def _ask(self, question: Callable[[RecordStore], T]) -> list[T]:
        answers = []
        for k, layer in enumerate(self.layers):
            try:
                answers.append(question(layer))
            except StoreError as error:
                self._pass_over(k, error)
        if not answers:
            raise self._first_problem()
        return answers

    def _pass_over(self, k: int, error: StoreError) -> None:
        self.problems[k] = error
        if str(error) not in _told and not isinstance(error, ToldError):
            _told.add(str(error))
            logger.warning("a layer of facts is passed over: %s", error)

    def _first_problem(self) -> StoreError:
        none = StoreUnavailableError("no layer of facts is given")
        return next(iter(self.problems.values()), none)


def _union(answers: Iterable[Iterable[TuningRecord]]) -> tuple[TuningRecord, ...]:
    """All records of some answers, each once, ordered by id."""
    found = {record.id: record for records in answers for record in records}
    return tuple(found[record_id] for record_id in sorted(found))


class UnavailableStore:
    """A store that cannot be opened: whatever is asked of it raises why.

    Args:
        error: as it was raised.
    """

    def __init__(self, error: StoreError) -> None:
        self.error = error

    def add(self, record: TuningRecord) -> bool:
        self._refuse()

    def get(self, record_id: str) -> TuningRecord:
        self._refuse()

    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        self._refuse()

    def records(self) -> Iterator[TuningRecord]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()

    def add_peaks(self, peaks: DevicePeaks) -> bool:
        self._refuse()

    def peaks(self, device_id: str) -> DevicePeaks | None:
        self._refuse()

    def add_trial(self, trial: Trial) -> bool:
        self._refuse()

    def trials(self, workload: WorkloadKey) -> tuple[Trial, ...]:
        self._refuse()

    def tried(self) -> tuple[WorkloadKey, ...]:
        self._refuse()

    def close(self) -> None:
        """Nothing to release."""

    def _refuse(self) -> NoReturn:
        raise type(self.error)(str(self.error))
