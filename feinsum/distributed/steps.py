"""Steps: what every rank does, in order.

A buffer is a named box of a tensor. Every engine interprets the same lists, and all
counts are sums over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from feinsum.distributed.boxes import Box


@dataclass(frozen=True, slots=True)
class Make:
    """Allocate a buffer for a box; zeros if something is added to it."""

    buffer: str
    box: Box
    is_zero: bool


@dataclass(frozen=True, slots=True)
class Take:
    """Copy or add a box from one buffer of this rank to another."""

    source: str
    target: str
    box: Box
    is_added: bool


@dataclass(frozen=True, slots=True)
class Send:
    """Send a box of a buffer to another rank."""

    rank: int
    source: str
    box: Box
    tag: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive a box from another rank into a buffer."""

    rank: int
    target: str
    box: Box
    tag: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Receive a box from another rank and add it to a buffer."""

    rank: int
    target: str
    box: Box
    tag: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """Add the einsum of a group, over boxes of buffers, to a buffer.

    Attributes:
        is_first: whether nothing was written there before.
    """

    group: int
    sources: tuple[tuple[str, Box], ...]
    target: str
    box: Box
    n_points: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class Free:
    """Free a buffer."""

    buffer: str


Step: TypeAlias = Make | Take | Send | Receive | Reduce | Leaf | Free

Steps: TypeAlias = tuple[tuple[Step, ...], ...]
"""One list for every rank."""
