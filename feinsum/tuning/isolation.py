"""Trials in a separate process, with a time limit.

A candidate that crashes, hangs, or costs its process the GPU ends that process; the
next trial gets a new one. Each process has its own OpenCL compiler cache, since caches
shared between processes have crashed.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic

from feinsum.errors import (
    DeviceLostError,
    FeinsumError,
    InvalidRecordError,
    TrialCrashError,
    TrialTimeoutError,
    error_from_code,
)
from feinsum.processes import Ended, child_environment, end_session
from feinsum.records import Environment, TransformSpec, from_json, to_json
from feinsum.transforms import export_transforms
from feinsum.tuning.problem import Problem
from feinsum.tuning.trials import Answer, Ask, Request, TrialBench, TrialOutcome

COMMAND = (sys.executable, "-W", "ignore", "-m", "feinsum.tuning.worker")
SET_UP_LIMIT_S = 300.0
"""For data, reference results and the untransformed kernel, at any size."""
STEP_S = 0.5
"""How long a signal to this process may wait for its handler."""
EXIT_LIMIT_S = 10.0
"""How long a process that closed its output may take to end."""


class IsolatedBench(TrialBench):
    """A bench in a child process that is started again when it dies.

    The child is in its own session: a keyboard interrupt reaches only this process,
    which then decides what happens to the child.

    Attributes:
        is_abandoned: set by another thread to end what is under way, for good.

    Args:
        problem: the problem to tune.
        time_limit_s: time limit of each trial; a comparison may take it once per recipe
            and once for the untransformed kernel.
        is_shared: take turns on the device with other such benches on this machine;
            waiting for a turn does not count towards the limit.
    """

    is_here = True

    def __init__(
        self, problem: Problem, time_limit_s: float = 60.0, is_shared: bool = False
    ) -> None:
        self.problem = problem
        self.is_shared = is_shared
        self.time_limit_s = time_limit_s
        self.environment: Environment | None = None
        self.is_abandoned = False
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._passed: set[TransformSpec] = set()

    def trial(
        self, spec: TransformSpec, reference: TransformSpec | None = None
    ) -> TrialOutcome:
        """Verify and time one recipe; a crash or a hang is an outcome.

        Args:
            reference: what to time it against. In a new process it is tried first, so
                that its failures are not blamed on ``spec``.

        Raises:
            MeasurementError: if the problem itself cannot be set up.
        """
        self.start()
        if reference is not None and reference not in self._passed:
            is_good = self._try_one(Request(specs=(reference,))).is_ok
            reference = reference if is_good else None
        return self._try_one(Request(specs=(spec,), reference=reference))

    def outcomes(self, ask: Ask) -> Iterator[TrialOutcome]:
        """Try what is asked for, one recipe after another."""
        while (wanted := ask()) is not None:
            yield self.trial(*wanted)

    def compare(self, specs: Sequence[TransformSpec]) -> tuple[TrialOutcome, ...]:
        """Time several recipes that passed their trial in one run."""
        limit_s = self.time_limit_s * (len(specs) + 1)
        return self._try(Request(specs=tuple(specs), is_comparison=True), limit_s)

    def start(self) -> Environment:
        """Set up the problem if no process is running; returns its environment."""
        if self._process is None:
            self._spawn()
            try:
                request = Request(problem=self.problem, is_shared=self.is_shared)
                answer = self._ask(request, SET_UP_LIMIT_S)
            except FeinsumError as error:
                raise type(error)(f"setting up the trials: {error}") from None
            if answer.environment is None:
                self.close()
                raise error_from_code(answer.error_code or "", answer.error)
            self.environment = answer.environment
        assert self.environment is not None
        return self.environment

    def close(self) -> None:
        """End the process and its children, and remove its cache."""
        if self._process is not None:
            end_session(self._process)
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(BrokenPipeError):  # a request was still in it
                        stream.close()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _try_one(self, request: Request) -> TrialOutcome:
        (outcome,) = self._try(request, self.time_limit_s)
        if outcome.is_ok:
            self._passed.add(outcome.spec)
        return outcome

    def _try(self, request: Request, limit_s: float) -> tuple[TrialOutcome, ...]:
        self.start()
        try:
            outcomes = self._ask(request, limit_s).outcomes
        except (TrialCrashError, TrialTimeoutError) as error:
            return tuple(
                TrialOutcome(spec, error.code, str(error)) for spec in request.specs
            )
        if any(outcome.status == DeviceLostError.code for outcome in outcomes):
            self.close()
        return outcomes

    def _spawn(self) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="feinsum-trial-", ignore_cleanup_errors=True
        )
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  (our own command)
                [*COMMAND, *export_transforms(self._folder.name)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=child_environment(self._folder.name),
                start_new_session=True,
            )
        self._lines = queue.Queue()
        self._passed = set()
        reader = threading.Thread(
            target=_read_lines, args=(self._process, self._lines), daemon=True
        )
        reader.start()

    @property
    def _log(self) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / "stderr"

    def _ask(self, request: Request, limit_s: float) -> Answer:
        """The answer to a request; if there is none, the process is ended.

        So no later request can meet the answer to an earlier one.
        """
        try:
            return self._exchange(request, limit_s)
        except BaseException:
            self.close()
            raise

    def _exchange(self, request: Request, limit_s: float) -> Answer:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            print(to_json(request), file=self._process.stdin, flush=True)
            answer = self._next_answer(limit_s)
        except queue.Empty:
            raise TrialTimeoutError(
                f"stopped after the trial limit of {limit_s:g} s"
            ) from None
        except BrokenPipeError:
            answer = None
        except InvalidRecordError as error:
            raise TrialCrashError(
                f"the process of the trial gave an invalid answer: {error}"
            ) from None
        if answer is None:
            raise TrialCrashError(_obituary(self._process, self._log))
        return answer

    def _next_answer(self, limit_s: float) -> Answer | None:
        """The answer of the process within its time; None if it has ended.

        Its wait for the device does not count.
        """
        is_waiting = False
        while True:
            began_s = monotonic()
            line = self._next_line(inf if is_waiting else limit_s)
            answer = None if line is None else from_json(Answer, line)
            if answer is None or not answer.is_waiting:
                return answer
            if not is_waiting:
                limit_s -= monotonic() - began_s
            is_waiting = not is_waiting

    def _next_line(self, limit_s: float) -> str | None:
        """A line of the child, None at its end.

        Waits in short steps: what reached another thread is seen after one.

        Raises:
            queue.Empty: if there is none within the limit.
            TrialCrashError: if nobody waits for it any more.
        """
        end = monotonic() + limit_s
        while True:
            with suppress(queue.Empty):
                return self._lines.get(timeout=max(0.0, min(limit_s, STEP_S)))
            if self.is_abandoned:
                raise TrialCrashError("the trial was abandoned")
            if monotonic() >= end:
                raise queue.Empty


def _obituary(process: subprocess.Popen[str], log: Path) -> str:
    """How a process ended, and the last that it said."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(EXIT_LIMIT_S)
    ended = Ended(process.poll(), logged=log.read_text(errors="replace"))
    return f"the process of the trial ended with {ended}"


def _read_lines(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.put(line)
    except ValueError:  # closed under the reader
        return
    lines.put(None)
