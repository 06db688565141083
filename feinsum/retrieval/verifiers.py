"""The processes that verify and time recipes, and the cache of their results.

::

    trial ---> cached? --yes--> its result
                 |
                 no
                 v
    idle process with this environment, or a new one
      <-- request: recipe, einsum or kernels, sizes, time limit
      --> verdict: right or wrong, times; or how the process ended

A process starts with the first request, and more start for several requests at once.
They end with this process, or after being idle for a while. A recipe may crash, hang or
use up the memory of such a process; then that is its result. Results are valid for this
machine, device, driver, software and version of feinsum's source only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import NamedTuple

from feinsum.cache import DiskCache, get_default_cache, hold_file_lock
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
from feinsum.measure.verdicts import Verdict, VerificationRequest
from feinsum.memory import get_remembered
from feinsum.processes import (
    Worker,
    WorkerError,
    WorkerTimeoutError,
    make_python_command,
)
from feinsum.records import OK, Environment, from_json, to_json
from feinsum.retrieval.identity import compute_fingerprint
from feinsum.threads import get_n_threads
from feinsum.transforms import export_transforms, list_local_transforms

_PERMANENT = {
    OK,
    *(kind.code for kind in (BuildError, InvalidParameterError, TransformError,
                             UnknownTransformError, WrongResultError)),
}  # fmt: skip
TRANSIENT = {
    kind.code
    for kind in (DeviceLostError, MeasurementError, TrialCrashError, TrialTimeoutError)
}
"""Failures with causes that may be gone tomorrow, such as a busy machine."""
_TRANSIENT_AGE = timedelta(days=1)
_LOCK = "verification.lock"
LOCK_S = 60.0
"""Maximum seconds to wait for another process that verifies."""


class _Verdicts(dict[str, Verdict]):
    """The results of this process."""


class CachedVerdict(NamedTuple):
    """The cache entry of one result."""

    key: str
    cache: DiskCache | None

    @classmethod
    def of(
        cls,
        texts: Iterable[str],
        environment: Environment,
        *,
        is_kept: bool,
    ) -> CachedVerdict:
        """Return the entry for the result that some texts determine.

        Args:
            texts: the texts that determine the result.
            environment: the device and the software.
            is_kept: whether the result outlives this process. It must not for a
                user-defined transform, whose source may change under the same name and
                version.
        """
        # no text contains NUL, so different lists never join to one text
        text = "\0".join((*texts, compute_fingerprint(environment)))
        cache = get_default_cache() if is_kept else None
        return cls(hashlib.sha256(text.encode()).hexdigest(), cache)

    def recall(self) -> Verdict | None:
        """Return the earlier result, if it is still valid."""
        results = get_remembered(_Verdicts)
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
        # a machine that was busy yesterday may be idle today
        if age > _TRANSIENT_AGE and _is_transient(verdict):
            return None
        results[self.key] = verdict
        return verdict

    def store(self, verdict: Verdict) -> None:
        get_remembered(_Verdicts)[self.key] = verdict
        if self.cache is not None and verdict.code in _PERMANENT | TRANSIENT:
            self.cache.write(self.key, to_json(verdict).encode())

    def recall_or(self, find: Callable[[], Verdict]) -> Verdict:
        """Return the earlier result, or compute it, in one process at a time."""
        if (verdict := self.recall()) is None:
            with self.locked():
                # again: another process may have stored it during the wait for the lock
                if (verdict := self.recall()) is None:
                    verdict = find()
                    self.store(verdict)
        return verdict

    def locked(self) -> AbstractContextManager[object]:
        """Lock out other processes that share the cache while this one verifies."""
        if self.cache is None:
            return nullcontext()
        return hold_file_lock(self.cache.folder, _LOCK, LOCK_S)


def _is_transient(verdict: Verdict) -> bool:
    if verdict.is_ok:
        return verdict.speedup <= 1
    return verdict.code in TRANSIENT


COMMAND = make_python_command("feinsum.measure.verifier")

START_S = 60.0
"""Seconds that a process may take beyond the trial itself, such as to load Loopy."""


def request_verdict(request: VerificationRequest) -> Verdict:
    """Return the verdict of a separate process, or a verdict on how it ended."""
    return get_remembered(_Pool).request(request)


def request_together(
    requests: Sequence[Callable[[], Verdict]], advance: Callable[[], None]
) -> Iterator[tuple[int, Verdict]]:
    """Yield the number and the answer of each request, as they arrive.

    There is up to one process per core. They compute concurrently, but time one after
    the other, since all requests have the same timing lock.

    Args:
        requests: each returns the answer of one process.
        advance: called after each answer.
    """
    with ThreadPoolExecutor(min(len(requests), get_n_threads())) as threads:
        pending = {threads.submit(request): k for k, request in enumerate(requests)}
        for answer in as_completed(pending):
            advance()
            yield pending[answer], answer.result()


def start_early() -> None:
    """Start a process if there is none, so that it loads its imports early."""
    get_remembered(_Pool).start_early()


class _Pool:
    """The idle child processes, each with the surroundings in which it started.

    It can be used by several threads. A process answers one request at a time, and is
    idle again afterwards.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[Worker, tuple[object, ...]]] = []
        self._choosing = Lock()

    def request(self, request: VerificationRequest) -> Verdict:
        """Return the verdict of an idle or new process, or how that process ended."""
        limit_s = request.limit_s + START_S
        try:
            return self._find_verdict(to_json(request), limit_s)
        except OSError as error:
            why = f"no process can be started: {error.strerror}"
            return Verdict(TrialCrashError.code, why)
        except WorkerTimeoutError:
            why = f"no answer within {limit_s:g} s; it was stopped"
            return Verdict(TrialTimeoutError.code, why)
        except WorkerError as error:
            return Verdict(TrialCrashError.code, f"its process {error}")
        except InvalidRecordError as error:
            why = f"its process gave an invalid answer: {error}"
            return Verdict(TrialCrashError.code, why)

    def start_early(self) -> None:
        with self._choosing:
            if not self._idle:
                with suppress(OSError):  # the next request reports it
                    worker = Worker.isolated(COMMAND, export_transforms)
                    self._idle.append((worker, _get_surroundings()))

    def _find_verdict(self, line: str, limit_s: float) -> Verdict:
        surroundings = _get_surroundings()
        idle = self._pop_idle(surroundings)
        if idle is not None:
            try:
                return self._request_answer(idle, surroundings, line, limit_s)
            except WorkerTimeoutError:
                raise
            except WorkerError:  # it ended while idle: start a new one
                pass
        worker = Worker.isolated(COMMAND, export_transforms)
        return self._request_answer(worker, surroundings, line, limit_s)

    def _pop_idle(self, surroundings: tuple[object, ...]) -> Worker | None:
        """Take an idle process; close it and return None if its surroundings differ."""
        with self._choosing:
            if not self._idle:
                return None
            worker, started_in = self._idle.pop()
        if started_in == surroundings:
            return worker
        worker.close()
        return None

    def _request_answer(
        self,
        worker: Worker,
        surroundings: tuple[object, ...],
        line: str,
        limit_s: float,
    ) -> Verdict:
        """Request a verdict from a process, and mark the process as idle afterwards."""
        answer = worker.request(line, limit_s)
        try:
            verdict = from_json(Verdict, answer)
        except InvalidRecordError:
            worker.close()
            raise
        with self._choosing:
            self._idle.append((worker, surroundings))
        return verdict


def _get_surroundings() -> tuple[object, ...]:
    """Return the state that must be unchanged to reuse a process."""
    # a fork inherits the sockets, but answers on them are for its parent
    return list_local_transforms(), os.getpid(), dict(os.environ)
