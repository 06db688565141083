"""Who calls: keys are recognized by their digests, and permit what their scopes say."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import get_args

from feinsum.db.address import parse_key_id
from feinsum.db.server.api_keys import ApiKey, Scope, digest_secret
from feinsum.errors import NotAuthenticatedError, NotPermittedError

CACHE_S = 2.0
"""Seconds before a recognized key is read again; a revoked one ends within them."""

MAX_CACHED = 1000


@dataclass(frozen=True)
class KeyHolder:
    """The name of a key and what it permits.

    Attributes:
        is_trusted: whether answers have the facts that it sends before others.
    """

    name: str
    scopes: frozenset[Scope]
    key_id: str | None = None
    is_trusted: bool = False


ANONYMOUS = "anonymous"
"""The name of a caller without a key."""


def require(caller: KeyHolder, scope: Scope) -> None:
    """Refuse a caller without a scope.

    Raises:
        NotAuthenticatedError: if a key is needed and none was given.
        NotPermittedError: if the key does not have it.
    """
    if scope in caller.scopes:
        return
    if caller.key_id is None:
        raise NotAuthenticatedError(
            f"a key with the scope {scope!r} is required; send it as "
            "'Authorization: Bearer KEY'"
        )
    raise NotPermittedError(
        f"the key {caller.key_id} of {caller.name!r} lacks the scope {scope!r}; ask "
        "for another key"
    )


class KeyRing:
    """Recognizes keys, and caches them for :data:`CACHE_S`.

    Args:
        find: reads a stored key by its id.
        anonymous: what a caller without a key may do.
    """

    def __init__(
        self, find: Callable[[str], ApiKey | None], anonymous: frozenset[Scope]
    ) -> None:
        self._find = find
        self._cache: dict[str, tuple[float, KeyHolder]] = {}
        self.anonymous = KeyHolder(ANONYMOUS, anonymous)

    def recall(self, secret: str) -> KeyHolder | None:
        """Return the caller with that secret, if it was recognized a moment ago."""
        until, caller = self._cache.get(digest_secret(secret), (0.0, None))
        return caller if until > time.monotonic() else None

    def recognize(self, secret: str) -> KeyHolder:
        """Find the caller with that secret in the database.

        Raises:
            NotAuthenticatedError: if the key is unknown, revoked or expired.
        """
        digest = digest_secret(secret)
        key_id = parse_key_id(secret)
        # the id finds the row; the digest decides, in constant time
        key = self._find(key_id) if key_id else None
        if key is None or not hmac.compare_digest(key.digest, digest):
            name = f"the key {key_id}" if key_id else "the key"
            raise NotAuthenticatedError(f"{name} is unknown; ask for a new one")
        # an unknown key and a revoked one differ in the message alone: the holder of a
        # secret may know that it was one
        state = key.state(datetime.now(UTC))
        if state != "valid":
            raise NotAuthenticatedError(
                f"the key {key.id} is {state}; ask for a new one"
            )
        scopes = _list_scopes(key.scope)
        # an admin can trust its own keys, so that it is trusted itself
        is_trusted = key.is_trusted or "admin" in scopes
        caller = KeyHolder(key.name, scopes, key.id, is_trusted)
        # only valid keys get here, so that a flood of wrong ones empties nothing
        if len(self._cache) >= MAX_CACHED:
            self._cache.clear()
        self._cache[digest] = (time.monotonic() + CACHE_S, caller)
        return caller


def _list_scopes(widest: Scope) -> frozenset[Scope]:
    # each scope includes those before it: read, record, admin
    scopes: tuple[Scope, ...] = get_args(Scope)
    return frozenset(scopes[: scopes.index(widest) + 1])
