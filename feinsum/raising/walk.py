"""Walks that come by equal parts of an expression as often as they stand there."""

from __future__ import annotations

from typing import Any

from loopy.symbolic import WalkMapper
from pymbolic.mapper import Mapper

__all__ = ["EveryNode"]


class EveryNode(WalkMapper):  # type: ignore[misc]
    """A walk through all nodes. Loopy's ``UncachedWalkMapper`` remembers, in spite of
    its name, and visits the two ``x`` of ``x*x`` once.
    """

    def __call__(self, expr: Any, /) -> None:
        Mapper.__call__(self, expr)

    rec = __call__
