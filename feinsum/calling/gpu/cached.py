"""Which call computes the next one of its kind, on a GPU.

No call waits for a kernel: a library computes calls until another process has built
what is faster, see :mod:`feinsum.calling.gpu.builder`. A single call builds nothing::

    call       1           2                    3 ...                after the build
    computed   a library   a library;           a library            the fastest way
                           a build begins
               what an earlier process has built -------------------------------------->

With a policy, ``on_miss``, an effort, or a store of this process as the database, the
caller asks for a kernel: then the second call builds it in this process, or the first
one, if no library computes it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import Lock, main_thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from feinsum.calling.background import build_in_background
from feinsum.calling.einsum_call import EinsumCall
from feinsum.calling.gpu.builder import (
    Builder,
    BuildRequest,
    build_elsewhere,
    load_built,
)
from feinsum.calling.gpu.prepared import (
    GpuCall,
    count_result_bytes,
    make_library_call,
    make_trivial_call,
)
from feinsum.calling.gpu.site import Site, parse_arrays
from feinsum.calling.kernel_cache import Calls, LookupOptions
from feinsum.calling.operands import find_first_uses
from feinsum.causes import is_known_cause
from feinsum.memory import get_remembered
from feinsum.targets.cuda.device import CudaDevice

if TYPE_CHECKING:
    from concurrent.futures import Future

logger = logging.getLogger(__name__)

MAX_FIRST_BYTES = 1 << 30
"""Maximum bytes of operands and result for which the library computes the first calls,
since it may need several times as much memory. The process that builds makes a second
set of the operands."""


@dataclass(eq=False)
class CachedCalls:
    """The state kept for calls of one kind.

    Attributes:
        library: computes calls without waiting for a kernel; None if there must be one.
        request: what another process builds; None if this one does.
        repeated: computes all later calls, once it is built.
        build: the build in the other process, once it has begun.
        checked: the call for which the free memory of the GPU was checked.
    """

    parsed: EinsumCall
    library: GpuCall | None
    request: BuildRequest | None = None
    repeated: GpuCall | None = None
    build: Future[GpuCall] | None = None
    checked: GpuCall | None = None
    _has_begun: bool = False
    _lock: Lock = field(default_factory=Lock, repr=False)

    def next(self, site: Site) -> GpuCall:
        """Return the call to run next; threads wait if one of them builds it here."""
        if self.repeated is not None:
            return self.repeated
        with self._lock:
            is_first, self._has_begun = not self._has_begun, True
            if self.repeated is None and self.library is not None:
                if is_first:
                    return self.library
                if self.request is not None:
                    self._begin(self.request, site.opened)
                    return self.library
            if self.repeated is None:
                from feinsum.calling.gpu.building import build  # loads Loopy

                self.repeated = build(self.parsed, site)
            return self.repeated

    def _begin(self, request: BuildRequest, opened: CudaDevice) -> None:
        """Begin the build in another process, unless many others are to be done."""
        if self.build is not None or get_remembered(Builder).is_busy:
            return
        self.build = build_in_background(partial(build_elsewhere, request, opened))
        self.build.add_done_callback(self._adopt)

    def _adopt(self, build: Future[GpuCall]) -> None:
        """Take what was built; a build that fails leaves the library."""
        error = build.exception()
        if error is None:
            self.repeated = build.result()
            return
        # at its end, this process ends the one that builds
        if not main_thread().is_alive():
            return
        # such as a GPU in exclusive mode: one warning for all calls
        is_known = isinstance(error, Exception) and is_known_cause(error, "GPU calls")
        level = logging.INFO if is_known else logging.WARNING
        subscripts = self.parsed.einsum.subscripts
        logger.log(level, "a library goes on computing %s: %s", subscripts, error)
        self.repeated = self.library


def get_cached_calls(
    subscripts: str, operands: Sequence[Any], site: Site
) -> CachedCalls:
    """Return the cached calls for such arrays, or make them.

    Args:
        subscripts: as for :func:`feinsum.call_einsum`.
        operands: the operands as given; an object passed twice is one operand.
        site: the arrays, the GPU and the options of the call.

    Raises:
        InvalidEinsumError: if notation, shapes or dtypes do not fit.
    """
    first = find_first_uses(operands)
    session = site.opened.session

    def make() -> CachedCalls:
        parsed = parse_arrays(subscripts, site.arrays, first)
        trivial = make_trivial_call(parsed, site.opened)
        # with a policy, the caller requires a kernel, not the library's result
        is_usual = site.options == LookupOptions(site.options.database)
        n_bytes = count_result_bytes(parsed) + sum(
            array.nbytes for array in site.arrays
        )
        if trivial is not None or not is_usual or n_bytes > MAX_FIRST_BYTES:
            return CachedCalls(parsed, None, repeated=trivial)
        library = make_library_call(parsed, site.opened)
        request = BuildRequest.of(subscripts, first, site)
        if library is None or request is None:
            return CachedCalls(parsed, library)
        repeated = load_built(request, site.opened)
        return CachedCalls(parsed, library, request, repeated)

    key = str(subscripts), first, site.lookup_key, *map(session.form, site.arrays)
    cached: CachedCalls = get_remembered(Calls).gpu.get(key, make)
    return cached


def wait_for_builds(limit_s: float) -> bool:
    """Wait until no other process builds a call; return whether that is so in time."""
    from concurrent.futures import wait

    end_s = monotonic() + limit_s
    cached_calls: list[CachedCalls] = get_remembered(Calls).gpu.values()
    builds = [cached.build for cached in cached_calls if cached.build is not None]
    _, unfinished = wait(builds, limit_s)
    # the result of a build is taken just after its end
    while any(cached.build and cached.repeated is None for cached in cached_calls):
        if unfinished or monotonic() > end_s:
            return False
    return True
