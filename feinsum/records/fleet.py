"""Fleets: the processes that ran a plan, and their hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from constantdict import constantdict
from pydantic import Field

from feinsum.errors import InvalidRecordError
from feinsum.records.document import STRICT, Document
from feinsum.records.environment import Device
from feinsum.words import counted

EngineName = Literal["local", "mpi", "dask"]

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Links:
    """The time of messages and elements between two processes.

    Attributes:
        message_s: seconds per message, however short.
        element_s: seconds per element.
    """

    __pydantic_config__ = STRICT

    message_s: Seconds
    element_s: Seconds

    def __post_init__(self) -> None:
        if not (self.message_s >= 0 and self.element_s >= 0):
            raise InvalidRecordError(
                f"links with {self.message_s} s a message and {self.element_s} s an "
                "element; expected numbers from 0"
            )


@dataclass(frozen=True)
class Host:
    """A machine of a fleet, without its name.

    Attributes:
        ranks: number of processes on the host.
        cores: number of cores that they could use.
    """

    __pydantic_config__ = STRICT

    ranks: Count
    cores: Count


@dataclass(frozen=True)
class Fleet(Document):
    """The ranks that ran a plan.

    Attributes:
        engine: the engine; ``local`` is one process in which ranks take turns.
        hosts: in the order of their first ranks.
        threads: number of threads per rank.
        device: the processor of all hosts.
        software: package name to version.
        links: measured between two ranks, if at all.

    >>> cpu = Device("p", "n", "v", "cpu", "x86_64", 2)
    >>> Fleet("mpi", (Host(2, 2), Host(4, 2)), 1, cpu).load
    2.0
    """

    engine: EngineName
    hosts: Annotated[tuple[Host, ...], Field(min_length=1)]
    threads: Count
    device: Device
    software: Mapping[str, str] = field(default_factory=constantdict)
    links: Links | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "software", constantdict(self.software))

    @property
    def ranks(self) -> int:
        """Ranks of all hosts."""
        return sum(host.ranks for host in self.hosts)

    @property
    def load(self) -> float:
        """Threads of all ranks over cores, on the host with the most."""
        # the slowest host decides: all ranks wait for each other
        return max(host.ranks * self.threads / host.cores for host in self.hosts)

    @property
    def is_timed(self) -> bool:
        """Whether times are meaningful: all ranks run at once, each on its own cores.

        Ranks that share cores wait for each other, which says nothing about the plan.
        """
        return self.engine != "local" and self.load <= 1

    def is_like(self, other: Fleet) -> bool:
        """Whether times of one apply to the other: the same machines and load."""
        ours = self.engine, self.hosts, self.threads
        theirs = other.engine, other.hosts, other.threads
        return ours == theirs and self.device.is_surely(other.device)

    def __str__(self) -> str:
        n = len(self.hosts)
        hosts = f"{counted(n, 'host')}, load {self.load:g}, {self.device}"
        return f"{counted(self.ranks, 'rank')} ({self.engine}) on {hosts}"
