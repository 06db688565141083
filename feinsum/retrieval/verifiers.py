"""The processes that verify and time recipes, for all retrievals of this process.

One is started with the first question, and more for several questions at once. They end
with this process, or when idle for a while.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from time import monotonic
from weakref import finalize

from feinsum.errors import InvalidRecordError, TrialCrashError, TrialTimeoutError
from feinsum.measure.question import Question, Verdict
from feinsum.memory import remembered
from feinsum.processes import Ended, child_environment, end_session
from feinsum.records import from_json, to_json
from feinsum.threads import n_threads
from feinsum.transforms import export_transforms, local_transforms

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
        if len(line) > LONGEST_BYTES:
            why = f"its text of {len(line)} bytes is too long"
            return Verdict(InvalidRecordError.code, why)
        limit_s = question.limit_s + START_S
        surroundings = _surroundings()
        verifier = self._pop_idle()
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
