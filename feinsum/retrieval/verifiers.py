"""The processes that verify and time recipes, for all retrievals of this process.

One is started with the first question, and more for several questions at once. They end
with this process, or when idle for a while.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from threading import Lock

from feinsum.errors import InvalidRecordError, TrialCrashError, TrialTimeoutError
from feinsum.measure.question import Question, Verdict
from feinsum.memory import remembered
from feinsum.processes import Worker, WorkerError, WorkerTimeoutError, python_command
from feinsum.records import from_json, to_json
from feinsum.threads import n_threads
from feinsum.transforms import export_transforms, local_transforms

COMMAND = python_command("feinsum.measure.verifier")

START_S = 60.0
"""How long the process may take beyond the answer, as when it loads Loopy."""


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
    """The idle processes of this one, each with the surroundings of its start.

    Threads may ask at once: a process answers one of them, and then is idle again.
    """

    def __init__(self) -> None:
        self._idle: list[tuple[Worker, tuple[object, ...]]] = []
        self._choosing = Lock()

    def ask(self, question: Question) -> Verdict:
        """The verdict of an idle process or of a new one, or how that ended."""
        limit_s = question.limit_s + START_S
        try:
            return self._verdict(to_json(question), limit_s)
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
                with suppress(OSError):  # whoever asks is told
                    worker = Worker.isolated(COMMAND, export_transforms)
                    self._idle.append((worker, _surroundings()))

    def _verdict(self, line: str, limit_s: float) -> Verdict:
        surroundings = _surroundings()
        idle = self._pop_idle(surroundings)
        if idle is not None:
            try:
                return self._answer_of(idle, surroundings, line, limit_s)
            except WorkerTimeoutError:
                raise
            except WorkerError:  # it ended while it was idle: a new one is asked
                pass
        worker = Worker.isolated(COMMAND, export_transforms)
        return self._answer_of(worker, surroundings, line, limit_s)

    def _pop_idle(self, surroundings: tuple[object, ...]) -> Worker | None:
        """An idle process; one with other surroundings is closed."""
        with self._choosing:
            if not self._idle:
                return None
            worker, started_in = self._idle.pop()
        if started_in == surroundings:
            return worker
        worker.close()
        return None

    def _answer_of(
        self,
        worker: Worker,
        surroundings: tuple[object, ...],
        line: str,
        limit_s: float,
    ) -> Verdict:
        """The verdict of a process, which then is idle."""
        answer = worker.request(line, limit_s)
        try:
            verdict = from_json(Verdict, answer)
        except InvalidRecordError:
            worker.close()
            raise
        with self._choosing:
            self._idle.append((worker, surroundings))
        return verdict


def _surroundings() -> tuple[object, ...]:
    """Transforms, process and variables: with others there has to be another one."""
    return local_transforms(), os.getpid(), dict(os.environ)
