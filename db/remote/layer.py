"""A service as a layer of a look-up: quick, or skipped."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from feinsum.canonical import WorkloadKey
from feinsum.db.address import Address, address_of, key_for, remote_url
from feinsum.db.layers import ReportedError
from feinsum.db.remote.answer_cache import AnswerCache
from feinsum.db.remote.best import ask_in_parts
from feinsum.db.remote.breaker import PAUSE_S, Breaker
from feinsum.db.remote.client import Client, parsed
from feinsum.db.remote.documents import is_content_id, record_of, valid_plans
from feinsum.db.remote.store import HttpStore
from feinsum.db.remote.wire import Limits
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

logger = logging.getLogger(__name__)

T = TypeVar("T")

BUDGET_VARIABLE = "FEINSUM_REMOTE_BUDGET_MS"
"""Environment variable with how long all questions of one look-up may take."""

BUDGET_MS = 300.0
MOST_BUDGET_MS = 60_000.0
CONNECT_SHARE = 1 / 3
"""How much of the budget one attempt to connect may take."""

MOST_BYTES = 16 * 2**20

MOST_PLANS = 100
"""Plans requested at once; the store of the service gives all of them."""


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
        cache, wanted = AnswerCache(self.address, look_up), look_up.workloads
        known = {key: kept for key in wanted if (kept := cache.read(key))}
        fresh = {key for key, kept in known.items() if kept.is_fresh}
        stale = {key: text for key, text in wanted.items() if key not in fresh}
        if stale:
            asked = replace(look_up, workloads=stale)
            etags = {key: kept.etag for key, kept in known.items()}
            try:
                answers = ask_in_parts(self._asking, asked, etags, self._warn_once)
                known |= cache.stored(self._in_time(answers), known)
                self._breaker.reset()
            except FeinsumError as error:
                failure = self._failed(error)
                if not known:
                    raise failure from None
        return {key: known[key].records if key in known else () for key in wanted}

    def query(
        self, workload: WorkloadKey, *, device_id: str | None = None
    ) -> tuple[TuningRecord, ...]:
        """The facts usable anywhere, or on a device; never all facts."""
        found = self.candidates(LookUp({workload: ""}, counts=False))[workload]
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
        """The first page of trusted plans; none from an older service.

        Those of others would be of no use, and could be any number.
        """
        asked: dict[str, str | int] = {
            "workload": workload,
            "trusted": "true",
            "limit": MOST_PLANS,
        }
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

    def _in_time(self, answers: Iterator[T]) -> Iterator[T]:
        """Answers within the time, if the size of a part exhausts it."""
        try:
            yield from answers
        except _SpentError:
            if not self.is_cut_off:
                raise

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
                f"the service at {self.address} used up the budget of "
                f"{self._budget_s * 1e3:g} ms for this look-up"
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
            logger.warning("%s; using its answers so far", reason)

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
                "%s; not queried for %g s, earlier answers are used instead",
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
