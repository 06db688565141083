"""Trials on many machines: the workers of a Dask cluster, each with a device.

Each worker has one task at a time, and this module chooses the worker. If a worker is
lost, only its current trial is lost and repeated elsewhere. The scheduler holds no
state that matters: after a restart, the trials that were under way are submitted again.

Workers of one environment share a tuning. Each keeps only the child process of its
latest problem, which can be started again.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from time import monotonic, sleep
from typing import Any

from feinsum.errors import (
    DeviceUnavailableError,
    FeinsumError,
    InvalidRecordError,
    MeasurementError,
    TrialCrashError,
    make_error,
)
from feinsum.records import (
    Device,
    Environment,
    Processor,
    TransformSpec,
    from_json,
    to_json,
)
from feinsum.tuning.connection import Connection, ConnectionLost, Errand, WorkerLost
from feinsum.tuning.isolation import IsolatedBench
from feinsum.tuning.problem import TuningProblem
from feinsum.tuning.trials import (
    Ask,
    Task,
    TrialAnswer,
    TrialBench,
    TrialOutcome,
    TrialRequest,
)

logger = logging.getLogger(__name__)

CONNECT_LIMIT_S = 10.0
"""How long a new tuning waits for the scheduler."""

RECONNECT_LIMIT_S = 300.0
"""How long a running tuning waits for a lost scheduler."""

WORKERS_LIMIT_S = 300.0
"""How long a tuning waits without any worker."""

MAX_LOST = 3
"""Workers lost with one recipe after which the recipe counts as crashed."""

POLL_S = 0.1

SET_UP = TrialRequest()


@dataclass(frozen=True)
class _Job:
    """A request, and how many workers were lost while they had it."""

    request: TrialRequest
    n_lost: int = 0


class ClusterBench(TrialBench):
    """A bench whose trials run on the workers of a cluster.

    All workers must have the same environment. A late worker with a different one is
    skipped, as is one on which the problem cannot be set up.

    Args:
        problem: the problem to tune; its device selects every worker's.
        scheduler: the address of the scheduler, such as ``tcp://host:8786``.
        time_limit_s: time limit of each trial, excluding the wait for the device.

    Raises:
        FeinsumError: if Dask is not installed.
    """

    def __init__(
        self, problem: TuningProblem, scheduler: str, time_limit_s: float = 60.0
    ) -> None:
        self.problem = problem
        self.time_limit_s = time_limit_s
        self.environment: Environment | None = None
        self._connection = Connection(scheduler)
        self._ready: set[str] = set()
        self._refused: set[str] = set()
        self._met: set[str] = set()
        self._running: dict[str, tuple[Errand, _Job]] = {}
        self._todo: list[_Job] = []
        self._seen_s = monotonic()
        self._patience_s = RECONNECT_LIMIT_S
        self._workers_limit_s = WORKERS_LIMIT_S

    def start(self) -> Environment:
        """Set up the problem on every worker; returns their common environment.

        Raises:
            DeviceUnavailableError: if there is no scheduler or no worker, or if the
                workers have different environments.
            MeasurementError: if the problem cannot be set up on any worker.
        """
        if self.environment is None:
            self._connection.open(CONNECT_LIMIT_S)
            self._seen_s = monotonic()
            try:
                answers = self._collect_environments()
            except ConnectionLost:
                raise DeviceUnavailableError(
                    f"the scheduler {self._connection.address} ended while workers "
                    "were queried for their devices"
                ) from None
            self.environment = check_agreement(answers)
            self._ready = {w for w, a in answers.items() if a.environment is not None}
            self._refused = set(answers) - self._ready
        return self.environment

    def outcomes(self, ask: Ask) -> Iterator[TrialOutcome]:
        """Try the requested recipes, one per worker at a time.

        A recipe with which :data:`MAX_LOST` workers were lost counts as crashed.

        Raises:
            DeviceUnavailableError: if the scheduler or all workers stay away for long.
        """

        def take() -> TrialRequest | None:
            wanted = ask()
            if wanted is None:
                return None
            return TrialRequest(specs=wanted[:1], reference=wanted[1])

        for outcomes in self._run_requests(take):
            yield from outcomes

    def compare(self, specs: Sequence[TransformSpec]) -> tuple[TrialOutcome, ...]:
        """Time several recipes that passed their trial in one run on one worker."""
        requests = iter([TrialRequest(specs=tuple(specs), is_comparison=True)])
        (outcomes,) = self._run_requests(lambda: next(requests, None))
        return outcomes

    def close(self) -> None:
        """Make the workers release the problem, and disconnect."""
        self._drop_all()
        problem = to_json(self.problem)
        try:
            present = self._met & self._connection.workers()
            sent = [self._connection.send(w, release, problem) for w in present]
            self._connection.finish(sent)
        except ConnectionLost:
            logger.info("the scheduler is gone; workers keep what they have")
        self._ready, self._met = set(), set()
        self._connection.close()

    def _collect_environments(self) -> dict[str, TrialAnswer]:
        """Collect the environments of all workers, waiting for the first one."""
        answers: dict[str, TrialAnswer] = {}
        while self._running or not answers:
            self._contact_new_workers(contacted=set(answers))
            answers |= {worker: reply for worker, _, reply in self._collect_ended()}
        return answers

    def _run_requests(
        self, take: Callable[[], TrialRequest | None]
    ) -> Iterator[tuple[TrialOutcome, ...]]:
        """Yield the outcomes of requests while there are any; no request is lost."""
        self.start()
        try:
            while True:
                try:
                    self._contact_new_workers(contacted=self._ready | self._refused)
                    if not self._hand_out(take):
                        return
                    ended = list(self._collect_ended())
                except ConnectionLost:
                    self._reconnect()
                    continue
                for worker, job, reply in ended:
                    yield from self._conclude(worker, job, reply)
        # After an interrupt, the comparison of the best must not wait for minutes.
        except BaseException:
            self._patience_s = self._workers_limit_s = 0.0
            raise
        finally:
            self._drop_all()

    def _contact_new_workers(self, contacted: set[str]) -> None:
        """Query new workers for their environment; raise if there are none for long."""
        present = self._connection.workers()
        self._ready &= present
        self._refused &= present
        for worker in sorted(present - contacted - set(self._running)):
            self._send(worker, _Job(SET_UP))
        if self._ready or self._running:
            self._seen_s = monotonic()
        elif monotonic() - self._seen_s > self._workers_limit_s:
            raise DeviceUnavailableError(
                f"the scheduler {self._connection.address} has had no worker for "
                f"{self._workers_limit_s:g} s on which the problem can be set up; "
                "start some (dask worker ADDRESS --nthreads 1) and restart the tuning; "
                "finished trials are kept"
            )

    def _hand_out(self, take: Callable[[], TrialRequest | None]) -> bool:
        """Give idle workers requests; return whether any are still under way."""
        for worker in sorted(self._ready - set(self._running)):
            if not self._todo:
                request = take()
                if request is None:
                    return any(job.request.specs for _, job in self._running.values())
                self._todo.append(_Job(request))
            self._send(worker, self._todo[0])
            del self._todo[0]
        return True

    def _send(self, worker: str, job: _Job) -> None:
        task = to_json(Task(self.problem, self.time_limit_s, job.request))
        self._running[worker] = self._connection.send(worker, answer, task), job
        self._met.add(worker)

    def _collect_ended(self) -> Iterator[tuple[str, _Job, TrialAnswer]]:
        """Yield jobs that have ended; the answer of a lost worker is an error."""
        # Dask's own waiting would not notice that a scheduler is gone.
        sleep(POLL_S)
        present = self._connection.workers()
        for worker, (errand, job) in [*self._running.items()]:
            reply = self._fetch_answer(errand)
            if reply is None and worker not in present:
                self._connection.drop(errand)
                reply = _make_failure("it is gone")
            if reply is not None:
                del self._running[worker]
                yield worker, job, reply

    def _fetch_answer(self, errand: Errand) -> TrialAnswer | None:
        try:
            text = self._connection.fetch(errand)
            return None if text is None else from_json(TrialAnswer, text)
        except (WorkerLost, InvalidRecordError) as error:
            return _make_failure(str(error))

    def _conclude(
        self, worker: str, job: _Job, reply: TrialAnswer
    ) -> Iterator[tuple[TrialOutcome, ...]]:
        """Yield the outcomes of a job that has ended; none if it must be repeated."""
        objection = self._find_objection(reply)
        if objection is None:
            self._ready.add(worker)
            if reply.outcomes:
                yield reply.outcomes
            return
        logger.warning("skipping worker %s: %s", worker, objection)
        self._ready.discard(worker)
        self._refused.add(worker)
        job = replace(job, n_lost=job.n_lost + 1)
        if job.request.specs and job.n_lost < MAX_LOST:
            self._todo.append(job)
        elif job.request.specs:
            message = f"{job.n_lost} workers were lost with it; the last one: "
            yield tuple(
                TrialOutcome(spec, TrialCrashError.code, message + objection)
                for spec in job.request.specs
            )

    def _find_objection(self, reply: TrialAnswer) -> str | None:
        """Return why a worker cannot take part; None if it can."""
        assert self.environment is not None
        if reply.environment is None:
            return reply.error
        return describe_difference(reply.environment, self.environment)

    def _reconnect(self) -> None:
        """Wait for a scheduler, and hand out again what was under way."""
        address = self._connection.address
        logger.warning("lost the scheduler %s; waiting for it to return", address)
        under_way = [job for _, job in self._running.values() if job.request.specs]
        # A new scheduler lacks the old futures, although their workers may have
        # continued.
        self._todo = under_way + self._todo
        self._running, self._ready, self._refused = {}, set(), set()
        limit_s, self._patience_s = self._patience_s, 0.0
        self._connection.open(limit_s)
        self._seen_s, self._patience_s = monotonic(), RECONNECT_LIMIT_S

    def _drop_all(self) -> None:
        """Drop all requests without waiting for running ones, which workers end."""
        for errand, _ in self._running.values():
            self._connection.drop(errand)
        if self._running:
            texts = [errand.text for errand, _ in self._running.values()]
            self._connection.tell([*self._running], abandon, json.dumps(texts))
        self._running, self._todo = {}, []


def _make_failure(reason: str) -> TrialAnswer:
    return TrialAnswer(error_code=MeasurementError.code, error=reason)


_BUSY = threading.Lock()

_BENCHES: dict[TuningProblem, IsolatedBench] = {}
"""At most one entry: the bench of the latest problem."""

_RUNNING: dict[str, IsolatedBench] = {}
"""At most one entry: the bench that runs a task, by the text of the task."""


def answer(text: str) -> str:
    """Run a :class:`Task`; answer with the environment in any case.

    Trials run in a child process, as they do without a cluster, and take turns with
    those of other workers of the same device.
    """
    task = from_json(Task, text)
    # A worker with several threads still times one trial at a time.
    with _BUSY:
        _RUNNING[text] = _find_bench(task)
        try:
            return to_json(_carry_out(_RUNNING[text], task.request))
        finally:
            del _RUNNING[text]


def abandon(texts: str) -> None:
    """End the running task and its child process if it is in a list.

    It is called concurrently with the task, whose answer is then ignored.
    """
    for text in json.loads(texts):
        bench = _RUNNING.get(text)
        if bench is not None:
            bench.abandon()


def release(text: str) -> None:
    """End the child process of a problem, if it is still the latest."""
    with _BUSY:
        bench = _BENCHES.pop(from_json(TuningProblem, text), None)
        if bench is not None:
            bench.close()


def _carry_out(bench: IsolatedBench, request: TrialRequest) -> TrialAnswer:
    try:
        environment = bench.start()
        if request.is_comparison:
            return TrialAnswer(bench.compare(request.specs), environment)
        outcomes = (bench.trial(spec, request.reference) for spec in request.specs)
        return TrialAnswer(tuple(outcomes), environment)
    except FeinsumError as error:  # the problem cannot be set up here
        return TrialAnswer(error_code=error.code, error=str(error))


def _find_bench(task: Task) -> IsolatedBench:
    bench = _BENCHES.get(task.problem)
    if bench is None or bench.is_abandoned:
        # Only the latest problem stays set up: arrays of two may not fit the memory.
        while _BENCHES:
            _BENCHES.popitem()[1].close()
        _BENCHES[task.problem] = IsolatedBench(task.problem, is_shared=True)
    bench = _BENCHES[task.problem]
    bench.time_limit_s = task.time_limit_s
    return bench


def check_agreement(answers: Mapping[str, TrialAnswer]) -> Environment:
    """Return the environment that all workers with the problem have in common.

    Device, driver and software are the same, so every record describes its timings.

    Raises:
        MeasurementError: the first worker's error, if the problem could be set up on
            none.
        DeviceUnavailableError: if they differ; the message lists them.
    """
    environments = {
        w: a.environment for w, a in sorted(answers.items()) if a.environment
    }
    if not environments:
        worker, first = min(answers.items())
        message = f"the worker {worker}: {first.error}"
        raise make_error(first.error_code or "", message)
    environment = next(iter(environments.values()))
    if any(other != environment for other in environments.values()):
        listed = "; ".join(
            f"{worker}: {describe_difference(other, environment) or environment.device}"
            for worker, other in environments.items()
        )
        raise DeviceUnavailableError(
            "the workers have different environments, but the timings of one tuning "
            f"must come from one: {listed}. Select a device with --device, or give "
            "each kind of worker its own scheduler"
        )
    return environment


def describe_difference(environment: Environment, expected: Environment) -> str | None:
    """Describe how an environment differs from the expected one; None if equal."""
    for name in (field.name for field in fields(Environment)):
        ours, theirs = getattr(environment, name), getattr(expected, name)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            keys = sorted(k for k in {*ours, *theirs} if ours.get(k) != theirs.get(k))
            if keys:
                pairs = [f"{k} {ours.get(k)}, not {theirs.get(k)}" for k in keys]
                return f"{name}: {', '.join(pairs)}"
        elif isinstance(ours, Device) and ours != theirs:
            names = ", ".join(_list_differing_fields(ours, theirs))
            return f"device {ours}, not {theirs}: it differs in {names}"
        elif ours != theirs:
            return f"{name.replace('_', ' ')} {ours}, not {theirs}"
    return None


def _list_differing_fields(value: Device | Processor, expected: Any) -> Iterator[str]:
    """Yield the names of fields that differ; for two processors, of their fields."""
    for name in (field.name for field in fields(value)):
        actual, wanted = getattr(value, name), getattr(expected, name)
        if isinstance(actual, Processor) and wanted is not None:
            yield from _list_differing_fields(actual, wanted)
        elif actual != wanted:
            yield name
