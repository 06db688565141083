"""A service as a layer of a look-up: quick, or skipped."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from feinsum.canonical import WorkloadKey
from feinsum.db.address import Address, address_of, key_for, remote_url
from feinsum.db.exchange.merging import batches
from feinsum.db.layers import ReportedError
from feinsum.db.remote.answer_cache import AnswerCache, CachedAnswer
from feinsum.db.remote.best import (
    AT_ONCE,
    BestAnswer,
    parse_truncated,
    some_best_of,
)
from feinsum.db.remote.breaker import PAUSE_S, Breaker
from feinsum.db.remote.client import Client, parsed
from feinsum.db.remote.documents import is_content_id, record_of, valid_plans
from feinsum.db.remote.store import HttpStore
from feinsum.db.remote.wire import CutOffError, Limits
from feinsum.errors import (
    FeinsumError,
    NoSuchRouteError,
    RecordNotFoundError,
    StoreUnavailableError,
)
from feinsum.memory import remembered
from feinsum.records import (
    Candidates,
    FactSource,
    LookUp,
    PlanRecord,
    TuningRecord,
)

__all__ = ["BUDGET_VARIABLE", "RemoteLayer", "open_remote", "quick_layer"]

logger = logging.getLogger(__name__)

BUDGET_VARIABLE = "FEINSUM_REMOTE_BUDGET_MS"
"""Environment variable with how long all questions of one look-up may take."""

BUDGET_MS = 300.0
MOST_BUDGET_MS = 60_000.0
CONNECT_SHARE = 1 / 3
"""How much of the budget one attempt to connect may take."""

MOST_BYTES = 16 * 2**20

MOST_PLANS = 100
"""That are asked for at once; who wants all asks the store of the service."""


class _Reported(set[str]):
    """The services whose failures were logged."""


class RemoteLayer(FactSource):
    """A service's facts, for a look-up that must neither wait nor fail.

    Only what is needed is requested.

    All requests together must fit into the budget. From a response that is too large,
    what arrives within the budget counts, which is not a failure. Responses are cached
    on disk: fresh ones are not requested again, and old ones are used when the service
    does not respond. After a failure, all processes of the user skip the service for a
    minute, which is logged once per process.

    Args:
        key: key to send with every request; None for none.
        budget_s: time budget for all requests of this layer.

    Attributes:
        note: remark on the answers; empty if they arrived as usual.
        is_cut_off: whether a response was truncated.
    """

    def __init__(self, address: Address, key: str | None, budget_s: float) -> None:
        self.address = address
        self._key = key
        self.note = ""
        self.is_cut_off = False
        self._left_s = self._budget_s = budget_s
        self._breaker = Breaker(address, key)

    def candidates(self, look_up: LookUp) -> Candidates:
        """The service's current or last answer.

        Raises:
            StoreUnavailableError: if there is no answer at all.
        """
        cache = AnswerCache(self.address, look_up)
        kept = {key: cache.read(key) for key in look_up.workloads}
        old = {key: known for key, known in kept.items() if known}
        stale = [key for key in kept if key not in old or not old[key].is_fresh]
        if stale:
            try:
                old |= self._ask(cache, look_up, stale, old)
            except FeinsumError as error:
                failure = self._failed(error)
                if not old:
                    raise failure from None
        return {key: old[key].records if key in old else () for key in kept}

    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        """The facts usable anywhere, or on a device; never all facts."""
        found = self.candidates(LookUp({workload: ""}))[workload]
        return tuple(r for r in found if device_id in (None, r.environment.device.id))

    def get(self, record_id: str) -> TuningRecord:
        if not is_content_id(record_id):
            raise RecordNotFoundError(f"{record_id!r} is not the id of a record")
        try:
            with self._asking() as client:
                reply = client.get(f"/v1/facts/{record_id}")
            return record_of(record_id, parsed(self.address, reply))
        except RecordNotFoundError:
            raise
        except FeinsumError as error:
            raise self._failed(error) from None

    def plans(self, workload: str) -> tuple[PlanRecord, ...]:
        """The first page of plans; none from an older service."""
        asked: dict[str, str | int] = {"workload": workload, "limit": MOST_PLANS}
        try:
            with self._asking() as client:
                reply = client.get("/v1/plans", asked)
            page = parsed(self.address, reply)
            listed = page.get("plans") if isinstance(page, dict) else None
            return (
                tuple(valid_plans(listed, workload)) if isinstance(listed, list) else ()
            )
        except NoSuchRouteError:
            return ()
        except FeinsumError as error:
            raise self._failed(error) from None

    def _ask(
        self,
        cache: AnswerCache,
        look_up: LookUp,
        wanted: list[WorkloadKey],
        old: Mapping[WorkloadKey, CachedAnswer],
    ) -> dict[WorkloadKey, CachedAnswer]:
        found: dict[WorkloadKey, CachedAnswer] = {}
        etags = {key: known.etag for key, known in old.items()}
        parts = [list(part) for part in batches(wanted, AT_ONCE)]
        while parts:
            part = parts.pop(0)
            texts = {key: look_up.workloads[key] for key in part}
            try:
                asked = replace(look_up, workloads=texts)
                with self._asking() as client:
                    answers = some_best_of(client, asked, etags)
            except CutOffError as error:
                some = parse_truncated(part[0], error.body)
                if some is None:  # it is garbage, however large
                    raise
                self._warn_once(str(error))
                if len(part) > 1:
                    middle = len(part) // 2
                    parts[:0] = [part[:middle], part[middle:]]
                    continue
                answers = {part[0]: some}
            except _SpentError:
                if not self.is_cut_off:
                    raise
                break
            for key, answer in answers.items():
                found[key] = _cached(key, answer, old)
                cache.put(key, found[key])
            if left := [key for key in part if key not in answers]:
                parts.insert(0, left)
        self._breaker.reset()
        return found

    @contextmanager
    def _asking(self) -> Iterator[Client]:
        """A client that has what is left of the budget; the time is counted.

        Raises:
            StoreUnavailableError: if the service is not to be asked now.
        """
        if reason := self._breaker.why_open():
            raise _OpenError(reason)
        if self._left_s <= 0:
            raise _SpentError(
                f"the service at {self.address} used up the "
                f"{self._budget_s * 1e3:g} ms of this look-up"
            )
        connect_s = min(self._left_s, self._budget_s * CONNECT_SHARE)
        limits = Limits(self._left_s, connect_s, MOST_BYTES)
        began_s = time.monotonic()
        try:
            yield Client(self.address, self._key, limits, waiting_s=0.0)
        finally:
            self._left_s -= time.monotonic() - began_s

    def _warn_once(self, reason: str) -> None:
        """An answer that is too large is no reason to leave the service alone."""
        self.note, self.is_cut_off = reason, True
        reported = remembered(_Reported)
        if f"{self.address} too large" not in reported:
            reported.add(f"{self.address} too large")
            logger.warning("%s; using what it answered so far", reason)

    def _failed(self, error: FeinsumError) -> ReportedError:
        """Leave the service alone, and say so once."""
        reason = str(error)
        is_spent = isinstance(error, _SpentError) and self.is_cut_off
        if not (isinstance(error, _OpenError) or is_spent):
            self._breaker.trip(reason)
        self.note = reason
        reported = remembered(_Reported)
        if str(self.address) not in reported:
            reported.add(str(self.address))
            logger.warning(
                "%s; it is left alone for %g s, and what it answered before counts on",
                reason,
                PAUSE_S,
            )
        return ReportedError(reason)


class _OpenError(StoreUnavailableError):
    """The service failed less than a minute ago."""


class _SpentError(StoreUnavailableError):
    """There is no time left to ask."""


def open_remote(url: str | None = None) -> RemoteLayer:
    """The service at a URL, by default that of ``FEINSUM_REMOTE``, for one look-up.

    Raises:
        StoreUnavailableError: if it is not the URL of a service, if its key cannot be
            sent, or if ``FEINSUM_REMOTE_BUDGET_MS`` is invalid.
    """
    address = address_of(remote_url() if url is None else url)
    return RemoteLayer(address, key_for(address), _budget_s())


def quick_layer(store: HttpStore) -> RemoteLayer:
    """The service of a store, for one look-up that must neither wait nor fail.

    Raises:
        StoreUnavailableError: if ``FEINSUM_REMOTE_BUDGET_MS`` is invalid.
    """
    return RemoteLayer(store.client.address, store.client.key, _budget_s())


def _cached(
    workload: WorkloadKey, answer: BestAnswer, old: Mapping[WorkloadKey, CachedAnswer]
) -> CachedAnswer:
    records = old[workload].records if answer.is_unchanged else answer.records
    return CachedAnswer(records, time.time(), answer.max_age_s, answer.etag)


def _budget_s() -> float:
    given = os.environ.get(BUDGET_VARIABLE, "").strip()
    try:
        budget_ms = float(given) if given else BUDGET_MS
    except ValueError:
        budget_ms = 0.0
    if not 0 < budget_ms <= MOST_BUDGET_MS:
        raise StoreUnavailableError(
            f"{BUDGET_VARIABLE} is {given!r}; expected milliseconds, more than 0 and "
            f"at most {MOST_BUDGET_MS:g}"
        )
    return budget_ms / 1e3
