"""The processes that verify and time recipes, and the cache of their results.

::

    trial ---> cached? --yes--> its result
                 |
                 no
                 v
    idle process with this environment, or a new one
      <-- question: recipe, einsum or kernels, sizes, time limit
      --> verdict: right or wrong, times; or how the process ended

A process starts with the first question, and more for several questions at once. They
end with this process, or when idle for a while. A recipe may crash, hang or take all
memory: it does so there, and that is its result. Results hold for this machine, device,
driver, software and version of feinsum's source, and for no other.
"""

from __future__ import annotations

import hashlib
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from threading import Lock, Timer
from time import monotonic
from typing import NamedTuple
from weakref import finalize

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
from feinsum.measure.question import Question, Verdict
from feinsum.memory import remembered
from feinsum.processes import Ended, child_environment, end_session
from feinsum.records import OK, Environment, from_json, to_json
from feinsum.retrieval.identity import fingerprint
from feinsum.threads import n_threads
from feinsum.transforms import export_transforms, local_transforms

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
        *,
        is_kept: bool,
    ) -> CachedVerdict:
        """The entry of the result for what some texts describe.

        Args:
            is_kept: whether the result outlives this process. That of a user-defined
                transform does not: its source may change under the same name and
                version.
        """
        text = "\0".join((*parts, fingerprint(environment)))
        cache = default_cache() if is_kept else None
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
        # a machine that was busy yesterday may be idle today
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


PATIENCE_S = 1.0
"""Longer work is shown, if there is a terminal."""


