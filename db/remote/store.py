"""A service as a store: every request gets an answer or an error."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Self

from feinsum.canonical import WorkloadKey
from feinsum.db.exchange.merging import batches
from feinsum.db.remote.answer_cache import forget_answers
from feinsum.db.remote.best import LONGEST_TEXT, best_of
from feinsum.db.remote.client import Client, pages, parsed
from feinsum.db.remote.documents import (
    is_content_id,
    peaks_of,
    record_of,
    retraction_of,
    valid_plans,
    valid_records,
)
from feinsum.db.sql.retracting import Retracted
from feinsum.errors import (
    InvalidRecordError,
    NoSuchRouteError,
    RecordNotFoundError,
    ServiceError,
)
from feinsum.records import (
    KINDS,
    Candidates,
    Demand,
    DevicePeaks,
    Document,
    DocumentKind,
    FactStore,
    LookUp,
    PlanRecord,
    Retraction,
    RetractionQuery,
    Trial,
    TuningRecord,
    from_json,
    kind_of,
    to_json,
)

logger = logging.getLogger(__name__)

PAGE = 200
"""How many facts are read at once."""


class HttpStore(FactStore):
    """The facts of a service.

    When ``add`` returns, the fact is on the disk of the service. Facts that do not
    match their ids are skipped and logged, like rows of a database. Trials are not
    stored there.

    Every method raises a :class:`StoreUnavailableError` if the service does not answer,
    and the error of its code if it refuses: a :class:`feinsum.errors.ServiceError` for
    a missing or insufficient key.

    >>> HttpStore.at("https://facts.example/team/")
    HttpStore('https://facts.example/team')
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @classmethod
    def at(cls, url: str) -> Self:
        """The store of the service at a URL, with the configured key.

        Raises:
            StoreUnavailableError: if it is not the URL of a service, or if its key
                cannot be sent.
        """
        return cls(Client.of(url))

    @property
    def client(self) -> Client:
        """The client of the service."""
        return self._client

    def add(self, record: TuningRecord) -> bool:
        reply = self._client.post("/v1/facts", to_json(record), expected=(200, 201))
        kept = parsed(self._client.address, reply)
        if not isinstance(kept, dict) or kept.get("id") != record.id:
            raise self._odd("stored a different fact than the one sent")
        return reply.status == 201

    def get(self, record_id: str) -> TuningRecord:
        if not is_content_id(record_id):
            raise RecordNotFoundError(f"{record_id!r} is not the id of a record")
        reply = self._client.get(f"/v1/facts/{record_id}")
        return record_of(record_id, parsed(self._client.address, reply))

    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        if device_id is not None and not is_content_id(device_id):
            return ()
        wanted: dict[str, str] = {"workload": workload}
        if device_id is not None:
            wanted["device"] = device_id
        return tuple(valid_records(self._facts(wanted), workload))

    def candidates(self, look_up: LookUp) -> Candidates:
        """Candidates, with as few requests as possible."""
        found = best_of(self._client, look_up)
        return {key: answer.records for key, answer in found.items()}

    def like(self, notation: str) -> Iterator[TuningRecord]:
        """None: a service is not read as a whole for them."""
        yield from ()

    def records(self) -> Iterator[TuningRecord]:
        """Every record, page by page, ordered by id."""
        for part in batches(self._facts({}), PAGE):
            yield from valid_records(part)

    def __len__(self) -> int:
        found = pages(self._client, "/v1/workloads", "workloads", {"limit": 1000})
        try:
            return sum(int(workload["n_facts"]) for workload in found)
        except (KeyError, TypeError, ValueError):
            raise self._odd("does not say how many facts it has") from None

    def add_trial(self, trial: Trial) -> bool:
        """Does nothing: services store no trials."""
        return False

    def add_peaks(self, peaks: DevicePeaks) -> bool:
        reply = self._client.post("/v1/peaks", to_json(peaks), expected=(200, 201))
        return reply.status == 201

    def peaks(self, device_id: str) -> DevicePeaks | None:
        if not is_content_id(device_id):
            return None
        try:
            reply = self._client.get(f"/v1/peaks/{device_id}")
        except RecordNotFoundError:
            return None
        return peaks_of(parsed(self._client.address, reply), device_id)

    def add_plan(self, record: PlanRecord) -> bool:
        text = to_json(record)
        return self._client.post("/v1/plans", text, expected=(200, 201)).status == 201

    def plans(self, workload: str) -> tuple[PlanRecord, ...]:
        try:
            return tuple(valid_plans(self._plans({"workload": workload}), workload))
        except NoSuchRouteError:  # an older service
            return ()

    def add_retraction(self, retraction: Retraction) -> bool:
        """Send a retraction; the key needs the scope ``admin``."""
        text = to_json(retraction)
        reply = self._client.post("/v1/retractions", text, expected=(200, 201))
        return reply.status == 201

    def retract(
        self,
        query: RetractionQuery,
        *,
        reason: str = "",
        retracted_by: str = "",
        is_dry_run: bool = True,
    ) -> Retracted:
        """Retract facts; the key needs the scope ``admin``.

        Cached answers of this user's look-ups are cleared.

        Args:
            retracted_by: not sent; the service uses the name of the key.
        """
        asked = {**vars(query), "reason": reason, "is_dry_run": is_dry_run}
        reply = self._client.post("/v1/facts:retract", json.dumps(asked))
        if not is_dry_run:
            forget_answers(self._client.address)
        said = json.dumps(parsed(self._client.address, reply))
        try:
            return from_json(Retracted, said)
        except InvalidRecordError as error:
            raise self._odd(f"does not say what was retracted: {error}") from None

    def ids(self, kind: DocumentKind) -> Iterator[str]:
        """The ids of what a service lists; none for trials."""
        yield from (document.id for document in self.documents(kind))

    def documents(
        self, kind: DocumentKind, among: Collection[str] | None = None
    ) -> Iterator[Document]:
        """Facts, plans, retractions, and the latest limits of every device; no trials.

        An older service has no plans and no retractions.
        """
        found: Iterable[Document] = ()
        if kind == "record":
            found = self.records()
        elif kind == "peaks":
            found = sorted(self._all_peaks(), key=lambda peaks: peaks.id)
        elif kind == "retraction":
            found = sorted(self._retractions(), key=lambda one: one.id)
        elif kind == "plan":
            found = self._all_plans()
        yield from (d for d in found if among is None or d.id in among)

    def add_all(self, documents: Iterable[Document]) -> int:
        """Send documents one by one, except trials; returns how many were new.

        What was sent before a failure stays there; sending it again is harmless.
        """
        return sum(map(self._add, documents))

    def lacking(self, kind: DocumentKind, ids: Collection[str]) -> frozenset[str]:
        """What a service cannot take is not lacking."""
        if kind == "plan" and not self._takes_plans():
            return frozenset()
        if kind not in ("record", "plan"):
            return frozenset(ids) - frozenset(self.ids(kind))
        missing: set[str] = set()
        for part in batches(ids):
            asked = json.dumps({"ids": part})
            said = parsed(
                self._client.address, self._client.post("/v1/facts:missing", asked)
            )
            named = said.get("ids") if isinstance(said, dict) else None
            if not isinstance(named, list):
                raise self._odd("does not say which facts it lacks")
            missing |= set(part).intersection(filter(is_content_id, named))
        return frozenset(missing)

    def check_writable(self) -> None:
        try:
            self._client.post("/v1/facts", "{}")
        except InvalidRecordError:  # the key suffices: it came to what was sent
            return
        raise self._odd("accepted an invalid fact")

    def demands(self) -> Iterator[Demand]:
        """Unanswered requests, most wanted first."""
        for entry in pages(self._client, "/v1/demand", "demands", {"limit": 1000}):
            try:
                demand = from_json(Demand, json.dumps(entry))
            except (InvalidRecordError, ValueError, RecursionError):
                raise self._odd("answered with something other than demands") from None
            if len(demand.workload_text or "") <= LONGEST_TEXT:
                yield demand

    def __repr__(self) -> str:
        return f"HttpStore({str(self._client.address)!r})"

    def _add(self, document: Document) -> bool:
        add: Callable[[Document], bool] = getattr(self, KINDS[kind_of(document)].add)
        return add(document)

    def _retractions(self) -> Iterator[Retraction]:
        """Those of a service; one that is older has none."""
        asked = {"limit": 1000}
        try:
            for entry in pages(self._client, "/v1/retractions", "retractions", asked):
                yield retraction_of(entry)
        except NoSuchRouteError:
            return

    def _plans(self, wanted: dict[str, str]) -> Iterator[Any]:
        return pages(self._client, "/v1/plans", "plans", {**wanted, "limit": PAGE})

    def _all_plans(self) -> Iterator[PlanRecord]:
        try:
            for part in batches(self._plans({}), PAGE):
                yield from valid_plans(part)
        except NoSuchRouteError:
            return

    def _takes_plans(self) -> bool:
        """Whether the service is of a release that has plans."""
        try:
            self._client.get("/v1/plans", {"limit": 1})
        except NoSuchRouteError:
            return False
        return True

    def _facts(self, wanted: dict[str, str]) -> Iterator[Any]:
        return pages(self._client, "/v1/facts", "facts", {**wanted, "limit": PAGE})

    def _all_peaks(self) -> Iterator[DevicePeaks]:
        for device in pages(self._client, "/v1/devices", "devices", {"limit": 1000}):
            device_id = device.get("id") if isinstance(device, dict) else None
            if not is_content_id(device_id):
                raise self._odd("answered with something other than devices")
            if found := self.peaks(str(device_id)):
                yield found

    def _odd(self, problem: str) -> ServiceError:
        return ServiceError(f"the service at {self._client.address} {problem}")
