"""The cache of verification results: what was tried here is not tried again.

A result holds for this machine, device, driver, software and version of feinsum's
source, and for no other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from feinsum.cache import DiskCache, default_cache, locked
from feinsum.errors import (
    BuildError,
    DeviceLostError,
    InvalidParameterError,
    InvalidRecordError,
    MeasurementError,
    TransformError,
    TrialCrashError,
    TrialTimeoutError,
    UnknownTransformError,
    WrongResultError,
)
from feinsum.measure.question import Verdict
from feinsum.memory import remembered
from feinsum.records import OK, Environment, TransformSpec, from_json, to_json
from feinsum.retrieval.installation import fingerprint, is_ours

_PERMANENT = {
    OK,
    *(kind.code for kind in (BuildError, InvalidParameterError, TransformError,
                             UnknownTransformError, WrongResultError)),
}  # fmt: skip
TRANSIENT = {
    kind.code
    for kind in (DeviceLostError, MeasurementError, TrialCrashError, TrialTimeoutError)
}
"""Failures whose cause may be gone tomorrow, such as a busy machine."""
_TRANSIENT_AGE = timedelta(days=1)
_LOCK = "verification.lock"
LOCK_S = 60.0
"""How long to wait for another process that verifies."""


class _Verdicts(dict[str, Verdict]):
    """The results of this process."""


class CachedVerdict(NamedTuple):
    """The place of one result."""

    key: str
    cache: DiskCache | None

    @classmethod
    def of(
        cls,
        parts: Iterable[str],
        environment: Environment,
        specs: Iterable[TransformSpec],
    ) -> CachedVerdict:
        """The place of the result for what some texts describe.

        Args:
            specs: the recipes. The source of user-defined ones may change under the
                same name and version: their results do not outlive this process.
        """
        text = "\0".join((*parts, fingerprint(environment)))
        cache = default_cache() if all(map(is_ours, specs)) else None
        return cls(hashlib.sha256(text.encode()).hexdigest(), cache)

    def recall(self) -> Verdict | None:
        """The earlier result, if it is still valid."""
        results = remembered(_Verdicts)
        if verdict := results.get(self.key):
            return verdict
        content = None if self.cache is None else self.cache.read(self.key)
        if content is None:
            return None
        try:
            verdict = from_json(Verdict, content)
            age = datetime.now(UTC) - datetime.fromisoformat(verdict.found_at)
        except (InvalidRecordError, TypeError, ValueError):
            return None
        if age > _TRANSIENT_AGE and _is_transient(verdict):
            return None
        results[self.key] = verdict
        return verdict

    def store(self, verdict: Verdict) -> None:
        remembered(_Verdicts)[self.key] = verdict
        if self.cache is not None and verdict.code in _PERMANENT | TRANSIENT:
            self.cache.write(self.key, to_json(verdict).encode())

    def locked(self) -> AbstractContextManager[object]:
        """Processes that share the cache verify one after the other."""
        if self.cache is None:
            return nullcontext()
        return locked(self.cache.folder, _LOCK, LOCK_S)


def _is_transient(verdict: Verdict) -> bool:
    if verdict.is_ok:
        return verdict.speedup <= 1
    return verdict.code in TRANSIENT
