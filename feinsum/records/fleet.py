"""Fleets: the processes that ran a plan, and what they ran on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from constantdict import constantdict
from pydantic import Field

from feinsum.errors import InvalidRecordError
from feinsum.records.document import STRICT, Document
from feinsum.records.environment import Device

__all__ = ["EngineName", "Fleet", "Host", "Links"]

EngineName = Literal["local", "mpi", "dask"]

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Links:
    """What passes between two processes takes a time for each message and element.

    Attributes:
        message_s: seconds of a message, however short.
        element_s: seconds of an element.
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
        ranks: processes that ran there.
        cores: that they could use.
    """

    __pydantic_config__ = STRICT

    ranks: Count
    cores: Count


@dataclass(frozen=True)
class Fleet(Document):
    """The ranks that ran a plan.

    Attributes:
        engine: what ran them; ``local`` is one process in which they take turns.
        hosts: in the order of their first ranks.
        threads: of every rank.
        device: the processor of all hosts.
        software: package name to version.
        links: measured between two ranks, if they were.

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
        """Of all hosts."""
        return sum(host.ranks for host in self.hosts)

    @property
    def load(self) -> float:
        """Threads of all ranks over cores, on the host with the most."""
        return max(host.ranks * self.threads / host.cores for host in self.hosts)

    @property
    def is_timed(self) -> bool:
        """Whether seconds say anything: ranks at the same time, each on its cores.

        Ranks that share a core wait for each other in turns, which says nothing of
        the plan.
        """
        return self.engine != "local" and self.load <= 1

    def is_like(self, other: Fleet) -> bool:
        """Whether seconds of one hold for the other: the same machines, as loaded."""
        ours = self.engine, self.hosts, self.threads
        theirs = other.engine, other.hosts, other.threads
        return ours == theirs and self.device.is_surely(other.device)

    def __str__(self) -> str:
        n = len(self.hosts)
        where = f"{n} host{'s' * (n > 1)}, load {self.load:g}, {self.device}"
        return f"{self.ranks} ranks ({self.engine}) on {where}"
