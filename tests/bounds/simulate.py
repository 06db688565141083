"""Memories of a size that schedules run in: what is moved, counted item by item."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf


@dataclass(frozen=True)
class Touch:
    """An access of an item.

    Attributes:
        is_written: its value changes, so that it must be stored before it is forgotten.
        is_input: it is in the slow memory to begin with.
        is_result: it must be there in the end.
    """

    item: Hashable
    size: int = 1
    is_written: bool = False
    is_input: bool = True
    is_result: bool = False


Step = tuple[Touch, ...]
"""What must be in the fast memory at one time."""


def lru_loads(steps: Iterable[Step], capacity: int) -> int:
    """Entries that are read by a memory that forgets what was unused for longest.

    Results are read at their first access, as if something were added to them.
    """
    resident: OrderedDict[Hashable, int] = OrderedDict()
    used = loads = 0
    for step in steps:
        for touch in step:
            if touch.item in resident:
                resident.move_to_end(touch.item)
                continue
            loads += touch.size
            used += touch.size
            resident[touch.item] = touch.size
            while used > capacity:
                used -= resident.popitem(last=False)[1]
    return loads


def least_moved(steps: Sequence[Step], capacity: int) -> int:
    """Entries read and stored by a memory that forgets what is needed last.

    What was never stored need not be read, what is never needed again need not be
    stored, and results are stored once more at the end if they changed.
    """
    uses = defaultdict(list)
    for at, step in enumerate(steps):
        for touch in step:
            uses[touch.item].append(at)
    results = {touch.item for step in steps for touch in step if touch.is_result}
    places = dict.fromkeys(uses, 0)
    resident: dict[Hashable, bool] = {}
    stored: set[Hashable] = set()
    moved = 0

    def next_use(item: Hashable) -> float:
        at = places[item]
        return uses[item][at] if at < len(uses[item]) else inf

    for step in steps:
        needed = {touch.item for touch in step}
        for touch in step:
            if touch.item not in resident:
                if touch.is_input or touch.item in stored:
                    moved += 1
                resident[touch.item] = False
        for item in needed:
            places[item] += 1
        while len(resident) > capacity:
            victim = max((i for i in resident if i not in needed), key=next_use)
            is_changed = resident.pop(victim)
            if is_changed and (next_use(victim) < inf or victim in results):
                moved += 1
                stored.add(victim)
        for touch in step:
            if touch.is_written:
                resident[touch.item] = True
                stored.discard(touch.item)
    return moved + len(results - stored)


def nest(
    accesses: Sequence[tuple[str, tuple[str, ...], str]],
    loops: Sequence[str],
    extents: Mapping[str, int],
    tiles: Mapping[str, int],
) -> Iterator[Step]:
    """A tiled nest of loops: all tiles in order, then the points of each.

    Args:
        accesses: array, its indices, and its kind: ``input``, ``product``, ``made`` (a
            product that this nest makes) or ``result``.
        loops: indices, the outermost first.
    """
    starts = [range(0, extents[i], tiles[i]) for i in loops]
    for origin in product(*starts):
        ranges = [
            range(start, min(start + tiles[i], extents[i]))
            for start, i in zip(origin, loops, strict=True)
        ]
        for point in product(*ranges):
            at = dict(zip(loops, point, strict=True))
            yield tuple(
                Touch(
                    (name, *(at[i] for i in term)),
                    1,
                    kind in ("made", "result"),
                    kind == "input",
                    kind == "result",
                )
                for name, term, kind in dict.fromkeys(accesses)
            )
