"""Engines that run plans, prepared once for many inputs, and the fleets they run on.

====== ======================= ===============================================
engine where ranks are         what it is for
====== ======================= ===============================================
local  this process, in turns  the reference, and exact counts; no times
mpi    ranks of a communicator every rank calls it; rank 0 has whole arrays
dask   workers of a client     called by one process; lost workers are replaced
====== ======================= ===============================================
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.counts import RunReport, Traffic, report_of
from feinsum.distributed.local import (
    LeafFunction,
    Progress,
    Semantics,
    check_memory,
    free_bytes,
    named_outputs,
    run_here,
)
from feinsum.distributed.mpi import gather, run_on_ranks, scatter, world, wrong_size
from feinsum.distributed.plans import Plan
from feinsum.errors import PlanError
from feinsum.records import Device, EngineName, Fleet, Host, Links

ENGINES = ("local", "mpi", "dask")
"""The engines that run plans: this process, MPI ranks, Dask workers."""

ROUND_TRIPS = 21
"""Round trips of a message; their median counts."""

LONG_MESSAGE = 1 << 17
"""Elements of the long message: 1 MB, as blocks of plans may have."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        results: every output by name; empty on all MPI ranks except the first.
        report: what moved, and how long it took.
    """

    results: Mapping[str, NDArray[Any]]
    report: RunReport


Reader = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From the arrays of a run to the operands of its plan."""


class _Engine(Protocol):
    """Runs one plan any number of times."""

    def submit(
        self, arrays: Mapping[str, Any] | None, progress: Progress | None
    ) -> Any:
        """Begin a run; its arguments are not read again."""

    def outcome(self, run: Any) -> Outcome:
        """Wait for a run."""

    def fleet(self) -> Fleet:
        """Describe the fleet that runs it."""


class Prepared:
    """A plan on an engine, with all one-time work done.

    >>> import feinsum, numpy as np
    >>> A, x = feinsum.array("A", (4, 4)), feinsum.array("x", 4)
    >>> ready = feinsum.plan(feinsum.einsum("ij,j->i", A, x), processes=2).prepare()
    >>> several = ({"A": np.eye(4), "x": np.full(4, k)} for k in (1.0, 2.0))
    >>> [outcome.results["out"].sum() for outcome in ready.stream(several)]
    [np.float64(4.0), np.float64(8.0)]
    """

    def __init__(self, plan: Plan, engine: _Engine, n_ahead: int) -> None:
        self.plan = plan
        self._engine, self._n_ahead = engine, n_ahead

    def run(
        self, arrays: Mapping[str, Any] | None, progress: Progress | None = None
    ) -> Outcome:
        """Compute the outputs for whole arrays by name.

        Args:
            arrays: on MPI ranks but the first they are ignored, and may be None.
            progress: called with the number of finished leaves, and the total.

        Raises:
            PlanError: if an array is missing or has the wrong shape or dtype, if blocks
                are too large, or if the engine cannot continue; on all ranks of MPI.
        """
        return self._engine.outcome(self._engine.submit(arrays, progress))

    def fleet(self) -> Fleet:
        """Describe the fleet of the engine; collective on MPI ranks.

        Raises:
            PlanError: with the rule ``fleet``, if ranks differ.
        """
        return self._engine.fleet()

    def stream(self, inputs: Iterable[Mapping[str, Any] | None]) -> Iterator[Outcome]:
        """Yield the outcome for each of many inputs, in order.

        Engines with their own workers begin the next run before the last one has ended.
        Arrays may be reused once the next input is requested.
        """
        running: list[Any] = []
        for arrays in inputs:
            # one run ahead hides the latency of the scheduler, at twice the memory
            running.append(self._engine.submit(arrays, None))
            if len(running) > self._n_ahead:
                yield self._engine.outcome(running.pop(0))
        for run in running:
            yield self._engine.outcome(run)


