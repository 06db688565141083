"""Contenders: ways to compute an einsum on a GPU, timed against each other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

from feinsum.calling.gpu.flat import FlatCall
from feinsum.calling.gpu.prepared import GpuCall, KernelCall, ProductCall, StepsCall
from feinsum.calling.gpu.site import Site
from feinsum.calling.kernel import note_fault
from feinsum.errors import DeviceLostError, FeinsumError
from feinsum.select import find_fastest

logger = logging.getLogger(__name__)


class Contender(NamedTuple):
    """A way to compute an einsum.

    Attributes:
        kind: its name in messages.
        seconds: the predicted time.
        make: builds the call; returns None if that is not possible.
        is_proven: whether it is timed whatever its predicted time is.
    """

    kind: str
    seconds: float
    make: Callable[[], GpuCall | None]
    is_proven: bool = False

    def attempt(self) -> GpuCall | None:
        """Build the call; None if that fails, such as for too large intermediates."""
        try:
            return self.make()
        except DeviceLostError:
            raise
        except FeinsumError as error:
            logger.warning("skipped %s: %s", self.kind, error)
            return None


def choose_fastest(calls: Sequence[GpuCall], site: Site) -> GpuCall:
    """Return the call that is certainly faster than the first one; else the first.

    Calls that fail are logged and left out.
    """
    # without a rival there is nothing to time
    if len(calls) == 1:
        return calls[0]
    working = [call for call in calls if _can_run(call, site)]
    if not working:
        return calls[0]
    return working[find_fastest([partial(_time_call, call, site) for call in working])]


def _can_run(call: GpuCall, site: Site) -> bool:
    """Return whether a call runs; this first run compiles and allocates, untimed."""
    try:
        _time_call(call, site)
    except DeviceLostError:
        raise
    except FeinsumError as error:
        logger.warning("skipped %r: %s", call, error)
        return False
    return True


def _time_call(call: GpuCall, site: Site) -> float:
    """Time a call on the GPU, or on the host if that takes longer."""
    on_host_s = 0.0

    def run() -> None:
        nonlocal on_host_s
        start = perf_counter()
        call(site.arrays, site.stream)
        on_host_s = perf_counter() - start

    try:
        on_gpu_s = site.opened.session.timed(run, site.stream)
    except DeviceLostError:
        _note_faults(call, site)
        raise
    logger.debug("%r takes %.3g s, the host %.3g s", call, on_gpu_s, on_host_s)
    # a call cannot be repeated faster than the host launches it
    return max(on_gpu_s, on_host_s)


def _note_faults(call: GpuCall, site: Site) -> None:
    """Record the predicted recipes of a call that cost the device, to exclude them."""
    # an error shows at the next synchronization, so any launch may have caused it
    for kernel_call in _list_kernels(call):
        kernel = kernel_call.kernel
        if kernel is not None and kernel.spec is not None:
            note_fault(kernel_call.parsed.einsum, kernel.spec, site.opened)


def _list_kernels(call: GpuCall | None) -> Iterator[KernelCall]:
    # a flat call repeats the launches of another one
    if isinstance(call, FlatCall):
        call = call.origin
    if isinstance(call, KernelCall):
        yield call
    inner_calls: Iterable[GpuCall | None] = ()
    if isinstance(call, StepsCall):
        inner_calls = (step for _, step in call.steps)
    elif isinstance(call, ProductCall):
        inner_calls = (*call.copies, call.added)
    for inner_call in inner_calls:
        yield from _list_kernels(inner_call)
