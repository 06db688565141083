"""Describing fleets: the ranks of a communicator, or processes on this machine."""

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

ROUNDS = 21
"""Round trips of a message; their median counts."""

ELEMENTS = 1 << 17
"""Length of the long message: 1 MB, as blocks of plans may have."""


@dataclass(frozen=True)
class Place:
    """Where one rank is.

    Attributes:
        host: the name of its machine, which is not part of facts.
        cores: number of cores that the rank may use.
        threads: number of threads of its leaves.
    """

    host: str
    cores: frozenset[int]
    threads: int
    device: Device


def place() -> Place:
    """Where this process is."""
    from feinsum.targets.host.device import host_device
    from feinsum.threads import n_threads

    cores = frozenset(os.sched_getaffinity(0))
    device = host_device(os.cpu_count() or len(cores))
    return Place(socket.gethostname(), cores, n_threads(), device)


def fleet_of(engine: EngineName, places: Iterable[Place]) -> Fleet:
    """The fleet of ranks at given places.

    Raises:
        PlanError: with the rule ``fleet``, if ranks differ in processor or number of
            threads: their timings would apply to no other fleet.

    >>> cpu = Device("p", "n", "v", "cpu", "x86_64", 2)
    >>> here = Place("a", frozenset({0, 1}), 1, cpu)
    >>> fleet_of("mpi", [here, here]).hosts
    (Host(ranks=2, cores=2),)
    """
    by_host: dict[str, list[Place]] = {}
    kinds = set()
    for one in places:
        by_host.setdefault(one.host, []).append(one)
        kinds.add((one.threads, one.device))
    if len(kinds) != 1:
        raise PlanError(
            f"the ranks have {len(kinds)} kinds of processors or numbers of threads; "
            "a fact needs identical ranks",
            rules=("fleet",),
        )
    ((threads, device),) = kinds
    hosts = tuple(
        Host(len(here), len(frozenset().union(*(one.cores for one in here))))
        for here in by_host.values()
    )
    known = {"feinsum": version("feinsum"), "numpy": np.__version__}
    return Fleet(engine, hosts, threads, device, known)


def fleet_here(processes: int, engine: EngineName = "mpi", threads: int = 1) -> Fleet:
    """The fleet of processes on this machine."""
    here = place()
    return fleet_of(engine, [replace(here, threads=threads)] * processes)


def fleet_on_ranks(comm: Any) -> Fleet:
    """The fleet of an mpi4py communicator, with its links; collective.

    Raises:
        PlanError: see :func:`fleet_of`.
    """
    from mpi4py import MPI

    fleet = fleet_of("mpi", comm.allgather(place()))
    library = " ".join(MPI.Get_library_version().strip("\0").split())[:80]
    links = links_of(comm) if fleet.is_timed else None
    return replace(fleet, software={**fleet.software, "mpi": library}, links=links)


def links_of(comm: Any) -> Links | None:
    """The time of a message and of an element between the first and the last rank.

    Collective; all ranks get the same result. None for a single rank.
    """
    if comm.Get_size() == 1:
        return None
    short_s, long_s = (_passing_s(comm, n) for n in (1, ELEMENTS))
    found = Links(short_s, max(0.0, long_s - short_s) / ELEMENTS)
    links: Links = comm.bcast(found)
    return links


def _passing_s(comm: Any, n_elements: int) -> float:
    """Seconds of one message from the first rank to the last one."""
    rank, last = comm.Get_rank(), comm.Get_size() - 1
    block = np.zeros(n_elements)
    comm.Barrier()
    times = []
    for _ in range(ROUNDS):
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
