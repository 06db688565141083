"""Several sources of facts as one store: all are queried, one stores new facts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from feinsum.canonical import WorkloadKey
from feinsum.errors import RecordNotFoundError, StoreError, StoreUnavailableError
from feinsum.memory import remembered
from feinsum.records import (
    Candidates,
    DevicePeaks,
    FactSource,
    FactStore,
    LookUp,
    PlanRecord,
    Retraction,
    Trial,
    TuningRecord,
    latest_peaks,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
D = TypeVar("D", TuningRecord, DevicePeaks, PlanRecord)
F = TypeVar("F", TuningRecord, PlanRecord)


class _Reported(set[str]):
    """Problems of layers that were logged."""


class ReportedError(StoreUnavailableError):
    """A layer cannot be queried, which was already logged."""


class LayeredStore(FactStore):
    """Several sources of facts as one store.

    The facts are the union of all layers, without those that any of them retracts;
    which record is used depends on how well it fits, not on its layer. A layer that
    fails is skipped on reads: this is logged once, and :attr:`problems` has the reason.
    It is an error only if all fail.

    Args:
        layers: the layers in query order; for one that could not be opened, the error.
        written: the layer for new facts, or why there is none; by default the first.

    Attributes:
        problems: why layers were skipped, by number.
    """

    def __init__(
        self,
        layers: Sequence[FactSource | StoreError],
        written: FactSource | StoreError | None = None,
    ) -> None:
        self.layers = tuple(layers)
        self.problems: dict[int, StoreError] = {}
        self._written = written

    def add(self, record: TuningRecord) -> bool:
        return self.written.add(record)

    def add_rekeyed(self, record: TuningRecord, origin: str) -> bool:
        return self.written.add_rekeyed(record, origin)

    def add_peaks(self, peaks: DevicePeaks) -> bool:
        return self.written.add_peaks(peaks)

    def add_trial(self, trial: Trial) -> bool:
        return self.written.add_trial(trial)

    def add_plan(self, record: PlanRecord) -> bool:
        return self.written.add_plan(record)

    def check_writable(self) -> None:
        self.written.check_writable()

    @property
    def written(self) -> FactStore:
        """The layer that stores new facts.

        Raises:
            StoreError: if there is none.
        """
        written = self.layers[0] if self._written is None else self._written
        if isinstance(written, StoreError):
            raise _again(written)
        if not isinstance(written, FactStore):
            raise StoreUnavailableError("the layer to write to is read-only")
        return written

    def get(self, record_id: str) -> TuningRecord:
        for retraction in self.retractions_of([record_id]):
            raise RecordNotFoundError(
                f"the record {record_id} was retracted by {retraction}"
            )
        missing = None
        for k, layer in enumerate(self.layers):
            try:
                return _usable(layer).get(record_id)
            except RecordNotFoundError as error:
                missing = error
            except StoreError as error:
                self._pass_over(k, error)
        raise missing or self._first_problem()

    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        answers = self._ask(lambda layer: layer.query(workload, device_id=device_id))
        return self._without_retracted(_union(answers))

    def candidates(self, look_up: LookUp) -> Candidates:
        answers = self._ask(lambda layer: layer.candidates(look_up))
        found = {
            key: _union(answer[key] for answer in answers) for key in look_up.workloads
        }
        valid = {
            r.id
            for r in self._without_retracted([r for f in found.values() for r in f])
        }
        return {
            key: tuple(record for record in records if record.id in valid)
            for key, records in found.items()
        }

    def records(self) -> Iterator[TuningRecord]:
        # read to the end here, where a layer that fails is skipped
        answers = self._ask(lambda layer: tuple(layer.records()))
        yield from self._without_retracted(_union(answers))

    def like(self, notation: str) -> Iterator[TuningRecord]:
        answers = self._ask(lambda layer: tuple(layer.like(notation)))
        yield from self._without_retracted(_union(answers))

    def __len__(self) -> int:
        return sum(1 for _ in self.records())

    def peaks(self, device_id: str) -> DevicePeaks | None:
        answers = self._ask(lambda layer: layer.peaks(device_id))
        return latest_peaks(
            self._without_retracted([found for found in answers if found])
        )

    def trials(self, workload: WorkloadKey) -> tuple[Trial, ...]:
        answers = self._ask(lambda layer: layer.trials(workload))
        found = {trial.id: trial for trials in answers for trial in trials}
        return tuple(sorted(found.values(), key=lambda t: (t.recorded_at, t.id)))

    def tried(self) -> tuple[WorkloadKey, ...]:
        answers = self._ask(lambda layer: layer.tried())
        return tuple(sorted({key for keys in answers for key in keys}))

    def plans(self, workload: str) -> tuple[PlanRecord, ...]:
        answers = self._ask(lambda layer: layer.plans(workload))
        return self._without_retracted(_union(answers))

    def retractions_of(self, ids: Collection[str]) -> tuple[Retraction, ...]:
        answers = self._ask(lambda layer: layer.retractions_of(ids))
        found = {one.id: one for retractions in answers for one in retractions}
        return tuple(found[one] for one in sorted(found))

    def close(self) -> None:
        for layer in self.layers:
            if isinstance(layer, FactSource):
                layer.close()

    def _without_retracted(self, documents: Sequence[D]) -> tuple[D, ...]:
        """Those that no layer retracts, wherever they lie."""
        if not documents:
            return ()
        retractions = self.retractions_of([document.id for document in documents])
        retracted = {one.document for one in retractions}
        return tuple(one for one in documents if one.id not in retracted)

    def _ask(self, question: Callable[[FactSource], T]) -> list[T]:
        answers = []
        for k, layer in enumerate(self.layers):
            try:
                answers.append(question(_usable(layer)))
            except StoreError as error:
                self._pass_over(k, error)
        if not answers:
            raise self._first_problem()
        return answers

    def _pass_over(self, k: int, error: StoreError) -> None:
        self.problems[k] = error
        reported = remembered(_Reported)
        if str(error) not in reported and not isinstance(error, ReportedError):
            reported.add(str(error))
            logger.warning("skipping a layer of facts: %s", error)

    def _first_problem(self) -> StoreError:
        none = StoreUnavailableError("no layer of facts was given")
        return next(iter(self.problems.values()), none)


def _usable(layer: FactSource | StoreError) -> FactSource:
    if isinstance(layer, StoreError):
        raise _again(layer)
    return layer


def _again(error: StoreError) -> StoreError:
    """The same error without the traceback that it has gathered."""
    return type(error)(str(error))


def _union(answers: Iterable[Iterable[F]]) -> tuple[F, ...]:
    """All records of some answers, each once, ordered by id.

    One is trusted if a layer trusts it.
    """
    found: dict[str, F] = {}
    for record in (record for records in answers for record in records):
        if record.is_trusted or record.id not in found:
            found[record.id] = record
    return tuple(found[record_id] for record_id in sorted(found))
