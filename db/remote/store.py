"""A service as a store: every request gets an answer or an error."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Self

from feinsum.db.exchange.merging import batches
from feinsum.db.remote.answer_cache import forget_answers
from feinsum.db.remote.best import MAX_TEXT_LENGTH, best_of
from feinsum.db.remote.client import Client, pages, parsed
from feinsum.db.remote.documents import (
    is_content_id,
    parse_entry,
    parse_record,
    peaks_of,
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
    Candidates,
    Demand,
    DevicePeaks,
    Document,
    DocumentKind,
    Filters,
    LookUp,
    Retraction,
    RetractionQuery,
    Store,
    TuningRecord,
    from_json,
    kind_of,
    to_json,
)

PAGE = 200
"""How many facts are read at once."""

PATHS: Mapping[DocumentKind, str] = {
    "record": "/v1/facts",
    "peaks": "/v1/peaks",
    "plan": "/v1/plans",
    "retraction": "/v1/retractions",
}
"""Where documents of a kind are posted; a service takes no trials."""


class HttpStore(Store):
    """The facts of a service.

    When ``add`` returns, the fact is on the disk of the service. Facts that do not
    match their ids are skipped and logged, like rows of a database. Trials are not
    stored there. A retraction needs a key with the scope ``admin``.

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
        """Return the store of the service at a URL, with the configured key.

        Raises:
            StoreUnavailableError: if it is not the URL of a service, or if its key
                cannot be sent.
        """
        return cls(Client.of(url))

    @property
    def client(self) -> Client:
        """The client of the service."""
        return self._client

    def add_all(self, documents: Iterable[Document]) -> int:
        """Send documents one by one, except trials; returns how many were new.

        What was sent before a failure stays there; sending it again is harmless.
        """
        return sum([self._post(document) for document in documents])

    def _post(self, document: Document) -> bool:
        kind = kind_of(document)
        if kind not in PATHS:
            return False
        reply = self._client.post(PATHS[kind], to_json(document), expected=(200, 201))
        # A proxy that answers 200 to anything must not lose a measured fact.
        if kind == "record":
            receipt = parsed(self._client.address, reply)
            if not isinstance(receipt, dict) or receipt.get("id") != document.id:
                raise self._error("stored a different fact than the one sent")
        return reply.status == 201

    def select(self, kind: DocumentKind, filters: Filters) -> Iterator[Document]:
        """Yield facts, plans, retractions, and the latest limits of every device.

        There are no trials, and no records by notation: a service is not read as a
        whole for them. An older service has no plans and no retractions.
        """
        workload, device_id = filters.workload, filters.device_id
        is_sent = device_id is None or is_content_id(device_id)
        if filters.notation is not None or not is_sent:
            return
        parameters = {"workload": workload, "device": device_id}
        query = {name: value for name, value in parameters.items() if value is not None}
        documents: Iterable[Document] = ()
        try:
            if kind == "record":
                documents = self._records(query)
            elif kind == "plan":
                documents = self._plans(query)
            elif kind == "retraction" and not query:
                documents = sorted(self._retractions(), key=lambda r: r.id)
            elif kind == "peaks" and workload is None:
                documents = sorted(self._peaks(device_id), key=lambda peaks: peaks.id)
            for document in documents:
                if filters.among is None or document.id in filters.among:
                    yield document
        except NoSuchRouteError:
            if kind in ("record", "peaks"):  # every release has these
                raise

    def get(self, record_id: str) -> TuningRecord:
        if not is_content_id(record_id):
            raise RecordNotFoundError(f"{record_id!r} is not the id of a record")
        reply = self._client.get(f"/v1/facts/{record_id}")
        return parse_record(record_id, parsed(self._client.address, reply))

    def candidates(self, look_up: LookUp) -> Candidates:
        """Return candidates, with as few requests as possible."""
        answers = best_of(self._client, look_up)
        return {key: answer.records for key, answer in answers.items()}

    def peaks(self, device_id: str) -> DevicePeaks | None:
        if not is_content_id(device_id):
            return None
        try:
            reply = self._client.get(f"/v1/peaks/{device_id}")
        except RecordNotFoundError:
            return None
        return peaks_of(parsed(self._client.address, reply), device_id)

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
        body = {**vars(query), "reason": reason, "is_dry_run": is_dry_run}
        reply = self._client.post("/v1/facts:retract", json.dumps(body))
        if not is_dry_run:
            forget_answers(self._client.address)
        outcome = json.dumps(parsed(self._client.address, reply))
        try:
            return from_json(Retracted, outcome)
        except InvalidRecordError as error:
            raise self._error(f"does not say what was retracted: {error}") from None

    def retractions_of(self, ids: Collection[str]) -> tuple[Retraction, ...]:
        """Return none: what a service retracted is in none of its answers."""
        return ()

    def lacking(self, kind: DocumentKind, ids: Collection[str]) -> frozenset[str]:
        """Return the ids that the service lacks; never of kinds that it cannot take."""
        if kind == "plan" and not self._takes_plans():
            return frozenset()
        if kind not in ("record", "plan"):
            return frozenset(ids) - frozenset(self.ids(kind))
        missing: set[str] = set()
        for part in batches(ids):
            reply = self._client.post("/v1/facts:missing", json.dumps({"ids": part}))
            page = parsed(self._client.address, reply)
            listed = page.get("ids") if isinstance(page, dict) else None
            if not isinstance(listed, list):
                raise self._error("does not say which facts it lacks")
            missing |= set(part).intersection(filter(is_content_id, listed))
        return frozenset(missing)

    def check_writable(self) -> None:
        # An empty fact is refused in any case: as invalid if the key suffices.
        try:
            self._client.post("/v1/facts", "{}")
        except InvalidRecordError:
            return
        raise self._error("accepted an invalid fact")

    def demands(self) -> Iterator[Demand]:
        """Yield unanswered requests, most wanted first."""
        for entry in pages(self._client, "/v1/demand", "demands", {"limit": 1000}):
            try:
                demand = from_json(Demand, json.dumps(entry))
            except (InvalidRecordError, ValueError, RecursionError):
                raise self._error(
                    "answered with something other than demands"
                ) from None
            if len(demand.workload_text or "") <= MAX_TEXT_LENGTH:
                yield demand

    def __len__(self) -> int:
        workloads = pages(self._client, "/v1/workloads", "workloads", {"limit": 1000})
        try:
            return sum(int(workload["n_facts"]) for workload in workloads)
        except (KeyError, TypeError, ValueError):
            raise self._error("does not say how many facts it has") from None

    def __repr__(self) -> str:
        return f"HttpStore({str(self._client.address)!r})"

    def _records(self, filters: Mapping[str, str]) -> Iterator[TuningRecord]:
        entries = pages(self._client, "/v1/facts", "facts", {**filters, "limit": PAGE})
        for part in batches(entries, PAGE):
            yield from valid_records(part, filters.get("workload"))

    def _plans(self, filters: Mapping[str, str]) -> Iterator[Document]:
        entries = pages(self._client, "/v1/plans", "plans", {**filters, "limit": PAGE})
        for part in batches(entries, PAGE):
            yield from valid_plans(part, filters.get("workload"))

    def _retractions(self) -> Iterator[Document]:
        query = {"limit": 1000}
        for entry in pages(self._client, "/v1/retractions", "retractions", query):
            yield parse_entry("retraction", entry)

    def _peaks(self, device_id: str | None) -> Iterator[DevicePeaks]:
        """Yield the latest limits of a device, or of each device."""
        for listed_id in [device_id] if device_id else self._device_ids():
            if peaks := self.peaks(listed_id):
                yield peaks

    def _device_ids(self) -> Iterator[str]:
        for entry in pages(self._client, "/v1/devices", "devices", {"limit": 1000}):
            device_id = entry.get("id") if isinstance(entry, dict) else None
            if not is_content_id(device_id):
                raise self._error("answered with something other than devices")
            yield str(device_id)

    def _takes_plans(self) -> bool:
        """Whether the service is of a release that has plans."""
        try:
            self._client.get("/v1/plans", {"limit": 1})
        except NoSuchRouteError:
            return False
        return True

    def _error(self, problem: str) -> ServiceError:
        return ServiceError(f"the service at {self._client.address} {problem}")
