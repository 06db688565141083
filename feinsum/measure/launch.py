"""One timed run of a kernel that is written in OpenCL, arguments set before."""

from __future__ import annotations

from time import perf_counter
from typing import Any

from feinsum.measure.device import OpenCLDevice
from feinsum.measure.opencl import pyopencl
from feinsum.measure.timer import Timer, choose_timer, event_seconds

__all__ = ["launch_s"]


def launch_s(
    opencl: OpenCLDevice,
    kernel: Any,
    n_items: int,
    n_local: int | None = None,
    timer: Timer | None = None,
) -> float:
    """Seconds of a run over ``n_items`` work-items, by the clock to be trusted.

    Args:
        n_local: work-items of a group; by default the device chooses.
        timer: the clock, by default that of :func:`choose_timer`.
    """
    local = None if n_local is None else (n_local,)
    clock = timer or choose_timer(opencl)
    opencl.queue.finish()
    start = perf_counter()
    event = pyopencl().enqueue_nd_range_kernel(opencl.queue, kernel, (n_items,), local)
    opencl.queue.finish()
    elapsed_s = perf_counter() - start
    return elapsed_s if clock == "wall" else event_seconds(event)