def prepare(
    plan: Plan,
    engine: str = "local",
    on: Any = None,
    *,
    leaf: LeafFunction | None = None,
    meaning: Semantics | None = None,
    read: Reader = dict,
) -> Prepared:
    """Prepare a plan to run on any number of inputs.

    Args:
        engine: one of :data:`ENGINES`.
        on: an mpi4py communicator for ``mpi``, a Dask client for ``dask``.
        leaf: function that computes a block; by default :func:`feinsum.call_einsum`,
            and numpy for ``local``.
        meaning: computes statements that are not einsums.
        read: from the arrays of a run to the operands of the plan, where they are;
            raises a FeinsumError for arrays that do not fit.

    Raises:
        PlanError: with the rule ``engine``, if there is no such engine.
    """
    if engine == "dask":
        from feinsum.distributed.on_dask import DaskEngine

        of_dask = _Reading(DaskEngine(plan, on, leaf, meaning), read)
        return Prepared(plan, of_dask, n_ahead=1)
    if engine == "mpi":
        return Prepared(plan, _MpiEngine(plan, on, leaf, meaning, read), n_ahead=0)
    if engine == "local":
        if on is not None:
            raise PlanError(
                f"the engine local runs in this process, not on {on!r:.80}; use the "
                "engine mpi or dask",
                rules=("engine",),
            )
        of_this_process = _Reading(_LocalEngine(plan, leaf, meaning), read)
        return Prepared(plan, of_this_process, n_ahead=0)
    raise PlanError(
        f"there is no engine {engine!r}; expected {', '.join(ENGINES)}",
        rules=("engine",),
    )


class _Reading:
    """An engine whose arrays are in this process, where they are checked."""

    def __init__(self, engine: Any, read: Reader) -> None:
        self.engine, self.read = engine, read
        self.outcome, self.fleet = engine.outcome, engine.fleet

    def submit(
        self, arrays: Mapping[str, Any] | None, progress: Progress | None
    ) -> Any:
        return self.engine.submit(self.read(arrays or {}), progress)


class _LocalEngine:
    """All ranks in this process."""

    def __init__(
        self, plan: Plan, leaf: LeafFunction | None, meaning: Semantics | None
    ) -> None:
        self.plan, self.leaf, self.meaning = plan, leaf, meaning

    def submit(self, arrays: Mapping[str, Any], progress: Progress | None) -> Outcome:
        start = perf_counter()
        # all ranks share the memory of this process
        check_memory(self.plan, free_bytes(), n_ranks=self.plan.processes)
        traffic = [Traffic() for _ in range(self.plan.processes)]
        results = run_here(
            self.plan,
            arrays,
            leaf=self.leaf,
            meaning=self.meaning,
            traffic=traffic,
            progress=progress,
        )
        report = report_of(self.plan, "local", traffic, perf_counter() - start)
        return Outcome(named_outputs(self.plan, results), report)

    def outcome(self, run: Outcome) -> Outcome:
        return run

    def fleet(self) -> Fleet:
        return fleet_here(self.plan.processes, "local")


class _MpiEngine:
    """MPI ranks; the first one has the arrays and gets the results."""

    def __init__(
        self,
        plan: Plan,
        comm: Any,
        leaf: LeafFunction | None,
        meaning: Semantics | None,
        read: Reader,
    ) -> None:
        self.plan, self.leaf, self.meaning, self.read = plan, leaf, meaning, read
        self.comm = world() if comm is None else comm
        refusal = wrong_size(plan, self.comm)
        if refusal is not None:
            raise refusal

    def submit(
        self, arrays: Mapping[str, Any] | None, progress: Progress | None
    ) -> Outcome:
        plan, comm, start = self.plan, self.comm, perf_counter()
        blocks, traffic = scatter(plan, arrays, comm, self.read), Traffic()
        parts = run_on_ranks(
            plan,
            blocks,
            comm,
            leaf=self.leaf,
            meaning=self.meaning,
            traffic=traffic,
            progress=progress if comm.Get_rank() == 0 else None,
        )
        whole = gather(plan, parts, comm, self.meaning)
        results = {} if comm.Get_rank() else named_outputs(plan, whole)
        # every rank reports all, so that no rank is special to the caller
        of_ranks = comm.allgather(traffic)
        report = report_of(plan, "mpi", of_ranks, perf_counter() - start)
        return Outcome(results, report)

    def outcome(self, run: Outcome) -> Outcome:
        return run

    def fleet(self) -> Fleet:
        return fleet_on_ranks(self.comm)


