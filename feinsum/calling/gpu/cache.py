"""The cache of calls on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from feinsum.calling.gpu.building import build, library_call, view_call
from feinsum.calling.gpu.prepared import GpuCall, result_bytes
from feinsum.calling.gpu.site import Site, read
from feinsum.calling.kernel_cache import Calls
from feinsum.calling.options import CallOptions
from feinsum.calling.reading import Reading, first_uses
from feinsum.memory import remembered

MOST_BYTES = 1 << 30
"""Of operands and result, for which a library may need several times as much."""


@dataclass(eq=False)
class CachedCalls:
    """The state kept for calls of one kind.

    Attributes:
        first: answers the first one, sooner than a kernel is built.
        made: answers the others.
    """

    reading: Reading
    first: GpuCall | None
    made: GpuCall | None = None
    _lock: Lock = field(default_factory=Lock, repr=False)

    def next(self, site: Site) -> GpuCall:
        """What answers the next call; threads wait while one of them builds it."""
        if self.made is not None:
            return self.made
        with self._lock:
            first, self.first = self.first, None
            if first is not None:
                return first
            if self.made is None:
                self.made = build(self.reading, site)
            return self.made


def cached_calls(subscripts: str, operands: Sequence[Any], site: Site) -> CachedCalls:
    """What is kept for such arrays.

    Args:
        operands: as they were given: one object given twice is one operand.

    Raises:
        InvalidEinsumError: if notation, shapes or dtypes do not fit.
    """
    first = first_uses(operands)
    session = site.opened.session

    def make() -> CachedCalls:
        reading = read(subscripts, site.arrays, first)
        is_usual = site.options == CallOptions(site.options.database)
        n_bytes = result_bytes(reading) + sum(array.nbytes for array in site.arrays)
        has_view = view_call(reading, site.opened) is not None
        is_first = is_usual and not has_view and n_bytes <= MOST_BYTES
        library = library_call(reading, site.opened) if is_first else None
        return CachedCalls(reading, library)

    key = str(subscripts), first, site.where, *map(session.form, site.arrays)
    found: CachedCalls = remembered(Calls).gpu.get(key, make)
    return found
