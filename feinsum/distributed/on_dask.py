"""Plans on Dask workers: one task for each rank and phase, placed by the plan.

A task takes the buffers of its rank after the previous phase, and what other ranks
sent; it produces a parcel for each distinct content to send, which Dask moves to the
worker that needs it. Tasks have no side effects, so Dask recomputes what a lost worker
held, on the worker that replaces it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box
from feinsum.distributed.fleets import fleet_of, place
from feinsum.distributed.local import (
    Buffers,
    LeafFunction,
    Meaning,
    Products,
    checked_operands,
    slices,
)
from feinsum.distributed.phases import Origin, Parcel, Phase, phases_of
from feinsum.distributed.plan import Plan
from feinsum.distributed.report import report_of
from feinsum.distributed.room import check_room
from feinsum.distributed.steps import Leaf, Receive, Reduce, Step
from feinsum.distributed.traffic import Traffic
from feinsum.errors import PlanError
from feinsum.records import Fleet
from feinsum.words import counted

if TYPE_CHECKING:
    from feinsum.distributed.prepared import Outcome, Progress

RETURN_LIMIT_S = 60.0
"""Time limit for a lost worker to come back."""

LOOK_S = 0.5
"""Interval between checks that all workers are there."""

LARGE_GRAPH = "distributed.admin.large-graph-warning-threshold"
ANY_SIZE = 1 << 62


@dataclass(frozen=True)
class _Run:
    """A run that was begun.

    Attributes:
        results: for each rank what it has of the outputs, and what it did; a future.
        names: of the workers, by rank.
        lost: workers that had been lost before.
        topic: topic of the progress events; empty without a listener.
        told: the listener.
    """

    results: Sequence[Any]
    names: Sequence[Any]
    lost: int
    start: float
    topic: str
    told: _Told | None


class _Told:
    """Reports the progress of a run, in whatever order the workers' events arrive."""

    def __init__(self, phases: Sequence[Sequence[Phase]], progress: Progress) -> None:
        self._progress, self._lock = progress, Lock()
        self._left = {
            (rank, number): sum(type(step) is Leaf for step, _ in phase.steps)
            for rank, row in enumerate(phases)
            for number, phase in enumerate(row)
        }
        self._total = sum(self._left.values())

    def __call__(self, event: tuple[float, Any]) -> None:
        """Report a finished phase; one that is recomputed counts once."""
        with self._lock:
            if self._left.pop(tuple(event[1]), 0):
                left = sum(self._left.values())
                self._progress(self._total - left, self._total)

    def end(self) -> None:
        """Report that all phases are done; later events are ignored."""
        with self._lock:
            if sum(self._left.values()):
                self._progress(self._total, self._total)
            self._left.clear()


