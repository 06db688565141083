"""A service as a store: every request gets an answer or an error."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar, cast

from feinsum.db.remote.answers import (
    MAX_TEXT_LENGTH,
    forget_answers,
    list_valid_documents,
    parse_entry,
    request_best,
)
from feinsum.db.remote.client import Client
from feinsum.db.sql.retracting import Retracted
from feinsum.db.sql.rows import split_into_batches
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
    get_kind,
    to_json,
)
from feinsum.records.kinds import is_content_id, parse_foreign_document

T = TypeVar("T")

PAGE = 200
"""Facts to read, or ids to look for, in one request."""

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
        self.client = client

    @classmethod
    def at(cls, url: str) -> Self:
        """Return the store of the service at a URL, with the configured key.

        Raises:
            StoreUnavailableError: if it is not the URL of a service, or if its key
                cannot be sent.
        """
        return cls(Client.of(url))

    def add_all(self, documents: Iterable[Document]) -> int:
        """Send documents one by one, except trials; return how many were new.

        What was sent before a failure stays there; sending it again is harmless.
        """
        return sum([self._post(document) for document in documents])

    def _post(self, document: Document) -> bool:
        kind = get_kind(document)
        if kind not in PATHS:
            return False
        reply = self.client.post(PATHS[kind], to_json(document), expected=(200, 201))
        # A proxy that answers 200 to anything must not lose a measured fact.
        if kind == "record":
            receipt = self.client.parse(reply)
            if not isinstance(receipt, dict) or receipt.get("id") != document.id:
                raise self._error("stored a different fact than the one sent")
        # 201 for a new document, 200 for one that the service had
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
            if kind in ("record", "plan"):
                documents = self._list_facts(kind, query)
            elif kind == "retraction" and not query:
                listed = self._list(PATHS[kind], "retractions")
                retractions = [parse_entry(kind, entry) for entry in listed]
                documents = sorted(retractions, key=lambda r: r.id)
            elif kind == "peaks" and workload is None:
                ids = [device_id] if device_id else self._list_device_ids()
                peaks = filter(None, map(self.peaks, ids))
                documents = sorted(peaks, key=lambda peaks: peaks.id)
            for document in documents:
                if filters.among is None or document.id in filters.among:
                    yield document
        except NoSuchRouteError:
            if kind in ("record", "peaks"):  # every release has these
                raise

    def get(self, record_id: str) -> TuningRecord:
        # the id becomes a part of the path, where other text could name another route
        if not is_content_id(record_id):
            raise RecordNotFoundError(f"{record_id!r} is not the id of a record")
        data = self._read(f"/v1/facts/{record_id}")
        return cast(TuningRecord, parse_foreign_document("record", record_id, data))

    def candidates(self, look_up: LookUp) -> Candidates:
        """Return candidates, with as few requests as possible."""
        answers = request_best(self.client, look_up)
        return {key: answer.records for key, answer in answers}

    def peaks(self, device_id: str) -> DevicePeaks | None:
        if not is_content_id(device_id):
            return None
        try:
            peaks = _parse(DevicePeaks, self._read(f"/v1/peaks/{device_id}"))
        except RecordNotFoundError:
            return None
        if peaks.device.id != device_id:
            raise InvalidRecordError(
                f"a service sent the limits of the device {peaks.device.id}, expected "
                f"those of {device_id}"
            )
        return peaks

    def retract(
        self,
        query: RetractionQuery,
        *,
        reason: str = "",
        retracted_by: str = "",
        is_dry_run: bool = True,
    ) -> Retracted:
        """Retract facts; the key needs the scope ``admin``.

        Cached answers of this user's look-ups are cleared. ``retracted_by`` is not
        sent: the service uses the name of the key.
        """
        body = {**vars(query), "reason": reason, "is_dry_run": is_dry_run}
        reply = self.client.post("/v1/facts:retract", json.dumps(body))
        if not is_dry_run:
            forget_answers(self.client.address)
        try:
            return _parse(Retracted, self.client.parse(reply))
        except InvalidRecordError as error:
            raise self._error(f"does not say what was retracted: {error}") from None

    def retractions_of(self, ids: Collection[str]) -> tuple[Retraction, ...]:
        """Return none: what a service retracted is in none of its answers."""
        return ()

    def find_lacking(self, kind: DocumentKind, ids: Collection[str]) -> frozenset[str]:
        """Return the ids that the service lacks; none of a kind that it refuses."""
        if kind == "plan" and not self._has_plans():
            return frozenset()
        if kind not in ("record", "plan"):
            return frozenset(ids) - frozenset(self.ids(kind))
        missing: set[str] = set()
        for batch in split_into_batches(ids, PAGE):
            # in the body, because servers limit the length of a URL, often to 8 KB
            reply = self.client.post("/v1/facts:missing", json.dumps({"ids": batch}))
            page = self.client.parse(reply)
            listed = page.get("ids") if isinstance(page, dict) else None
            if not isinstance(listed, list):
                raise self._error("does not say which facts it lacks")
            missing |= set(batch).intersection(filter(is_content_id, listed))
        return frozenset(missing)

    def check_writable(self) -> None:
        # An empty fact is refused in any case: as invalid if the key suffices.
        try:
            self.client.post("/v1/facts", "{}")
        except InvalidRecordError:
            return
        raise self._error("accepted an invalid fact")

    def demands(self) -> Iterator[Demand]:
        """Yield unanswered requests, most wanted first."""
        for entry in self._list("/v1/demand", "demands"):
            try:
                demand = _parse(Demand, entry)
            except InvalidRecordError:
                raise self._error(
                    "answered with something other than demands"
                ) from None
            if len(demand.workload_text or "") <= MAX_TEXT_LENGTH:
                yield demand

    def __len__(self) -> int:
        workloads = self._list("/v1/workloads", "workloads")
        try:
            return sum(int(workload["n_facts"]) for workload in workloads)
        except (KeyError, TypeError, ValueError):
            raise self._error("does not say how many facts it has") from None

    def __repr__(self) -> str:
        return f"HttpStore({str(self.client.address)!r})"

    def _read(self, path: str) -> Any:
        return self.client.parse(self.client.get(path))

    def _list(self, path: str, name: str) -> Iterator[Any]:
        return self.client.iterate_pages(path, name, {"limit": 1000})

    def _list_facts(
        self, kind: DocumentKind, query: Mapping[str, str]
    ) -> Iterator[Document]:
        name = PATHS[kind].removeprefix("/v1/")
        entries = self.client.iterate_pages(PATHS[kind], name, {**query, "limit": PAGE})
        for batch in split_into_batches(entries, PAGE):
            yield from list_valid_documents(kind, batch, query.get("workload"))

    def _list_device_ids(self) -> Iterator[str]:
        for entry in self._list("/v1/devices", "devices"):
            device_id = entry.get("id") if isinstance(entry, dict) else None
            if not is_content_id(device_id):
                raise self._error("answered with something other than devices")
            yield str(device_id)

    def _has_plans(self) -> bool:
        """Return whether the service is of a release that has plans."""
        try:
            self.client.get("/v1/plans", {"limit": 1})
        except NoSuchRouteError:
            return False
        return True

    def _error(self, problem: str) -> ServiceError:
        return ServiceError(f"the service at {self.client.address} {problem}")


def _parse(kind: type[T], data: Any) -> T:
    """Parse JSON data of a service that has no id."""
    try:
        return from_json(kind, json.dumps(data))
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(
            f"a service sent no valid {kind.__name__}: {error}"
        ) from None
