"""Several stores as one: all layers are queried, one of them stores new documents.

For the layers ``memory``, ``user`` and ``packaged``, of which the user's is written::

    query(key)                                        add(record)
      |-- memory   -> r1                                 |
      |-- user     -> r2, r3, and a retraction of r1     +--> user
      |-- packaged -> r3
    union without what any layer retracts: (r2, r3)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeVar

from feinsum.canonical import WorkloadKey
from feinsum.errors import RecordNotFoundError, StoreError, StoreUnavailableError
from feinsum.memory import get_remembered
from feinsum.records import (
    FACT_KINDS,
    Candidates,
    DevicePeaks,
    Document,
    DocumentKind,
    Filters,
    LookUp,
    Retraction,
    Store,
    TuningRecord,
    find_latest_peaks,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")
D = TypeVar("D", bound=Document)


class _Reported(set[str]):
    """What was logged about layers."""


def warn_once(name: str, message: str) -> None:
    """Log a warning, once per process for each name."""
    reported = get_remembered(_Reported)
    if name not in reported:
        reported.add(name)
        logger.warning(message)


class ReportedError(StoreUnavailableError):
    """A layer cannot be queried, which was already logged."""


class LayeredStore(Store):
    """Several stores as one.

    The documents are the union of all layers, without those that any of them retracts;
    which record is used depends on how well it fits, not on its layer. A layer that
    fails is skipped on reads: this is logged once, and :attr:`problems` has the reason.
    A read raises an error only if all layers fail.

    Args:
        layers: the layers in query order; for one that could not be opened, the error.
        written: the layer for new documents, or why there is none; by default the
            first.

    Attributes:
        problems: why layers were skipped, by number.
    """

    def __init__(
        self,
        layers: Sequence[Store | StoreError],
        written: Store | StoreError | None = None,
    ) -> None:
        self.layers = tuple(layers)
        self.problems: dict[int, StoreError] = {}
        self._written = written

    @property
    def written(self) -> Store:
        """The layer that stores new documents.

        Raises:
            StoreError: if there is none.
        """
        return _require_store(
            self.layers[0] if self._written is None else self._written
        )

    def add_all(self, documents: Iterable[Document]) -> int:
        return self.written.add_all(documents)

    def check_writable(self) -> None:
        self.written.check_writable()

    def select(self, kind: DocumentKind, filters: Filters) -> Iterator[Document]:
        def read(layer: Store) -> tuple[Document, ...]:
            # to the end, so that a layer that fails half-way contributes nothing
            return tuple(layer.select(kind, filters))

        united = _unite_documents(self._query(read))
        yield from self._without_retracted(united) if kind in FACT_KINDS else united

    def candidates(self, look_up: LookUp) -> Candidates:
        answers = self._query(lambda layer: layer.candidates(look_up))
        united = {
            key: _unite_documents(answer[key] for answer in answers)
            for key in look_up.workloads
        }
        # one query for the retractions of all workloads: a layer may be remote
        records = [record for records in united.values() for record in records]
        valid = {record.id for record in self._without_retracted(records)}
        return {
            key: tuple(record for record in records if record.id in valid)
            for key, records in united.items()
        }

    def stored(self, record_id: str) -> TuningRecord:
        # The first layer that has it decides: documents with one id are equal.
        missing = None
        for k, layer in enumerate(self.layers):
            try:
                return _require_store(layer).get(record_id)
            except RecordNotFoundError as error:
                missing = error
            except StoreError as error:
                self._skip(k, error)
        raise missing or self._get_first_problem()

    def peaks(self, device_id: str) -> DevicePeaks | None:
        answers = self._query(lambda layer: layer.peaks(device_id))
        # The latest of all layers: a device may have been measured again since.
        measured = [peaks for peaks in answers if peaks is not None]
        return find_latest_peaks(self._without_retracted(measured))

    def tried(self) -> tuple[WorkloadKey, ...]:
        answers = self._query(lambda layer: layer.tried())
        return tuple(sorted({key for keys in answers for key in keys}))

    def retractions_of(self, ids: Collection[str]) -> tuple[Retraction, ...]:
        return _unite_documents(self._query(lambda layer: layer.retractions_of(ids)))

    def close(self) -> None:
        for layer in self.layers:
            if isinstance(layer, Store):
                layer.close()

    def _without_retracted(self, documents: Sequence[D]) -> tuple[D, ...]:
        """Drop the documents that any layer retracts, whichever layer they are in."""
        if not documents:
            return ()
        retractions = self.retractions_of([document.id for document in documents])
        retracted = {retraction.document for retraction in retractions}
        return tuple(d for d in documents if d.id not in retracted)

    def _query(self, read: Callable[[Store], T]) -> list[T]:
        """Return the answers of all layers that can answer."""
        answers = []
        for k, layer in enumerate(self.layers):
            try:
                answers.append(read(_require_store(layer)))
            except StoreError as error:
                self._skip(k, error)
        if not answers:
            raise self._get_first_problem()
        return answers

    def _skip(self, k: int, error: StoreError) -> None:
        """Note why a layer did not answer; log each reason once per process."""
        self.problems[k] = error
        if not isinstance(error, ReportedError):
            warn_once(str(error), f"skipping a layer of facts: {error}")

    def _get_first_problem(self) -> StoreError:
        empty = StoreUnavailableError("no layer of facts was given")
        return next(iter(self.problems.values()), empty)


def _require_store(layer: Store | StoreError) -> Store:
    if isinstance(layer, StoreError):
        # a new error: raising the old one again would extend its traceback
        raise type(layer)(str(layer))
    return layer


def _unite_documents(answers: Iterable[Iterable[D]]) -> tuple[D, ...]:
    """Return all documents of some answers, each once, ordered by id.

    A document is trusted if one layer trusts it.
    """
    united: dict[str, D] = {}
    for document in (document for documents in answers for document in documents):
        if document.is_trusted or document.id not in united:
            united[document.id] = document
    return tuple(united[document_id] for document_id in sorted(united))
