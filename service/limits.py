"""Limits on what one caller may send: a rate, and the length of a body."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from ipaddress import IPv6Address, ip_address, ip_network
from itertools import islice

from cachetools import LRUCache
from starlette.types import Message, Receive

from feinsum.errors import InvalidRequestError, TooLargeError, WrongContentTypeError

MOST_CALLERS = 10_000
"""How many callers are remembered; the one seen longest ago is forgotten first."""

# Possessive quantifiers: no input makes it backtrack.
_VALUE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[,\[{]', re.DOTALL)
"""A text of JSON, or what stands before another value."""


class RateLimit:
    """A bucket of tokens for each caller: most requests take one token.

    Args:
        rate_per_s: tokens that come back each second; 0 for no limit.
        burst: tokens of a full bucket.

    >>> now = iter([0.0, 0.0, 0.0, 0.5]).__next__
    >>> limit = RateLimit(rate_per_s=2, burst=2, clock=now)
    >>> [limit.wait_s("ann") for _ in range(4)]
    [0.0, 0.0, 0.5, 0.0]
    """

    def __init__(
        self,
        rate_per_s: float,
        burst: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate, self._burst, self._clock = rate_per_s, burst, clock
        self._buckets: LRUCache[str, tuple[float, float]] = LRUCache(MOST_CALLERS)

    def wait_s(self, caller: str, n_tokens: int = 1) -> float:
        """Take tokens: 0, or how many seconds until there are as many."""
        if not self._rate:
            return 0.0
        now = self._clock()
        tokens, since = self._buckets.get(caller, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + (now - since) * self._rate)
        price = float(min(n_tokens, self._burst))
        wait = 0.0 if tokens >= price else (price - tokens) / self._rate
        self._buckets[caller] = (tokens if wait else tokens - price, now)
        return wait


def network_of(address: str) -> str:
    """The network whose callers share a limit: of IPv6, of which everybody has very
    many addresses, the first 64 bits.

    >>> network_of("192.0.2.7"), network_of("2001:db8:1:2:3:4:5:6")
    ('192.0.2.7', '2001:db8:1:2::/64')
    >>> network_of("::ffff:192.0.2.7")
    '192.0.2.7'
    """
    try:
        known = ip_address(address)
    except ValueError:  # what a proxy says may be any text, of any length
        return sha256(address.encode(errors="replace")).hexdigest()[:16]
    if isinstance(known, IPv6Address) and known.ipv4_mapped:
        known = known.ipv4_mapped
    return str(ip_network((known, 64), strict=False) if known.version == 6 else known)


def check_length(headers: Mapping[bytes, bytes], most: int) -> None:
    """Refuse a body by the length that it announces, before any of it is read."""
    announced = headers.get(b"content-length", b"0")
    if not announced.isdigit() or len(announced) > 15 or int(announced) > most:
        raise _too_large(announced.decode("latin-1")[:20], most)


def check_media_type(headers: Mapping[bytes, bytes]) -> None:
    """Refuse a body that is not JSON, or that is compressed."""
    has_body = b"transfer-encoding" in headers
    has_body |= headers.get(b"content-length", b"0") != b"0"
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    coding = headers.get(b"content-encoding", b"identity").strip().lower()
    if has_body and (kind != b"application/json" or coding != b"identity"):
        given = b" ".join([kind, coding]).decode("latin-1")[:100]
        raise WrongContentTypeError(
            f"a body of the type {given!r} was sent, expected application/json, "
            "not compressed"
        )


def check_values(body: bytes, most: int) -> None:
    """Refuse JSON of very many values: each takes far more memory than its bytes.

    Args:
        most: values; texts count twice.

    Raises:
        TooLargeError: if it has more.

    >>> check_values(b'["a, b", [1, 2]]', 5)
    >>> check_values(b'["a, b", [1, 2]]', 4)
    Traceback (most recent call last):
        ...
    feinsum.errors.TooLargeError: a body of more than 4 values was sent without a key;
    send less at once, or send a key
    """
    if len(body) > most and any(islice(_VALUE.finditer(body), most, None)):
        raise TooLargeError(
            f"a body of more than {most} values was sent without a key; send less at "
            "once, or send a key"
        )


async def read_body(receive: Receive, most: int) -> bytes:
    """The whole body of a request; it is not read any more where it gets too long.

    Raises:
        TooLargeError: if it is longer than ``most`` bytes.
        InvalidRequestError: if the sender went away before its end.
    """
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise InvalidRequestError("the body is shorter than its Content-Length")
        body += message.get("body", b"")
        if len(body) > most:
            raise _too_large(f"more than {most}", most)
        if not message.get("more_body", False):
            return bytes(body)


def replayed(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read already, and then what comes after it."""
    is_given = False

    async def receive_again() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


def _too_large(given: str, most: int) -> TooLargeError:
    return TooLargeError(
        f"a body of {given} bytes was sent, expected {most} at most; send less at once"
    )
