"""Trials in a separate process, with a time limit.

A candidate that crashes, hangs, or costs its process the GPU ends that process; the
next trial gets a new one. Each process has its own OpenCL compiler cache, since caches
shared between processes have crashed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from time import monotonic

from feinsum.errors import (
    DeviceLostError,
    FeinsumError,
    InvalidRecordError,
    TrialCrashError,
    TrialTimeoutError,
    make_error,
)
from feinsum.processes import (
    Worker,
    WorkerError,
    WorkerTimeoutError,
    make_python_command,
)
from feinsum.records import Environment, TransformSpec, from_json, to_json
from feinsum.transforms import export_transforms
from feinsum.tuning.problem import TuningProblem
from feinsum.tuning.trials import (
    Ask,
    TrialAnswer,
    TrialBench,
    TrialOutcome,
    TrialRequest,
)

COMMAND = make_python_command("feinsum.tuning.worker")
SET_UP_LIMIT_S = 300.0
"""Seconds for data, reference results and the untransformed kernel, at any size."""


class IsolatedBench(TrialBench):
    """A bench in a child process that is started again when it dies.

    The child is in its own session: a keyboard interrupt reaches only this process,
    which then decides what happens to the child.

    Attributes:
        is_abandoned: whether another thread has ended it for good.

    Args:
        problem: the problem to tune.
        time_limit_s: time limit of each trial; a comparison may take it once per recipe
            and once for the untransformed kernel.
        is_shared: take turns on the device with other such benches on this machine;
            waiting for a turn does not count towards the limit.
    """

    is_here = True

    def __init__(
        self,
        problem: TuningProblem,
        time_limit_s: float = 60.0,
        is_shared: bool = False,
    ) -> None:
        self.problem = problem
        self.is_shared = is_shared
        self.time_limit_s = time_limit_s
        self.environment: Environment | None = None
        self.is_abandoned = False
        self._worker: Worker | None = None
        self._passed: set[TransformSpec] = set()

    def trial(
        self, spec: TransformSpec, reference: TransformSpec | None = None
    ) -> TrialOutcome:
        """Verify and time one recipe; a crash or a hang is an outcome.

        Args:
            spec: the recipe to try.
            reference: what to time it against. In a new process it is tried first, so
                that its failures are not attributed to ``spec``.

        Raises:
            MeasurementError: if the problem itself cannot be set up.
        """
        self.start()
        # A process that was started again has built no kernel yet.
        if reference is not None and reference not in self._passed:
            is_good = self._try_one(TrialRequest(specs=(reference,))).is_ok
            reference = reference if is_good else None
        return self._try_one(TrialRequest(specs=(spec,), reference=reference))

    def outcomes(self, ask: Ask) -> Iterator[TrialOutcome]:
        """Try the requested recipes, one after another."""
        while (wanted := ask()) is not None:
            yield self.trial(*wanted)

    def compare(self, specs: Sequence[TransformSpec]) -> tuple[TrialOutcome, ...]:
        """Time several recipes that passed their trial in one run."""
        limit_s = self.time_limit_s * (len(specs) + 1)
        return self._try(TrialRequest(specs=tuple(specs), is_comparison=True), limit_s)

    def start(self) -> Environment:
        """Set up the problem if no process is running; returns its environment."""
        if self._worker is None:
            self._worker = Worker.isolated(COMMAND, export_transforms)
            self._passed = set()
            try:
                request = TrialRequest(problem=self.problem, is_shared=self.is_shared)
                answer = self._exchange(request, SET_UP_LIMIT_S)
            except FeinsumError as error:
                raise type(error)(f"setting up the trials: {error}") from None
            if answer.environment is None:
                self.close()
                raise make_error(answer.error_code or "", answer.error)
            self.environment = answer.environment
        assert self.environment is not None
        return self.environment

    def abandon(self) -> None:
        """Abandon the trial in progress for good, from another thread."""
        self.is_abandoned = True
        if (worker := self._worker) is not None:
            worker.interrupt()

    def close(self) -> None:
        """End the process and its children, and remove its cache."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _try_one(self, request: TrialRequest) -> TrialOutcome:
        (outcome,) = self._try(request, self.time_limit_s)
        if outcome.is_ok:
            self._passed.add(outcome.spec)
        return outcome

    def _try(self, request: TrialRequest, limit_s: float) -> tuple[TrialOutcome, ...]:
        self.start()
        try:
            outcomes = self._exchange(request, limit_s).outcomes
        except (TrialCrashError, TrialTimeoutError) as error:
            return tuple(
                TrialOutcome(spec, error.code, str(error)) for spec in request.specs
            )
        # The context of a lost GPU cannot be used again; that of a new process can.
        if any(outcome.status == DeviceLostError.code for outcome in outcomes):
            self.close()
        return outcomes

    def _exchange(self, request: TrialRequest, limit_s: float) -> TrialAnswer:
        """Send a request and return the answer; without one, end the process.

        So no later request can meet the answer to an earlier one.
        """
        try:
            return self._answer(request, limit_s)
        except BaseException:
            self.close()
            raise

    def _answer(self, request: TrialRequest, limit_s: float) -> TrialAnswer:
        assert self._worker is not None
        if self.is_abandoned:
            raise TrialCrashError("the trial was abandoned")
        try:
            began_s, left_s = monotonic(), limit_s
            answer = from_json(
                TrialAnswer, self._worker.request(to_json(request), limit_s)
            )
            while answer.is_waiting:
                # The wait for the device does not count. It ends with a second such
                # answer; then the remaining time runs.
                left_s -= monotonic() - began_s
                self._worker.receive(inf)
                began_s = monotonic()
                answer = from_json(TrialAnswer, self._worker.receive(left_s))
        except WorkerTimeoutError:
            raise TrialTimeoutError(
                f"stopped after the trial limit of {limit_s:g} s"
            ) from None
        except WorkerError as error:
            if self.is_abandoned:
                raise TrialCrashError("the trial was abandoned") from None
            raise TrialCrashError(f"the process of the trial {error}") from None
        except InvalidRecordError as error:
            raise TrialCrashError(
                f"the process of the trial gave an invalid answer: {error}"
            ) from None
        return answer