@dataclass(frozen=True)
class RankLocation:
    """Where one rank runs.

    Attributes:
        host: the name of its machine, which is not part of facts.
        cores: numbers of the cores that the rank may use.
        threads: number of threads of its leaves.
    """

    host: str
    cores: frozenset[int]
    threads: int
    device: Device


def locate_rank() -> RankLocation:
    """Describe where this process runs."""
    from feinsum.targets.host.device import host_device
    from feinsum.threads import n_threads

    # launchers pin ranks: not all cores of the host are theirs
    cores = frozenset(os.sched_getaffinity(0))
    device = host_device(os.cpu_count() or len(cores))
    return RankLocation(socket.gethostname(), cores, n_threads(), device)


def fleet_of(engine: EngineName, locations: Iterable[RankLocation]) -> Fleet:
    """Return the fleet of ranks that run at these locations.

    Raises:
        PlanError: with the rule ``fleet``, if ranks differ in processor or number of
            threads: their timings would apply to no other fleet.

    >>> cpu = Device("p", "n", "v", "cpu", "x86_64", 2)
    >>> location = RankLocation("a", frozenset({0, 1}), 1, cpu)
    >>> fleet_of("mpi", [location, location]).hosts
    (Host(ranks=2, cores=2),)
    """
    by_host: dict[str, list[RankLocation]] = {}
    kinds = set()
    for location in locations:
        by_host.setdefault(location.host, []).append(location)
        # the name of the host is no property of the hardware
        kinds.add((location.threads, location.device))
    if len(kinds) != 1:
        raise PlanError(
            f"the ranks have {len(kinds)} kinds of processors or numbers of threads; "
            "a fact needs identical ranks",
            rules=("fleet",),
        )
    ((threads, device),) = kinds
    hosts = tuple(
        Host(len(ranks), len(frozenset().union(*(rank.cores for rank in ranks))))
        for ranks in by_host.values()
    )
    software = {"feinsum": version("feinsum"), "numpy": np.__version__}
    return Fleet(engine, hosts, threads, device, software)


def fleet_here(processes: int, engine: EngineName = "mpi", threads: int = 1) -> Fleet:
    """Return the fleet of processes on this machine."""
    location = replace(locate_rank(), threads=threads)
    return fleet_of(engine, [location] * processes)


def fleet_on_ranks(comm: Any) -> Fleet:
    """Return the fleet of an mpi4py communicator, with its links; collective.

    Raises:
        PlanError: see :func:`fleet_of`.
    """
    from mpi4py import MPI

    fleet = fleet_of("mpi", comm.allgather(locate_rank()))
    library = " ".join(MPI.Get_library_version().strip("\0").split())[:80]
    links = links_of(comm) if fleet.is_timed else None
    return replace(fleet, software={**fleet.software, "mpi": library}, links=links)


def links_of(comm: Any) -> Links | None:
    """Time a message and an element between the first and the last rank.

    Collective; all ranks get the same result. None for a single rank.
    """
    if comm.Get_size() == 1:
        return None
    # latency and bandwidth, from two lengths; ranks 0 and n-1 are furthest apart
    short_s, long_s = (_message_s(comm, n) for n in (1, LONG_MESSAGE))
    measured = Links(short_s, max(0.0, long_s - short_s) / LONG_MESSAGE)
    # rank 0's clock decides: facts of all ranks are the same document
    links: Links = comm.bcast(measured)
    return links


def _message_s(comm: Any, n_elements: int) -> float:
    """Return the seconds of one message from the first rank to the last one."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    block = np.zeros(n_elements)
    comm.Barrier()
    times = []
    for _ in range(ROUND_TRIPS):
        start = perf_counter()
        if rank == 0:
            comm.Send(block, last)
            comm.Recv(block, last)
        elif rank == last:
            comm.Recv(block, 0)
            comm.Send(block, 0)
        times.append(perf_counter() - start)
    comm.Barrier()
    return median(times) / 2
