"""Splitting loops.

Source: Loopy's ``split_iname``.
"""

from __future__ import annotations

from dataclasses import dataclass

import loopy as lp

from feinsum.transforms.primitives.schedule import Schedule

__all__ = ["Block", "even_block", "split"]


@dataclass(frozen=True)
class Block:
    """The loops of an index that was split: ``size*outer + inner``."""

    outer: str
    inner: str
    size: int

    def position(self, inner: str | None = None) -> str:
        """The index in isl's syntax, with another inner iname if given."""
        return f"{self.size}*{self.outer} + {inner or self.inner}"


def split(
    schedule: Schedule,
    iname: str,
    size: int,
    *,
    outer_tag: str | None = None,
    inner_tag: str | None = None,
) -> tuple[Schedule, Block]:
    """Split a loop into blocks of ``size`` iterations.

    Rewrite::

        for i < N:  f(i)

        for i_outer < ceil(N/size):
            for i_inner < min(size, N - size*i_outer):  f(size*i_outer + i_inner)
    """
    block = Block(
        schedule.fresh(f"{iname}_outer"), schedule.fresh(f"{iname}_inner"), size
    )
    return schedule.with_unit(
        lp.split_iname(
            schedule.t_unit,
            iname,
            size,
            outer_iname=block.outer,
            inner_iname=block.inner,
            outer_tag=outer_tag,
            inner_tag=inner_tag,
        )
    ), block


def even_block(extent: int, target: int) -> int:
    """The block length nearest to ``target`` that divides ``extent``, if any.

    Only lengths within a factor of two of ``target`` count; ``target`` itself is
    the answer where none of them divides.

    >>> even_block(20, 8), even_block(3, 8), even_block(37, 8)
    (10, 3, 8)
    """
    if extent <= target:
        return extent
    near = range(max(1, target // 2), 2 * target + 1)
    divisors = [size for size in near if extent % size == 0]
    return min(divisors, key=lambda size: (abs(size - target), -size), default=target)
