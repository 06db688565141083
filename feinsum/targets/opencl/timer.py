"""Which clock to trust: OpenCL's profiling events or the wall clock."""

from __future__ import annotations

from functools import cache
from statistics import median
from time import perf_counter
from typing import Any

from feinsum.errors import MeasurementError
from feinsum.targets.opencl.door import opencl_errors, pyopencl, quiet_builds
from feinsum.targets.protocol import Timer

__all__ = ["agrees", "choose_timer", "event_seconds"]

_AGREEMENT = (0.5, 1.05)
"""See :func:`agrees`."""

# The xor with k leaves no closed form, so no compiler removes the loop.
_SOURCE = """
__kernel void spin(__global uint *out, uint n) {
    uint x = get_global_id(0);
    for (uint k = 0; k < n; ++k) x = x * 1664525u + (1013904223u ^ k);
    out[get_global_id(0)] = x;
}
"""


@cache
def choose_timer(queue: Any) -> Timer:
    """``opencl-profiling`` if the device's events agree with the wall clock.

    A kernel of at least 5 ms is run five times under both clocks; see
    :func:`agrees`. ``wall`` as well if events have no times. The answer is kept
    for the process.
    """
    try:
        is_honest = agrees(_compare_clocks(queue))
    except MeasurementError:
        return "wall"
    return "opencl-profiling" if is_honest else "wall"


def agrees(pairs_s: list[tuple[float, float]]) -> bool:
    """Whether profiling times are what the wall clock saw, less the launch.

    Args:
        pairs_s: profiling and wall time of the same runs, in seconds.

    Returns:
        Whether the median ratio lies between 0.5 and 1.05: an event that says
        more than the wall clock, or far less, is not a time of the kernel.

    >>> agrees([(0.9, 1.0)] * 3), agrees([(0.0, 1.0)] * 3), agrees([(2.0, 1.0)] * 3)
    (True, False, False)
    """
    low, high = _AGREEMENT
    return low <= median(event / wall for event, wall in pairs_s) <= high


def event_seconds(event: Any) -> float:
    """Device seconds of a finished event; at least one nanosecond."""
    return float(max(event.profile.end - event.profile.start, 1)) * 1e-9


def _compare_clocks(queue: Any) -> list[tuple[float, float]]:
    cl = pyopencl()
    with quiet_builds(), opencl_errors("cannot compare the clocks"):
        spin = cl.Program(queue.context, _SOURCE).build().spin
        n_items = 64 * queue.device.max_compute_units
        out = cl.Buffer(queue.context, cl.mem_flags.WRITE_ONLY, 4 * n_items)
        spin.set_scalar_arg_dtypes([None, "uint32"])

        def both(n_steps: int) -> tuple[float, float]:
            queue.finish()
            start = perf_counter()
            event = spin(queue, (n_items,), None, out, n_steps)
            queue.finish()
            return event_seconds(event), perf_counter() - start

        n_steps = 1 << 12
        both(n_steps)  # compiles
        # 5 ms dwarf the cost of a launch, which only the wall clock sees
        while both(n_steps)[1] < 5e-3 and n_steps < 1 << 30:
            n_steps *= 2
        return [both(n_steps) for _ in range(5)]
