"""What calls of many sizes have together: their seconds, and kernels.

A program whose sizes change calls each size a few times. None of them alone would pay
for a kernel, and none runs often enough to time one. So seconds and times are those of
all calls with one structure, see :mod:`feinsum.calling.structure`::

    CallFamily     subscripts and dtypes; any sizes
       |  1:n      found without parsing, at a call's first run
    SharedKernel   the structure; long extents and strides may differ
       |  1:n      found once its calls have taken a while
    GeneralCall    shapes, strides, dtypes: an entry of the cache of calls
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

    from feinsum.calling.host.builder import BuildRequest, BuiltKernel
    from feinsum.select import PairedTimes

VARIES = 4
"""Extents of an index, among the calls of a family, with which it is run-time data."""
SHARE = 1 / 64
"""Of the time of calls that finding out their structures may take: for each size half a
millisecond, and more if the calls have filled the cache.
"""
SIZE_CLASS = 3
"""Bits: calls within a factor of eight in multiplications share their trial."""


@dataclass(eq=False)
class CallFamily:
    """Calls that differ in their shapes and strides only.

    Attributes:
        spent_s, n_calls: of all calls but those with a kernel that is faster.
        saved: the share of the time that a kernel saves, by the last trial.
        look_up_s, n_look_ups: of the structures that were found out.
    """

    spent_s: float = 0.0
    n_calls: int = 0
    saved: float = 0.0
    look_up_s: float = 0.0
    n_look_ups: int = 0
    _shared_s: float = field(default=0.0, repr=False)
    _extents: dict[str, set[int]] = field(default_factory=dict, repr=False)

    def add(self, seconds: float) -> None:
        """Count a call."""
        self.spent_s += seconds
        self.n_calls += 1

    def take_seconds(self) -> float:
        """Return the seconds since the last time, for the kernel of their structure.

        Most sizes are never looked at, and are taken to have the next one's structure.
        """
        seconds, self._shared_s = self.spent_s - self._shared_s, self.spent_s
        return seconds

    @property
    def may_look_up(self) -> bool:
        """Whether a kernel saves more than it takes to find out a structure, or all
        that was found out took little.
        """
        if self.look_up_s <= SHARE * self.spent_s:
            return True
        saved_s = self.saved * self.spent_s / self.n_calls
        return saved_s > self.look_up_s / self.n_look_ups

    def varying(self, request: BuildRequest) -> tuple[str, ...]:
        """Return the indices whose extents are short, and several in calls so far."""
        parsed = request.parsed
        for index, extent in parsed.extents.items():
            seen = self._extents.setdefault(index, set())
            if len(seen) < VARIES:
                seen.add(extent)
        literal = {*parsed.extents} - {*parsed.size_params}
        return tuple(sorted(i for i in literal if len(self._extents[i]) >= VARIES))


@dataclass(eq=False)
class SharedKernel:
    """The kernel of all calls with one structure, once there is one.

    Attributes:
        built: the kernel that another process has built, now or earlier.
        spent_s: seconds of the calls without it.
        build: the build that was begun; no other one follows.
        trials: against the steps, by size class.
        timing: held by the call that is timed: others would disturb it.
    """

    built: BuiltKernel | None = None
    spent_s: float = 0.0
    build: Future[BuiltKernel | None] | None = None
    trials: dict[int, PairedTimes] = field(default_factory=dict)
    timing: Lock = field(default_factory=Lock, repr=False)

    def trial(self, n_products: int) -> PairedTimes:
        """Return the trial of calls with about so many multiplications."""
        from feinsum.select import PairedTimes

        return self.trials.setdefault(_size_class(n_products), PairedTimes())

    def drop(self) -> None:
        """Forget a kernel that is not for larger sizes: one is built anew."""
        self.built = self.build = None
        self.spent_s = 0.0
        self.trials.clear()


def _size_class(n_products: int) -> int:
    return n_products.bit_length() // SIZE_CLASS


def as_of_class(seconds: float, n_products: int) -> float:
    """Return the time of a call as if it had the multiplications of its size class.

    >>> as_of_class(3.0, 96), as_of_class(6.0, 192)
    (2.0, 2.0)
    """
    return seconds * (1 << SIZE_CLASS * _size_class(n_products)) / n_products


def find_shared(
    family: CallFamily, request: BuildRequest
) -> tuple[BuildRequest, SharedKernel]:
    """Return what calls of its structure share, with the kernel of an earlier process.

    Returns:
        The request, as it stands for all sizes, too.
    """
    from dataclasses import replace

    from feinsum.calling.host.builder import built_before
    from feinsum.calling.kernel_cache import Calls
    from feinsum.memory import remembered

    varying = family.varying(request)
    if varying:
        request = replace(request, varying=varying)
    shared: SharedKernel = remembered(Calls).shared.get(
        request.key, lambda: SharedKernel(built_before(request))
    )
    return request, shared