@contextmanager
def show_progress(total: int, words: str) -> Iterator[Callable[[], None]]:
    """A progress bar on the terminal for anything that takes more than a second.

    Yields:
        A function to call after each step.
    """
    if find_spec("rich") is None or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TimeElapsedColumn,
    )

    console = Console(stderr=True)
    bar = Progress(
        "{task.description}",
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task = bar.add_task(words, total=total)
    # most verifications end sooner, and a bar that flashes disturbs
    late = Timer(PATIENCE_S, bar.start)
    late.daemon = True
    late.start()
    try:
        yield lambda: bar.advance(task)
    finally:
        late.cancel()
        late.join()
        bar.stop()


COMMAND = (sys.executable, "-W", "ignore", "-m", "feinsum.measure.verifier")

START_S = 60.0
"""How long the process may take beyond the answer, as when it loads Loopy."""
LONGEST_BYTES = 1 << 15
"""Longest question: a pipe buffers so much without a reader."""
EXIT_S = 1.0
"""How long a process that broke off may take to end."""
_PART = 65536


def request_verdict(question: Question) -> Verdict:
    """The answer of a separate process, or how it ended if it gave none."""
    return remembered(_Pool).ask(question)


def request_together(
    requests: Sequence[Callable[[], Verdict]], advance: Callable[[], None]
) -> Iterator[tuple[int, Verdict]]:
    """The answers with the numbers of their requests, as they arrive.

    One process per core answers. They compute concurrently; the requests share the lock
    with which they take turns with timing.

    Args:
        advance: called after each answer.
    """
    # Loopy holds the interpreter's lock, so processes work and threads wait for them
    with ThreadPoolExecutor(min(len(requests), n_threads())) as threads:
        asking = {threads.submit(ask): k for k, ask in enumerate(requests)}
        for answer in as_completed(asking):
            advance()
            yield asking[answer], answer.result()


def start_early() -> None:
    """Start a process if there is none, so that it loads its imports early."""
    remembered(_Pool).start_early()


class _Pool:
    """The processes of this one; threads of it may ask at once, each of its own."""

    def __init__(self) -> None:
        self._idle: list[_Verifier] = []
        self._choosing = Lock()

    def ask(self, question: Question) -> Verdict:
        line = to_json(question).encode() + b"\n"
        # a process that does not read would block this one in the middle of a line
        if len(line) > LONGEST_BYTES:
            why = f"its text of {len(line)} bytes is too long"
            return Verdict(InvalidRecordError.code, why)
        limit_s = question.limit_s + START_S
        surroundings = _surroundings()
        # each thread has a process of its own while it waits
        verifier = self._pop_idle()
        # a process started earlier has the environment of then, and transforms that may
        # have changed
        if verifier is not None and verifier.surroundings == surroundings:
            verdict = verifier.request(line, limit_s)
            if verdict is not None or verifier.is_late:
                return self._answer(verifier, verdict, limit_s)
        if verifier is not None:
            verifier.close()
        try:
            verifier = _Verifier(surroundings)
        except OSError as error:
            why = f"no process can be started: {error.strerror}"
            return Verdict(TrialCrashError.code, why)
        return self._answer(verifier, verifier.request(line, limit_s), limit_s)

    def start_early(self) -> None:
        with self._choosing:
            if not self._idle:
                with suppress(OSError):  # whoever asks is told
                    self._idle.append(_Verifier(_surroundings()))

    def _pop_idle(self) -> _Verifier | None:
        with self._choosing:
            return self._idle.pop() if self._idle else None

    def _answer(
        self, verifier: _Verifier, verdict: Verdict | None, limit_s: float
    ) -> Verdict:
        """Its verdict, and then it stays; or how it ended."""
        if verdict is not None:
            with self._choosing:
                self._idle.append(verifier)
            return verdict
        ended = verifier.close()
        if verifier.is_late:
            why = f"no answer within {limit_s:g} s; it was stopped"
            return Verdict(TrialTimeoutError.code, why)
        return Verdict(TrialCrashError.code, f"its process ended with {ended}")


def _surroundings() -> tuple[object, ...]:
    """Transforms, process and variables: with others there has to be another one."""
    return local_transforms(), os.getpid(), dict(os.environ)


@dataclass(frozen=True)
class _Resources:
    """Resources to release when a process is no longer needed."""

    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    owner: int

    def clear(self) -> None:
        """Nothing in a fork of the process that it is of."""
        if self.owner != os.getpid():
            return
        end_session(self.process)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self.folder.cleanup()


class _Verifier:
    """A process that answers.

    Args:
        surroundings: with which it is started; see :func:`_surroundings`.
    """

    def __init__(self, surroundings: tuple[object, ...]) -> None:
        self.surroundings = surroundings
        folder = tempfile.TemporaryDirectory(
            prefix="feinsum-verify-", ignore_cleanup_errors=True
        )
        process = subprocess.Popen(  # noqa: S603  (our own command)
            [*COMMAND, *export_transforms(folder.name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(folder.name),
            # end_session reaches what it starts, and Ctrl-C does not reach it
            start_new_session=True,
            bufsize=0,
        )
        self._process = process
        self.is_late = False
        self._clear = finalize(self, _Resources(process, folder, os.getpid()).clear)

    def request(self, line: bytes, limit_s: float) -> Verdict | None:
        """The answer to a question; None if there is none."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
        except OSError:
            return None
        # a pipe has no time limit of its own
        ready = select.poll()
        ready.register(process.stdout, select.POLLIN)
        end_s, reply = monotonic() + limit_s, b""
        while not reply.endswith(b"\n"):
            left_s = max(0.0, end_s - monotonic())
            if not ready.poll(left_s * 1e3):
                self.is_late = True
                return None
            part = os.read(process.stdout.fileno(), _PART)
            if not part:
                return None
            reply += part
        try:
            return from_json(Verdict, reply.decode(errors="replace"))
        except InvalidRecordError:
            return None

    def close(self) -> Ended:
        """End it; how it ended by itself, if it did."""
        is_own = self.surroundings[1] == os.getpid()
        if is_own and not self.is_late:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(EXIT_S)
        code = self._process.poll() if is_own else None
        self._clear()
        return Ended(code)
