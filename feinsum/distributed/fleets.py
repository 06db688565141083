"""Fleets: the hosts, cores and links of the ranks that run a plan.

Two ranks on host ``a`` with a core each, and three on host ``b`` that share two::

    Fleet(hosts=(Host(ranks=2, cores=2), Host(ranks=3, cores=2)), ...)

A fleet with a core for each thread is timed. Other times are not meaningful, because
ranks wait for each other's cores.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from feinsum.errors import PlanError
from feinsum.records import Device, EngineName, Fleet, Host, Links

ROUND_TRIPS = 21
"""Number of round trips of a message, of which the median is taken."""

LONG_MESSAGE = 1 << 17
"""Elements of the long message: 1 MB, as blocks of plans may have."""


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
    from feinsum.targets.host.device import describe_host
    from feinsum.threads import get_n_threads

    # launchers pin ranks: not all cores of the host are theirs
    cores = frozenset(os.sched_getaffinity(0))
    device = describe_host(os.cpu_count() or len(cores))
    return RankLocation(socket.gethostname(), cores, get_n_threads(), device)


def build_fleet(engine: EngineName, locations: Iterable[RankLocation]) -> Fleet:
    """Build the fleet of ranks that run at these locations.

    Raises:
        PlanError: with the rule ``fleet``, if ranks differ in processor or number of
            threads: their timings would apply to no other fleet.

    >>> cpu = Device("p", "n", "v", "cpu", "x86_64", 2)
    >>> location = RankLocation("a", frozenset({0, 1}), 1, cpu)
    >>> build_fleet("mpi", [location, location]).hosts
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


def describe_fleet_here(processes: int, engine: EngineName = "mpi") -> Fleet:
    """Describe a fleet of processes on this machine, with one thread each."""
    location = replace(locate_rank(), threads=1)
    return build_fleet(engine, [location] * processes)


def describe_fleet_on_ranks(comm: Any) -> Fleet:
    """Describe the fleet of an mpi4py communicator, with its links; collective.

    Raises:
        PlanError: see :func:`build_fleet`.
    """
    from mpi4py import MPI

    fleet = build_fleet("mpi", comm.allgather(locate_rank()))
    library = " ".join(MPI.Get_library_version().strip("\0").split())[:80]
    links = measure_links(comm) if fleet.is_timed else None
    return replace(fleet, software={**fleet.software, "mpi": library}, links=links)


def measure_links(comm: Any) -> Links | None:
    """Time a message and an element between the first and the last rank.

    Collective; all ranks get the same result. None for a single rank.
    """
    if comm.Get_size() == 1:
        return None
    # latency and bandwidth, from two lengths; ranks 0 and n-1 are furthest apart
    short_s, long_s = (_time_message(comm, n) for n in (1, LONG_MESSAGE))
    measured = Links(short_s, max(0.0, long_s - short_s) / LONG_MESSAGE)
    # rank 0's clock decides: facts of all ranks are the same document
    links: Links = comm.bcast(measured)
    return links


def _time_message(comm: Any, n_elements: int) -> float:
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