class DaskEngine:
    """A plan that Dask workers run.

    Args:
        client: a Dask client; each of its first workers, by their names, is a rank.
        leaf: function that computes a block; by default :func:`feinsum.call_einsum`.
        meaning: computes statements that are not einsums.

    Raises:
        PlanError: with the rule ``workers``, if there is no client, or it has fewer
            workers than the plan has processes.
    """

    def __init__(
        self,
        plan: Plan,
        client: Any,
        leaf: LeafFunction | None = None,
        meaning: Meaning | None = None,
    ) -> None:
        if not hasattr(client, "scheduler_info"):
            raise PlanError(
                f"the engine dask was given {type(client).__name__}; expected a "
                "client, such as distributed.Client('tcp://host:8786')",
                rules=("workers",),
            )
        self.plan, self.client = plan, client
        self.meaning = meaning or Products(plan, leaf or _tuned)
        self.phases = phases_of(plan.steps)
        client.register_plugin(watch())
        self._workers()

    def submit(self, arrays: Mapping[str, Any], progress: Progress | None) -> _Run:
        """Send all tasks of a run to the scheduler."""
        import dask

        known = checked_operands(self.plan, arrays)
        start, workers = perf_counter(), self._workers()
        names, places = zip(*workers, strict=True)
        token = f"feinsum-{uuid4().hex}"
        topic = "" if progress is None else token
        told = None if progress is None else _Told(self.phases, progress)
        if told is not None:
            self.client.subscribe_topic(topic, told)
        lost = self._lost()
        sender = TaskSender(self.client, token, topic, places)
        # blocks are part of the graph, and can so be sent again if they are lost
        with dask.config.set({LARGE_GRAPH: ANY_SIZE}):
            for rank in range(self.plan.processes):
                sender.begin(rank, self.meaning, self._blocks(known, rank))
        for rank, number in _in_order(self.phases):
            sender.advance(rank, number, self.phases[rank][number])
        results = sender.results(self.plan.outputs)
        return _Run(results, names, lost, start, topic, told)

    def outcome(self, run: _Run) -> Outcome:
        """Wait for a run.

        Raises:
            PlanError: with the rule ``workers``, if a worker is gone for good.
        """
        from feinsum.distributed.prepared import Outcome

        try:
            self._wait(run)
            ranks = self.client.gather(list(run.results))
        finally:
            for future in run.results:
                future.release()
            if run.topic:
                self.client.unsubscribe_topic(run.topic)
        if run.told is not None:
            run.told.end()
        results = {}
        for output in self.plan.outputs:
            whole = np.zeros(self.plan.shape(output), self.meaning.dtype(output))
            for rank, (parts, _) in enumerate(ranks):
                box = self.plan.result_box(rank, output)
                if box is not None:
                    whole[slices(box)] = parts[output]
            results[output] = whole
        traffic = [one for _, one in ranks]
        seconds, lost = perf_counter() - run.start, self._lost() - run.lost
        return Outcome(results, report_of(self.plan, "dask", traffic, seconds, lost))

    def fleet(self) -> Fleet:
        """The fleet of the workers that serve as ranks."""
        addresses = [at for _, at in self._workers()]
        found = self.client.run(place, workers=addresses)
        return fleet_of("dask", [found[at] for at in addresses])

    def _every_worker(self) -> Mapping[str, Any]:
        """The scheduler's data on each worker, by its address.

        ``scheduler_info`` would return the client's copy, which is empty at times.
        """
        identity = self.client.scheduler.identity
        workers: Mapping[str, Any] = self.client.sync(identity, n_workers=-1)["workers"]
        return workers

    def _workers(self) -> list[tuple[Any, str]]:
        """Name and address of the worker of each rank.

        Raises:
            PlanError: if there are too few, or if blocks do not fit into one.
        """
        info = self._every_worker()
        found = sorted((str(one["name"]), one["name"], at) for at, one in info.items())
        n = self.plan.processes
        if len(found) < n:
            raise PlanError(
                f"the plan is for {counted(n, 'process')}; the "
                f"cluster has {counted(len(found), 'worker')}",
                rules=("workers",),
            )
        for _, _, at in found[:n]:
            if info[at]["memory_limit"]:
                check_room(self.plan, info[at]["memory_limit"])
        return [(name, at) for _, name, at in found[:n]]

    def _blocks(
        self, arrays: Mapping[str, NDArray[Any]], rank: int
    ) -> dict[str, tuple[NDArray[Any], Box]]:
        """Copies, for the arrays belong to the caller while the run goes on."""
        boxes = {name: self.plan.start_box(name, rank) for name in arrays}
        return {
            name: (arrays[name][slices(box)].copy(), box)
            for name, box in boxes.items()
            if box is not None
        }

    def _lost(self) -> int:
        """Workers that were ever lost."""
        found: int = self.client.run_on_scheduler(n_lost)
        return found

    def _wait(self, run: _Run) -> None:
        from distributed import KilledWorker, wait

        missing_since: float | None = None
        while missing_since is None or monotonic() - missing_since < RETURN_LIMIT_S:
            try:
                # with a limit, as Dask would wait for ever for a worker that is gone
                wait(list(run.results), timeout=LOOK_S)
            except TimeoutError:
                is_missing = bool(self._missing(run))
                missing_since = (missing_since or monotonic()) if is_missing else None
            else:
                break
        else:
            self.client.cancel(list(run.results))
            raise PlanError(
                f"worker {self._missing(run)} was lost and did not return within "
                f"{RETURN_LIMIT_S:g} s; run workers with a nanny, or plan for "
                "fewer workers",
                rules=("workers",),
            )
        for rank, future in enumerate(run.results):
            error = future.exception() if future.status == "error" else None
            if isinstance(error, KilledWorker):
                raise PlanError(
                    f"the worker of rank {rank} died repeatedly: {error}",
                    rules=("workers",),
                ) from None

    def _missing(self, run: _Run) -> str:
        """The names of workers that are not there now."""
        there = {one["name"] for one in self._every_worker().values()}
        return ", ".join(sorted(str(name) for name in set(run.names) - there))


def _tuned(subscripts: str, *blocks: NDArray[Any]) -> Any:
    from feinsum.calling import call_einsum

    return call_einsum(subscripts, *blocks)


def _in_order(phases: Sequence[Sequence[Phase]]) -> Iterator[tuple[int, int]]:
    """Rank and number of every phase, each after those that it waits for."""
    most = max(map(len, phases))
    for number in range(most):
        for rank, row in enumerate(phases):
            if number < len(row):
                yield rank, number


