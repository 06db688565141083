"""Contenders: ways to compute an einsum on a GPU, timed against each other."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from feinsum.calling.einsum_call import EinsumCall, parse_call
from feinsum.calling.gpu.flat import FlatCall
from feinsum.calling.gpu.prepared import GpuCall, KernelCall, ProductCall, StepsCall
from feinsum.calling.kernel_cache import LookupOptions, database_key
from feinsum.calling.predicted import note_fault
from feinsum.errors import DeviceLostError, FeinsumError
from feinsum.predict import machine_of
from feinsum.select import find_fastest
from feinsum.targets.cuda import CudaDevice
from feinsum.transforms.cost import Gpu

logger = logging.getLogger(__name__)


class Site(NamedTuple):
    """The arguments for which a call is built; the arrays are not kept.

    Attributes:
        stream: on which the arrays are ready; contenders are timed there.
        is_exact: whether the result is to lie in C's order.
    """

    arrays: Sequence[Any]
    stream: Any
    opened: CudaDevice
    options: LookupOptions
    is_exact: bool = False

    def part(self, *arrays: Any, is_exact: bool = True) -> Site:
        """Return the site of a part of the call, for which a miss is not reported."""
        options = replace(self.options, on_miss="return")
        return self._replace(arrays=arrays, options=options, is_exact=is_exact)

    @property
    def lookup_key(self) -> Hashable:
        """What decides beside the einsum which kernel is found."""
        options = self.options
        return (
            # a kernel of a parent process has no context here
            self.opened, os.getpid(), database_key(options.database),
            options.policy, options.on_miss, options.effort,
        )  # fmt: skip

    @property
    def gpu(self) -> Gpu:
        gpu = machine_of(self.opened.device).gpu
        assert gpu is not None
        return gpu


def read(text: str, arrays: Sequence[Any], first: Sequence[int]) -> EinsumCall:
    forms = [(tuple(array.shape), np.dtype(array.dtype)) for array in arrays]
    return parse_call(text, forms, first)


class Contender(NamedTuple):
    """A way to compute an einsum.

    Attributes:
        kind: names it in messages.
        seconds: the predicted time.
        make: None if it does not work.
        is_proven: whether it is timed whatever is predicted.
    """

    kind: str
    seconds: float
    make: Callable[[], GpuCall | None]
    is_proven: bool = False

    def attempt(self) -> GpuCall | None:
        """Make the call; None if that fails, as where intermediates are too large."""
        try:
            return self.make()
        except DeviceLostError:
            raise
        except FeinsumError as error:
            logger.warning("skipped %s: %s", self.kind, error)
            return None


def fastest(calls: Sequence[GpuCall], site: Site) -> GpuCall:
    """Return the call that is certainly faster than the first one; else the first.

    Calls that fail are left out, and reported.
    """
    # nothing to compare, and so nothing to run
    if len(calls) == 1:
        return calls[0]
    working = [call for call in calls if _works(call, site)]
    if not working:
        return calls[0]
    return working[find_fastest([partial(_seconds, call, site) for call in working])]


def _works(call: GpuCall, site: Site) -> bool:
    """Return whether a run succeeds.

    The run compiles and allocates, which is not timed later.
    """
    try:
        _seconds(call, site)
    except DeviceLostError:
        raise
    except FeinsumError as error:
        logger.warning("skipped %r: %s", call, error)
        return False
    return True


def _seconds(call: GpuCall, site: Site) -> float:
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
    """Exclude the predicted recipes of a call, one of which caused the loss."""
    # an error shows at the next synchronization: it may be of any launch of the call
    for part in _kernels_of(call):
        if part.kernel.spec is not None:
            note_fault(part.parsed.einsum, part.kernel.spec, site.opened)


def _kernels_of(call: GpuCall | None) -> Iterator[KernelCall]:
    # a flat call repeats the launches of another one
    if isinstance(call, FlatCall):
        call = call.origin
    if isinstance(call, KernelCall):
        yield call
    parts: Iterable[GpuCall | None] = ()
    if isinstance(call, StepsCall):
        parts = (step for _, step in call.steps)
    elif isinstance(call, ProductCall):
        parts = (*call.copies, call.added)
    for part in parts:
        yield from _kernels_of(part)
