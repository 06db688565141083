"""Kernels that are written in OpenCL C."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from feinsum.targets.opencl.door import opencl_errors, pyopencl, quiet_builds
from feinsum.targets.opencl.timer import choose_timer, event_seconds
from feinsum.targets.protocol import Timer

__all__ = ["OpenCLProgram"]

PREAMBLE = """\
#define KERNEL(name, ...) __kernel void name(__VA_ARGS__)
#define SPLAT(type, x) ((type) (x))
"""


@dataclass(frozen=True)
class OpenCLProgram:
    """A kernel with its queue; see :class:`feinsum.targets.protocol.Program`."""

    queue: Any
    kernel: Any

    @classmethod
    def of(cls, queue: Any, source: str, name: str) -> OpenCLProgram:
        with quiet_builds(), opencl_errors(f"the kernel {name!r} cannot be built"):
            program = pyopencl().Program(queue.context, PREAMBLE + source).build()
        return cls(queue, getattr(program, name))

    def run(
        self,
        arguments: Sequence[Any],
        n_items: int,
        n_local: int | None = None,
        timer: Timer | None = None,
    ) -> float:
        """Seconds of a run over ``n_items`` work-items, by the clock to be trusted."""
        cl, queue = pyopencl(), self.queue
        clock = timer or choose_timer(queue)
        given = (x.base_data if hasattr(x, "base_data") else x for x in arguments)
        local = None if n_local is None else (n_local,)
        with opencl_errors("the kernel failed to run"):
            self.kernel.set_args(*given)
            queue.finish()
            start = perf_counter()
            event = cl.enqueue_nd_range_kernel(queue, self.kernel, (n_items,), local)
            queue.finish()
            elapsed_s = perf_counter() - start
        return elapsed_s if clock == "wall" else event_seconds(event)