class TaskSender:
    """Creates the tasks of one run.

    It owns the futures, so buffers are freed once no task needs them.
    """

    def __init__(
        self, client: Any, token: str, topic: str, places: Sequence[str]
    ) -> None:
        self.client, self.token, self.topic, self.places = client, token, topic, places
        self.states: dict[tuple[int, int], Any] = {}
        self.parcels: dict[Parcel, Any] = {}
        self.last: dict[int, int] = {}

    def begin(self, rank: int, meaning: Meaning, blocks: Any) -> None:
        """The initial buffers of a rank."""
        key = f"{self.token}-begin-{rank}"
        self.states[rank, -1] = self._submit(key, rank, _begin, meaning, blocks)

    def advance(self, rank: int, number: int, phase: Phase) -> None:
        """A phase of a rank, and the parcels that it receives."""
        parcels = [self._parcel(parcel) for parcel in phase.arriving]
        key = f"{self.token}-phase-{rank}-{number}"
        told = (self.topic, rank, number)
        before = self.states[rank, number - 1]
        self.states[rank, number] = self._submit(
            key, rank, _advance, before, phase.steps, told, *parcels
        )
        self.last[rank] = number

    def results(self, outputs: Sequence[str]) -> list[Any]:
        """Each rank's part of the outputs."""
        return [
            self._submit(
                f"{self.token}-result-{rank}",
                rank,
                _finish,
                self.states[rank, number],
                tuple(outputs),
            )
            for rank, number in sorted(self.last.items())
        ]

    def _parcel(self, parcel: Parcel) -> Any:
        if parcel not in self.parcels:
            state = self.states[parcel.rank, parcel.phase]
            key = f"{self.token}-parcel-{len(self.parcels)}"
            pieces = parcel.pieces
            self.parcels[parcel] = self._submit(key, parcel.rank, _cut, state, pieces)
        return self.parcels[parcel]

    def _submit(self, key: str, rank: int, function: Any, *arguments: Any) -> Any:
        return self.client.submit(
            function,
            *arguments,
            key=key,
            workers=[self.places[rank]],
            allow_other_workers=False,
            pure=False,
        )


def _begin(meaning: Meaning, blocks: Mapping[str, tuple[NDArray[Any], Box]]) -> Buffers:
    buffers = Buffers(meaning, Traffic())
    for name, (array, box) in blocks.items():
        buffers.put(name, box, array)
    return buffers


def _advance(
    before: Buffers,
    steps: Sequence[tuple[Step, Origin | None]],
    told: tuple[str, int, int],
    *parcels: Sequence[NDArray[Any]],
) -> Buffers:
    """The steps of a phase; the buffers of the phase before stay as they are."""
    buffers = before.fork()
    for step, origin in steps:
        if isinstance(step, Receive | Reduce):
            assert origin is not None
            value = parcels[origin[0]][origin[1]]
            buffers.receive(step.target, step.box, value, type(step) is Reduce)
        else:
            buffers.do(step)
    topic, *place = told
    if topic:
        from distributed import get_worker

        get_worker().log_event(topic, tuple(place))
    return buffers


def _cut(
    buffers: Buffers, pieces: Sequence[tuple[str, Box]]
) -> tuple[NDArray[Any], ...]:
    # a view would keep the whole buffer in memory until the parcel is there
    return tuple(buffers.view(name, box).copy() for name, box in pieces)


def _finish(
    buffers: Buffers, outputs: Sequence[str]
) -> tuple[dict[str, NDArray[Any]], Traffic]:
    parts = {
        name: buffers.arrays[name][0] for name in outputs if name in buffers.arrays
    }
    return parts, buffers.traffic


WATCH = "feinsum-watch"


def n_lost(dask_scheduler: Any) -> int:
    """The number of workers that a watched scheduler has lost so far."""
    found: int = dask_scheduler.plugins[WATCH].n_lost
    return found


def watch() -> Any:
    """Install a scheduler plugin that counts lost workers.

    Tasks of a lost worker wait for the one restarted under its name, which may have
    another address.
    """
    from distributed import SchedulerPlugin

    class Watch(SchedulerPlugin):  # type: ignore[misc]  # Dask has no types
        name, idempotent = WATCH, True

        def __init__(self) -> None:
            self.n_lost = 0
            self.names: dict[str, Any] = {}
            self.gone: dict[Any, str] = {}

        async def start(self, scheduler: Any) -> None:
            self.names = {at: ws.name for at, ws in scheduler.workers.items()}

        def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
            self.n_lost += 1
            if worker in self.names:
                self.gone[self.names.pop(worker)] = worker

        def add_worker(self, scheduler: Any, worker: str) -> None:
            name = scheduler.workers[worker].name
            self.names[worker] = name
            before = self.gone.pop(name, worker)
            for task in scheduler.tasks.values():
                if task.worker_restrictions == {before}:
                    task.worker_restrictions = {worker}

    return Watch()
