"""The client of a service: sends requests, and raises its refusals as our errors."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from feinsum.db.address import Address, address_of, key_for
from feinsum.db.remote.wire import ExchangeLimits, HttpRequest, Reply, exchange
from feinsum.errors import (
    CanonicalizationError,
    FeinsumError,
    InvalidEinsumError,
    NoSuchRouteError,
    RecordNotFoundError,
    ServiceError,
    StoreError,
    error_from_code,
)

PATIENT = ExchangeLimits(total_s=30.0, connect_s=10.0, most_bytes=64 * 2**20)
"""For commands, which need an answer, or the reason why there is none."""

MAX_WAITING_S = 120.0
"""How long to retry while a service is busy."""

MAX_ENTRIES, MAX_PAGES = 5_000_000, 50_000
"""How much of one list is read: a hostile service could list entries for ever."""

JSON = "application/json"
PROBLEM = "application/problem+json"

_REPORTED = (StoreError, ServiceError, CanonicalizationError, InvalidEinsumError)
"""The errors that a service may report; any other code becomes a ServiceError."""

_CODE = re.compile(r"[a-z]+(-[a-z]+){0,7}")
_MAX_LENGTH = 500
_BUSY = (429, 503)


@dataclass(frozen=True)
class Client:
    """Sends requests to one service.

    Args:
        key: key to send with every request; None for none.
        waiting_s: how long to retry while it is busy, at the times that it asks for.
    """

    address: Address
    key: str | None = field(default=None, repr=False)
    limits: ExchangeLimits = PATIENT
    waiting_s: float = MAX_WAITING_S

    @classmethod
    def of(cls, url: str) -> Client:
        """Return a client of the service at a URL that waits, with the key for it.

        Raises:
            StoreUnavailableError: if it is not the URL of a service, or if its key
                cannot be sent.
        """
        address = address_of(url)
        return cls(address, key_for(address))

    def get(
        self,
        path: str,
        query: Mapping[str, str | int] | None = None,
        *,
        etag: str = "",
    ) -> Reply:
        """Read what is at a path; 304 only if an ``etag`` was given.

        Raises:
            StoreUnavailableError: if no answer comes.
            FeinsumError: the error reported by the service, by its code.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        headers = {"If-None-Match": etag} if etag else {}
        return self._ask("GET", target, headers, None, (200, 304) if etag else (200,))

    def post(
        self, path: str, document: str, *, expected: Collection[int] = (200,)
    ) -> Reply:
        """Send a JSON document.

        Raises:
            StoreUnavailableError, FeinsumError: see :meth:`get`.
        """
        headers = {"Content-Type": JSON}
        return self._ask("POST", path, headers, document.encode(), expected)

    def _ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        expected: Collection[int],
    ) -> Reply:
        key = self.key
        # Redirects are not followed, so that the key goes to no other host.
        sent = {
            "Accept": JSON,
            "Accept-Encoding": "gzip",
            # each exchange has a connection of its own
            "Connection": "close",
            "User-Agent": "feinsum",
            **headers,
            **({"Authorization": f"Bearer {key}"} if key else {}),
        }
        request = HttpRequest(method, self.address.prefix + target, sent, body)
        until = time.monotonic() + self.waiting_s
        while True:
            reply = exchange(self.address, request, self.limits)
            if reply.status in expected:
                return reply
            # A service that is busy says when to come back; others have refused.
            pause_s = _pause_s(reply)
            if pause_s is None or time.monotonic() + pause_s > until:
                raise _error(self.address, reply, key)
            time.sleep(pause_s)


def parsed(address: Address, reply: Reply) -> Any:
    """Parse the document of an answer.

    Raises:
        ServiceError: if it is not JSON.
    """
    if reply.media_type != JSON:
        media_type = _printable(reply.media_type) or "no type"
        raise _no_service(address, f"answered with {media_type}, expected {JSON}")
    try:
        return json.loads(reply.body.decode())
    except (ValueError, RecursionError):
        raise _no_service(address, "answered with something that is not JSON") from None


def pages(
    client: Client, path: str, name: str, query: Mapping[str, str | int]
) -> Iterator[Any]:
    """Yield the entries of a list, page by page.

    Args:
        name: name of the list in a page.

    Raises:
        ServiceError: for an answer that is not a page, or does not advance; after
            :data:`MAX_ENTRIES` entries, for no service needs to be read for ever.
        StoreUnavailableError, FeinsumError: see :meth:`Client.get`.
    """
    cursor: str | None = ""
    seen: set[str | None] = {cursor}
    n_entries = 0
    while cursor is not None:
        parameters = {**query, "cursor": cursor} if cursor else query
        page = parsed(client.address, client.get(path, parameters))
        try:
            entries, following = page[name], page["next"]
        except (KeyError, TypeError, IndexError):
            entries, following = None, None
        # A cursor that was seen before would make an endless loop.
        goes_on = following is None or (
            isinstance(following, str) and following not in seen and entries
        )
        if not isinstance(entries, list) or not goes_on:
            raise _no_service(client.address, f"answered with no page of {name}")
        n_entries += len(entries)
        if n_entries > MAX_ENTRIES or len(seen) > MAX_PAGES:
            raise _no_service(
                client.address,
                f"listed {n_entries} {name} on {len(seen)} pages and has more, "
                f"expected {MAX_ENTRIES} on {MAX_PAGES} at most",
            )
        seen.add(following)
        yield from entries
        cursor = following


def _pause_s(reply: Reply) -> int | None:
    """Return after how many seconds a busy service accepts another request."""
    after = reply.headers.get("retry-after", "")
    is_number = after.isdecimal() and len(after) < 6
    return int(after) if reply.status in _BUSY and is_number else None


def _error(address: Address, reply: Reply, key: str | None) -> FeinsumError:
    """Return the error of a refusal, without the key that it may repeat."""
    code, detail = _problem(reply)
    if key:
        # Messages are logged and pasted into reports.
        detail = detail.replace(key, "(the key)")
    if code is None:
        redirect = ", a redirect" if 300 <= reply.status < 400 else ""
        return _no_service(address, f"answered with status {reply.status}{redirect}")
    error = error_from_code(code, f"the service at {address} says: {detail}")
    # An error whose code and status disagree is not one of a feinsum service.
    is_miss = isinstance(error, (RecordNotFoundError, NoSuchRouteError))
    if not isinstance(error, _REPORTED) or is_miss != (reply.status == 404):
        return ServiceError(
            f"the service at {address} answered {reply.status}, {code}: {detail}"
        )
    return error


def _problem(reply: Reply) -> tuple[str | None, str]:
    """Return code and message of a problem document; None without a valid one."""
    if reply.media_type == PROBLEM:
        try:
            document = json.loads(reply.body)
            code, detail = document["code"], document["detail"]
            if _CODE.fullmatch(code):
                return code, _printable(detail)
        except (ValueError, RecursionError, KeyError, TypeError):
            pass
    return None, ""


def _printable(text: str) -> str:
    """Return a text of somebody else as one line without control characters."""
    line = " ".join(text[: 4 * _MAX_LENGTH].split())[:_MAX_LENGTH]
    return "".join(c if c.isprintable() else "?" for c in line)


def _no_service(address: Address, problem: str) -> ServiceError:
    return ServiceError(
        f"the service at {address} {problem}; check that this is the address of a "
        "feinsum service"
    )
