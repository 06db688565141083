"""Lower bounds of the costs of facts, in the commands that show them."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feinsum.bounds import Bound
    from feinsum.records import Match, Store

WIDTH = 80


def bound_of_first(match: Match, store: Store) -> Bound | None:
    """The bound of the best fact, on its own device; None if there is none."""
    from feinsum.bounds import bound_of_record

    if not match.ranking:
        return None
    record = match.ranking[0]
    return bound_of_record(record, store.peaks(record.environment.device.id))


def least_text(least: Bound, median_s: float) -> str:
    """A mark for every level: its least time, or its bytes where no time is known.

    >>> from feinsum.bounds import MemoryLevel, bound_at
    >>> from feinsum.ir import array, einsum
    >>> levels = [MemoryLevel("L1", 1000), MemoryLevel("DRAM", None, 1, 1e9)]
    >>> copied = einsum("ij->ji", array("A", (1000, 1000)))
    >>> least_text(bound_at(copied, {}, levels), 0.032)
    'at least: DRAM 16 ms (50%)'
    """
    from feinsum.bounds import shares

    reached = shares(least, median_s)
    marks = [
        f"{one.level.name} {one.n_bytes * 1e-6:.4g} MB"
        if one.seconds is None
        else f"{one.level.name} {one.seconds * 1e3:.4g} ms "
        f"({reached[one.level.name]:.0%})"
        for one in least.levels
    ]
    if least.operations_s is not None:
        time_s = least.operations_s
        marks.append(f"arithmetic {time_s * 1e3:.4g} ms ({time_s / median_s:.0%})")
    return textwrap.fill(f"at least: {', '.join(marks)}", WIDTH)
