"""A service as a layer of a look-up: quick, or skipped.

::

    candidates(key)
      |-- fresh answer in the cache (memory, disk)?  yes --> that answer, no request
      |-- breaker open (failed less than a minute ago)? yes --> old answer, or error
      `-- request within what is left of the budget
            |-- answered  --> cached, breaker reset
            `-- failed    --> breaker tripped; old answer, or error
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from feinsum.canonical import FORM_VERSION, WorkloadKey
from feinsum.db.address import Address, get_remote_url, get_service_key, parse_address
from feinsum.db.layers import ReportedError, warn_once
from feinsum.db.remote.answers import (
    PAUSE_S,
    Answer,
    AnswerCache,
    Breaker,
    is_fresh,
    list_valid_documents,
    request_best,
)
from feinsum.db.remote.client import Client, ExchangeLimits, HttpRequest, Reply
from feinsum.db.remote.store import HttpStore
from feinsum.errors import (
    FeinsumError,
    NoSuchRouteError,
    RecordNotFoundError,
    StoreUnavailableError,
)
from feinsum.records import (
    Candidates,
    DevicePeaks,
    Document,
    DocumentKind,
    Filters,
    LookUp,
    TuningRecord,
)

BUDGET_VARIABLE = "FEINSUM_REMOTE_BUDGET_MS"
"""Environment variable: milliseconds for all requests of one look-up."""

BUDGET_MS = 300.0
MAX_BUDGET_MS = 60_000.0
CONNECT_SHARE = 1 / 3
"""Share of the budget for one attempt to connect."""

MAX_BYTES = 16 * 2**20

MAX_PLANS = 100
"""Plans requested at once; the store of the service gives all of them."""


class _OpenError(StoreUnavailableError):
    """The service failed less than a minute ago."""


class _SpentError(StoreUnavailableError):
    """The time budget is used up."""


class BudgetedClient(Client):
    """A client with a time budget, which skips a service that has failed.

    Args:
        budget_s: time for all of its requests together.
    """

    def __init__(self, address: Address, key: str | None, budget_s: float) -> None:
        super().__init__(address, key, waiting_s=0.0)
        self.breaker = Breaker(address, key)
        self._left_s = self._budget_s = budget_s

    def exchange(self, request: HttpRequest) -> Reply:
        if reason := self.breaker.explain_open():
            raise _OpenError(reason)
        if self._left_s <= 0:
            raise _SpentError(
                f"the service at {self.address} used up the budget of "
                f"{self._budget_s * 1e3:g} ms for this look-up"
            )
        # the time-out is for each address of the host; one that is silent must leave
        # time for the next
        connect_s = min(self._left_s, self._budget_s * CONNECT_SHARE)
        self.limits = ExchangeLimits(self._left_s, connect_s, MAX_BYTES)
        start_s = time.monotonic()
        try:
            return super().exchange(request)
        finally:
            self._left_s -= time.monotonic() - start_s


class RemoteLayer(HttpStore):
    """A service's facts, for a look-up that must neither wait nor fail.

    Only what is needed is requested.

    All requests together must fit into the budget. If a response is too large,
    the part that arrives in time is used; this is no failure. Responses are cached
    on disk: fresh ones are not requested again, and old ones are used when the service
    does not respond. After a failure, all processes of the user skip the service for a
    minute, which is logged once per process.

    Args:
        key: key to send with every request; None for none.

    Raises:
        StoreUnavailableError: if ``FEINSUM_REMOTE_BUDGET_MS`` is invalid.

    Attributes:
        note: remark on the answers; empty if they arrived as usual.
        is_cut_off: whether a response was truncated.
    """

    client: BudgetedClient

    def __init__(self, address: Address, key: str | None) -> None:
        super().__init__(BudgetedClient(address, key, _get_budget_s()))
        self.note = ""
        self.is_cut_off = False

    @property
    def address(self) -> Address:
        return self.client.address

    def candidates(self, look_up: LookUp) -> Candidates:
        """Return the service's current or last answers.

        Raises:
            StoreUnavailableError: if there is no answer at all.
        """
        cache, keys = AnswerCache(self.address, look_up), look_up.workloads
        answers = {key: cached for key in keys if (cached := cache.read(key))}
        fresh = {key for key, cached in answers.items() if is_fresh(cached)}
        stale = {key: text for key, text in keys.items() if key not in fresh}
        if stale:
            request = replace(look_up, workloads=stale)
            try:
                # if an answer has not changed, the service sends 304 without a body
                fetched = request_best(self.client, request, answers, self._warn_once)
                answers |= cache.store(self._yield_in_time(fetched))
                self.client.breaker.reset()
            except FeinsumError as error:
                failure = self._record_failure(error)
                # an old answer is better than none: facts do not become false
                if not answers:
                    raise failure from None
        return {key: answers[key].records if key in answers else () for key in keys}

    def select(self, kind: DocumentKind, filters: Filters) -> Iterator[Document]:
        """Yield the usable facts or trusted plans of a workload; nothing else.

        A look-up needs no more, and a whole service cannot be read in its time.
        """
        documents: Iterable[Document] = ()
        workload = filters.workload
        if workload is None or filters.notation is not None:
            return
        if kind == "record":
            key = WorkloadKey(workload)
            documents = self.candidates(LookUp({key: ""}, counts=False))[key]
        elif kind == "plan":
            documents = self._fetch_trusted_plans(workload)
        yield from filter(filters.admit, documents)

    def get(self, record_id: str) -> TuningRecord:
        with self._handle_failures():
            return super().get(record_id)

    def peaks(self, device_id: str) -> DevicePeaks | None:
        """Return None: a look-up needs no limits."""
        return None

    def _fetch_trusted_plans(self, workload: str) -> list[Document]:
        """Return the first page of trusted plans; none from an older service.

        Untrusted plans are useless here, and there may be any number.
        """
        query: dict[str, str | int] = {
            "workload": workload,
            "trusted": "true",
            "limit": MAX_PLANS,
        }
        try:
            with self._handle_failures():
                page = self.client.parse(self.client.get("/v1/plans", query))
        except NoSuchRouteError:
            return []
        listed = page.get("plans") if isinstance(page, dict) else None
        entries = listed if isinstance(listed, list) else []
        return list_valid_documents("plan", entries, workload)

    def _yield_in_time(
        self, answers: Iterator[tuple[WorkloadKey, Answer]]
    ) -> Iterator[tuple[WorkloadKey, Answer]]:
        """Yield the answers that arrive in time.

        A part that is too large may exhaust the budget, which is no failure.
        """
        try:
            yield from answers
        except _SpentError:
            if not self.is_cut_off:
                raise

    def _warn_once(self, reason: str) -> None:
        """Note that an answer was too large, which does not trip the breaker."""
        self.note, self.is_cut_off = reason, True
        warn_once(f"{self.address} too large", f"{reason}; using its answers so far")

    @contextmanager
    def _handle_failures(self) -> Iterator[None]:
        """Record errors as failures, unless the service only lacks something."""
        try:
            yield
        except (RecordNotFoundError, NoSuchRouteError):
            raise
        except FeinsumError as error:
            raise self._record_failure(error) from None

    def _record_failure(self, error: FeinsumError) -> ReportedError:
        """Trip the breaker, and log the failure once per process."""
        reason = str(error)
        # A service with large answers works; it only did not fit into the budget.
        is_spent = isinstance(error, _SpentError) and self.is_cut_off
        # a request that was skipped must not prolong the pause
        if not (isinstance(error, _OpenError) or is_spent):
            self.client.breaker.open(reason)
        self.note = reason
        remedy = f"not queried for {PAUSE_S:g} s, earlier answers are used instead"
        warn_once(f"{self.address} failed", f"{reason}; {remedy}")
        return ReportedError(reason)


def open_remote(url: str | None = None) -> RemoteLayer:
    """Return the service at a URL, by default ``FEINSUM_REMOTE``, for one look-up.

    Raises:
        StoreUnavailableError: if it is not the URL of a service, if its key cannot be
            sent, or if ``FEINSUM_REMOTE_BUDGET_MS`` is invalid.
    """
    address = parse_address(get_remote_url() if url is None else url)
    return RemoteLayer(address, get_service_key(address))


def _get_budget_s() -> float:
    setting = os.environ.get(BUDGET_VARIABLE, "").strip()
    try:
        budget_ms = float(setting) if setting else BUDGET_MS
    except ValueError:
        budget_ms = 0.0
    # written so that it also refuses NaN
    if not 0 < budget_ms <= MAX_BUDGET_MS:
        raise StoreUnavailableError(
            f"{BUDGET_VARIABLE} is {setting!r}; expected milliseconds, more than 0 and "
            f"at most {MAX_BUDGET_MS:g}"
        )
    return budget_ms / 1e3


@dataclass(frozen=True)
class ServiceHealth:
    """The observed state of a service, for ``feinsum doctor``.

    Attributes:
        problem: why it cannot be read; empty if it can.
        left_alone: why look-ups skip it now, after a failure; usually empty.
        version: version of the server, as it reports.
    """

    location: str
    problem: str = ""
    left_alone: str = ""
    version: str = ""


def examine_service(url: str, *, timeout_s: float = 2.0) -> ServiceHealth:
    """Query the capabilities of a service, and test reading with the configured key.

    Args:
        url: address of the service.
        timeout_s: time limit for each of the two requests.
    """
    try:
        address = parse_address(url)
        key = get_service_key(address)
    except FeinsumError as error:
        return ServiceHealth("the given URL", str(error))
    limits = ExchangeLimits(timeout_s, timeout_s, MAX_BYTES)
    client = Client(address, key, limits, waiting_s=0.0)
    health = ServiceHealth(str(address), "", Breaker(address, key).explain_open())
    try:
        capabilities = client.parse(client.get("/v1/capabilities"))
        if not isinstance(capabilities, dict) or "form_version" not in capabilities:
            problem = "it does not identify itself as a feinsum service"
            return replace(health, problem=problem)
        client.get("/v1/workloads", {"limit": 1})
    except FeinsumError as error:
        return replace(health, problem=f"[{error.code}] {error}")
    health = replace(health, version=str(capabilities.get("version", ""))[:50])
    form_version = str(capabilities["form_version"])
    if form_version == FORM_VERSION:
        return health
    problem = (
        f"its keys have version {form_version[:50]!r}, but those of this installation "
        f"{FORM_VERSION!r}: every look-up is a miss"
    )
    return replace(health, problem=problem)
