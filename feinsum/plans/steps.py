"""Steps: what every rank does, one after the other.

A buffer is a box of a tensor under a name of its own. Every engine interprets the same
lists, and all counts are sums over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from feinsum.plans.boxes import Box

__all__ = [
    "Free",
    "Leaf",
    "Make",
    "Receive",
    "Reduce",
    "Send",
    "Step",
    "Steps",
    "Take",
]


@dataclass(frozen=True, slots=True)
class Make:
    """A buffer for a box; zeros if something is added to it."""

    buffer: str
    box: Box
    is_zero: bool


@dataclass(frozen=True, slots=True)
class Take:
    """A box is copied, or added, from one buffer of this rank to another."""

    source: str
    target: str
    box: Box
    is_added: bool


@dataclass(frozen=True, slots=True)
class Send:
    """A box of a buffer goes to another rank."""

    rank: int
    source: str
    box: Box
    tag: int


@dataclass(frozen=True, slots=True)
class Receive:
    """A box comes from another rank into a buffer."""

    rank: int
    target: str
    box: Box
    tag: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """A box comes from another rank and is added to a buffer."""

    rank: int
    target: str
    box: Box
    tag: int


@dataclass(frozen=True, slots=True)
class Leaf:
    """The einsum of a group, of boxes of buffers, is added to a buffer.

    Attributes:
        is_first: nothing was written there before.
    """

    group: int
    sources: tuple[tuple[str, Box], ...]
    target: str
    box: Box
    n_points: int
    is_first: bool


@dataclass(frozen=True, slots=True)
class Free:
    """A buffer is not needed any more."""

    buffer: str


Step: TypeAlias = Make | Take | Send | Receive | Reduce | Leaf | Free

Steps: TypeAlias = tuple[tuple[Step, ...], ...]
"""One list for every rank."""
