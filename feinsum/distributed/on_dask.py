"""Plans on Dask workers: one task for each rank and phase, on the worker of the rank.

The task of a phase takes the buffers of its rank after the previous phase, and parcels
that other ranks sent. Tasks of their own pack the parcels, and Dask moves these to the
workers that need them. Tasks have no side effects, so Dask recomputes the data of a
lost worker on the worker that replaces it::

    worker 0   begin-0 ----------> phase-0-1 -> phase-0-2 -> result-0
                    '-- parcel-0 --.
    worker 1   begin-1 -----------'-> phase-1-1 -----------> result-1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from time import monotonic, perf_counter
from typing import Any
from uuid import uuid4

from numpy.typing import NDArray

from feinsum.distributed.boxes import Box
from feinsum.distributed.counts import Outcome, Traffic, build_report
from feinsum.distributed.fleets import build_fleet, locate_rank
from feinsum.distributed.local import (
    Buffers,
    Progress,
    Semantics,
    Wait,
    assemble_result,
    check_memory,
    check_operands,
    cut_blocks,
)
from feinsum.distributed.messages import Origin, Phase, build_phases
from feinsum.distributed.plans import Plan
from feinsum.distributed.steps import Leaf, Step, Transfer
from feinsum.distributed.storage import Stored, to_host
from feinsum.errors import PlanError
from feinsum.records import Fleet
from feinsum.words import format_count

RETURN_LIMIT_S = 60.0
"""Time limit for a lost worker to come back."""

CHECK_INTERVAL_S = 0.5
"""Interval between checks that all workers are present."""

LARGE_GRAPH = "distributed.admin.large-graph-warning-threshold"
ANY_SIZE = 1 << 62


@dataclass(frozen=True)
class _Run:
    """A run that was begun.

    Attributes:
        results: for each rank, a future of its parts of the outputs and its traffic.
        names: names of the workers, by rank.
        n_lost_before: workers that had been lost before.
        topic: topic of the progress events; empty without a listener.
        listener: reports the progress.
    """

    results: Sequence[Any]
    names: Sequence[Any]
    n_lost_before: int
    start: float
    topic: str
    listener: _ProgressListener | None


class _ProgressListener:
    """Reports the progress of a run, in whatever order the workers' events arrive."""

    def __init__(
        self, phases: Sequence[Mapping[int, Phase]], progress: Progress
    ) -> None:
        self._progress, self._lock = progress, Lock()
        self._left = {
            (rank, number): sum(type(step) is Leaf for step, _ in phase.steps)
            for number, of_ranks in enumerate(phases)
            for rank, phase in of_ranks.items()
        }
        self._total = sum(self._left.values())

    def __call__(self, event: tuple[float, Any]) -> None:
        """Report a finished phase; one that is recomputed counts once."""
        with self._lock:
            if self._left.pop(tuple(event[1]), 0):
                n_left = sum(self._left.values())
                self._progress(self._total - n_left, self._total)

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
        semantics: computes leaves and reductions.

    Raises:
        PlanError: with the rule ``workers``, if there is no client, or it has fewer
            workers than the plan has processes.
    """

    # one run ahead hides the latency of the scheduler, at twice the memory
    n_ahead = 1

    def __init__(self, plan: Plan, client: Any, semantics: Semantics) -> None:
        if not hasattr(client, "scheduler_info"):
            raise PlanError(
                f"the engine dask cannot run on {client!r:.80}; expected a client, as "
                "in prepare('dask', distributed.Client('tcp://host:8786'))",
                rules=("workers",),
            )
        self.plan, self.client, self.semantics = plan, client, semantics
        self.phases = build_phases(plan.events())
        # idempotent: plans on one client share the plugin
        client.register_plugin(make_worker_watch())
        self._list_workers()

    def submit(self, arrays: Mapping[str, Any], progress: Progress | None) -> Wait:
        """Send all tasks of a run to the scheduler."""
        checked = check_operands(self.plan, self.semantics.read(arrays))
        # workers need not have a GPU
        operands = {name: to_host(array) for name, array in checked.items()}
        start, workers = perf_counter(), self._list_workers()
        names, addresses = zip(*workers, strict=True)
        token = f"feinsum-{uuid4().hex}"
        topic, listener = "", None
        if progress is not None:
            topic, listener = token, _ProgressListener(self.phases, progress)
            # before any task is sent, so that no event is lost
            self.client.subscribe_topic(topic, listener)
        n_lost_before = self._count_lost()
        results = self._send_tasks(operands, addresses, token, topic)
        run = _Run(results, names, n_lost_before, start, topic, listener)
        return partial(self._finish, run)

    def _send_tasks(
        self,
        operands: Mapping[str, Stored],
        addresses: Sequence[str],
        token: str,
        topic: str,
    ) -> list[Any]:
        """Return futures of each rank's part of the outputs, and its traffic.

        All other futures end here, so buffers are freed once no task needs them.
        """
        import dask

        def send(key: str, rank: int, function: Any, *arguments: Any) -> Any:
            return self.client.submit(
                function,
                *arguments,
                key=f"{token}-{key}",
                # a rank stays on its worker: no work stealing
                workers=[addresses[rank]],
                allow_other_workers=False,
                # the key is unique: Dask need not hash the arguments
                pure=False,
            )

        states = {}
        # blocks are part of the graph, so that Dask can send lost ones again
        with dask.config.set({LARGE_GRAPH: ANY_SIZE}):
            for rank in range(self.plan.processes):
                # copies, because the caller may change its arrays meanwhile
                blocks = cut_blocks(self.plan, operands, rank)
                key = f"begin-{rank}"
                states[rank] = send(key, rank, Buffers, self.semantics, blocks)
        for number, phases in enumerate(self.phases):
            # all parcels are packed from the states before this phase
            arriving = dict.fromkeys(p for x in phases.values() for p in x.arriving)
            parcels = {}
            for k, p in enumerate(arriving):
                key, state = f"parcel-{number}-{k}", states[p.rank]
                parcels[p] = send(key, p.rank, _pack_parcel, state, p.pieces)
            for rank, phase in phases.items():
                key, event = f"phase-{rank}-{number}", (topic, rank, number)
                arguments = states[rank], phase.steps, event
                received = [parcels[p] for p in phase.arriving]
                states[rank] = send(key, rank, _run_phase, *arguments, *received)
        outputs = tuple(self.plan.outputs)
        return [
            send(f"result-{rank}", rank, _finish_rank, state, outputs)
            for rank, state in sorted(states.items())
        ]

    def _finish(self, run: _Run) -> Outcome:
        """Wait for a run.

        Raises:
            PlanError: with the rule ``workers``, if a worker is gone for good.
        """
        try:
            self._wait(run)
            ranks = self.client.gather(list(run.results))
        finally:
            # results of a failed run must not stay on workers
            for future in run.results:
                future.release()
            if run.topic:
                self.client.unsubscribe_topic(run.topic)
        if run.listener is not None:
            run.listener.end()

        def collect(output: str) -> Any:
            return assemble_result(
                self.plan,
                output,
                lambda rank, box: ranks[rank][0][output],
                self.semantics.dtype(output),
            )

        results = {output: collect(output) for output in self.plan.outputs}
        traffic = [record for _, record in ranks]
        wall_s = perf_counter() - run.start
        n_lost = self._count_lost() - run.n_lost_before
        report = build_report(self.plan, "dask", traffic, wall_s, n_lost)
        return Outcome(results, report)

    def fleet(self) -> Fleet:
        """Return the fleet of the workers that serve as ranks."""
        addresses = [address for _, address in self._list_workers()]
        locations = self.client.run(locate_rank, workers=addresses)
        return build_fleet("dask", [locations[address] for address in addresses])

    def _list_all_workers(self) -> Mapping[str, Any]:
        """Return the scheduler's data on each worker, by its address.

        ``scheduler_info`` would return the client's copy, which is empty at times.
        """
        identity = self.client.scheduler.identity
        workers: Mapping[str, Any] = self.client.sync(identity, n_workers=-1)["workers"]
        return workers

    def _list_workers(self) -> list[tuple[Any, str]]:
        """Return name and address of the worker of each rank.

        Raises:
            PlanError: if there are too few, or if blocks do not fit into one.
        """
        info = self._list_all_workers()
        workers = sorted(
            (str(worker["name"]), worker["name"], address)
            for address, worker in info.items()
        )
        n = self.plan.processes
        if len(workers) < n:
            raise PlanError(
                f"the plan is for {format_count(n, 'process')}; the "
                f"cluster has {format_count(len(workers), 'worker')}",
                rules=("workers",),
            )
        for _, _, address in workers[:n]:
            if info[address]["memory_limit"]:
                check_memory(self.plan, info[address]["memory_limit"])
        return [(name, address) for _, name, address in workers[:n]]

    def _count_lost(self) -> int:
        """Return the number of workers that were ever lost."""
        n_lost: int = self.client.run_on_scheduler(count_lost)
        return n_lost

    def _wait(self, run: _Run) -> None:
        from distributed import KilledWorker, wait

        missing_since: float | None = None
        while missing_since is None or monotonic() - missing_since < RETURN_LIMIT_S:
            try:
                # with a time limit, because Dask waits forever for a lost worker
                wait(list(run.results), timeout=CHECK_INTERVAL_S)
            except TimeoutError:
                is_missing = bool(self._list_missing(run))
                # a worker that returns starts the limit again
                missing_since = (missing_since or monotonic()) if is_missing else None
            else:
                break
        else:
            self.client.cancel(list(run.results))
            raise PlanError(
                f"worker {self._list_missing(run)} was lost and did not return within "
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

    def _list_missing(self, run: _Run) -> str:
        """Return the names of workers that are missing now."""
        present = {worker["name"] for worker in self._list_all_workers().values()}
        return ", ".join(sorted(str(name) for name in set(run.names) - present))


def _run_phase(
    previous: Buffers,
    steps: Sequence[tuple[Step, Origin | None]],
    event: tuple[str, int, int],
    *parcels: Sequence[NDArray[Any]],
) -> Buffers:
    """Run the steps of a phase without modifying the buffers of the previous one."""
    buffers = previous.fork()
    for step, origin in steps:
        if isinstance(step, Transfer) and origin is not None:
            value = parcels[origin[0]][origin[1]]
            buffers.receive(step, value)
        else:
            buffers.do(step)
    topic, *phase = event
    if topic:
        from distributed import get_worker

        get_worker().log_event(topic, tuple(phase))
    return buffers


def _pack_parcel(
    buffers: Buffers, pieces: Sequence[tuple[str, Box]]
) -> tuple[NDArray[Any], ...]:
    # a view would keep the whole buffer in memory until the parcel arrives
    return tuple(buffers.view(name, box).copy() for name, box in pieces)


def _finish_rank(
    buffers: Buffers, outputs: Sequence[str]
) -> tuple[dict[str, Stored], Traffic]:
    results = {
        name: buffers.arrays[name][0] for name in outputs if name in buffers.arrays
    }
    return results, buffers.traffic


WATCH = "feinsum-watch"
"""Name of the scheduler plugin."""


def count_lost(dask_scheduler: Any) -> int:
    """Return the number of workers that a watched scheduler has lost so far."""
    n_lost: int = dask_scheduler.plugins[WATCH].n_lost
    return n_lost


def make_worker_watch() -> Any:
    """Return a scheduler plugin that counts lost workers.

    Tasks of a lost worker move to the worker restarted under its name, which may have
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
            self.names = {
                address: state.name for address, state in scheduler.workers.items()
            }

        def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
            # a restart of a worker is a loss, too: its data are gone
            self.n_lost += 1
            if worker in self.names:
                self.gone[self.names.pop(worker)] = worker

        def add_worker(self, scheduler: Any, worker: str) -> None:
            name = scheduler.workers[worker].name
            self.names[worker] = name
            lost_address = self.gone.pop(name, worker)
            for task in scheduler.tasks.values():
                # else these tasks would wait for an address that never returns
                if task.worker_restrictions == {lost_address}:
                    task.worker_restrictions = {worker}

    return Watch()
