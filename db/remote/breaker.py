"""A circuit breaker: after a failure, no process of the user queries the service."""

from __future__ import annotations

import hashlib
import json
import time

from feinsum.cache import default_cache
from feinsum.db.address import Address
from feinsum.memory import remembered

PAUSE_S = 60.0
"""How long a service is skipped after it failed.

A build has thousands of look-ups: without the pause, each would wait for its budget.
"""


class _Failures(dict[str, tuple[float, str]]):
    """Times and reasons of the failures of services."""


class Breaker:
    """Whether a service may be queried now.

    The time and reason of a failure are known to this process and, through a file in
    the cache, to the user's other processes. With a different key, a service may be
    queried.
    """

    def __init__(self, address: Address, key: str | None) -> None:
        identity = f"failure\0{address}\0{key or ''}"
        self._name = hashlib.sha256(identity.encode()).hexdigest()

    def why_open(self) -> str:
        """Return why the service must not be queried now; empty if it may be."""
        failure = remembered(_Failures).get(self._name)
        if failure is None or not _is_recent(failure[0]):
            failure = self._of_others()
        if failure is None or not _is_recent(failure[0]):
            return ""
        remembered(_Failures)[self._name] = failure
        return failure[1]

    def trip(self, reason: str) -> None:
        """Skip the service from now on, in all processes of the user."""
        remembered(_Failures)[self._name] = failure = (time.time(), reason)
        # Other processes of a build need not fail first.
        if cache := default_cache():
            cache.write(self._name, json.dumps(failure).encode())

    def reset(self) -> None:
        """Forget the failure, if any, after an answer."""
        failed = remembered(_Failures).pop(self._name, None)
        if failed and (cache := default_cache()):
            cache.remove(self._name)

    def _of_others(self) -> tuple[float, str] | None:
        cache = default_cache()
        content = cache.read(self._name) if cache else None
        if content is None:
            return None
        try:
            at, reason = json.loads(content)
            return float(at), str(reason)
        except (TypeError, ValueError):
            return None


def _is_recent(at: float) -> bool:
    """Whether a failure is recent; one from the future is from another clock."""
    return 0 <= time.time() - at < PAUSE_S
