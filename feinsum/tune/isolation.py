"""Trials in a process of their own, with a time limit.

A candidate that crashes or hangs a compiler ends its process; the next trial
gets a new one. Each process has an OpenCL compiler cache of its own, since
caches that are shared between processes have crashed.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from feinsum.errors import (
    FeinsumError,
    TrialCrashError,
    TrialTimeoutError,
    error_from_code,
)
from feinsum.records import Environment, TransformSpec, from_json, to_json
from feinsum.tune.messages import Answer, Request
from feinsum.tune.outcome import TrialOutcome
from feinsum.tune.problem import Problem

__all__ = ["IsolatedBench"]

SET_UP_LIMIT_S = 300.0


class IsolatedBench:
    """A bench in a child process that is started again when it dies.

    Args:
        problem: what is tuned.
        time_limit_s: for each trial; a comparison may take it once per recipe.
    """

    def __init__(self, problem: Problem, time_limit_s: float = 60.0) -> None:
        self.problem = problem
        self.time_limit_s = time_limit_s
        self.environment: Environment | None = None
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def trial(self, spec: TransformSpec) -> TrialOutcome:
        """Verify and time one recipe; a crash or a hang is an outcome.

        Raises:
            MeasurementError: if the problem itself cannot be set up.
        """
        return self._try(Request(specs=(spec,)))[0]

    def compare(self, specs: Sequence[TransformSpec]) -> tuple[TrialOutcome, ...]:
        """Time several recipes that passed their trial in one run."""
        return self._try(Request(specs=tuple(specs), is_comparison=True))

    def start(self) -> Environment:
        """Set the problem up, if no process is running; the environment there."""
        if self._process is None:
            self._spawn()
            try:
                answer = self._ask(Request(problem=self.problem), SET_UP_LIMIT_S)
            except FeinsumError as error:
                self.close()
                raise type(error)(f"setting up the trials: {error}") from None
            if answer.environment is None:
                self.close()
                raise error_from_code(answer.error_code or "", answer.error)
            self.environment = answer.environment
        assert self.environment is not None
        return self.environment

    def close(self) -> None:
        """End the process and remove its cache."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _try(self, request: Request) -> tuple[TrialOutcome, ...]:
        self.start()
        specs = request.specs
        try:
            return self._ask(request, self.time_limit_s * len(specs)).outcomes
        except (TrialCrashError, TrialTimeoutError) as error:
            self.close()
            return tuple(TrialOutcome(spec, error.code, str(error)) for spec in specs)

    def _spawn(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="feinsum-trial-")
        environment = os.environ | {
            "POCL_CACHE_DIR": self._folder.name,
            "XDG_CACHE_HOME": self._folder.name,
            "PYOPENCL_NO_CACHE": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "feinsum.tune.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._lines = queue.Queue()
        reader = threading.Thread(
            target=_read_lines, args=(self._process, self._lines), daemon=True
        )
        reader.start()

    def _ask(self, request: Request, limit_s: float) -> Answer:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            print(to_json(request), file=self._process.stdin, flush=True)
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise TrialTimeoutError(
                f"no answer within {limit_s:g} s; the trial was stopped"
            ) from None
        except BrokenPipeError:
            line = None
        if line is None:
            code = self._process.wait()
            raise TrialCrashError(f"the process of the trial ended with code {code}")
        return from_json(Answer, line)


def _read_lines(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    try:
        for line in process.stdout:
            lines.put(line)
    except ValueError:  # closed under the reader
        return
    lines.put(None)
