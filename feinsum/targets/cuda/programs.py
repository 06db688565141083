"""Kernels for GPUs that are written by hand, in one dialect for OpenCL and CUDA."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from feinsum.targets.cuda.code import PREAMBLE
from feinsum.targets.cuda.cupy_session import CupySession
from feinsum.targets.cuda.nvrtc import CudaBinary
from feinsum.targets.protocol import Timer

BLOCK = 256
"""Default number of work-items of a group."""

_NAMES = "\n".join(
    f"#define {kind}{lanes} feinsum_vec<{kind}, {lanes}>"
    for kind in ("float", "double")
    for lanes in (2, 4, 8, 16)
)

_DIALECT = f"""{PREAMBLE}
#define uint unsigned int
#define uchar unsigned char
#define ulong unsigned long
#define __global
#define restrict __restrict__
#define get_global_id(axis) ((size_t) blockIdx.x * blockDim.x + threadIdx.x)
#define get_local_id(axis) ((size_t) threadIdx.x)
#define get_group_id(axis) ((size_t) blockIdx.x)
#define KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
#define SPLAT(type, x) (type(x))
{_NAMES}
"""
"""Macros that turn a kernel of :meth:`CudaDevice.program` into CUDA C++."""


@dataclass(frozen=True)
class CudaProgram:
    """A kernel that is loaded; see :class:`feinsum.targets.protocol.SourceKernel`."""

    session: CupySession
    function: Any

    @classmethod
    def of(
        cls,
        session: CupySession,
        compiled: Callable[[str], CudaBinary],
        source: str,
        name: str,
    ) -> CudaProgram:
        return cls(session, session.function(compiled(_DIALECT + source), name, 0))

    def run(
        self,
        arguments: Sequence[Any],
        n_items: int,
        n_local: int | None = None,
        timer: Timer | None = None,
    ) -> float:
        """Return the seconds of a run over ``n_items`` work-items."""
        block = n_local or _choose_block(n_items)
        values = [getattr(x, "flat", x) if hasattr(x, "layout") else x
                  for x in arguments]  # fmt: skip

        def launch() -> None:
            grid = (n_items // block, 1, 1)
            self.session.launch(self.function, grid, (block, 1, 1), values, 0)

        self.session.synchronize()
        if timer != "wall":
            return self.session.timed(launch)
        start = perf_counter()
        launch()
        self.session.synchronize()
        return perf_counter() - start


def _choose_block(n_items: int) -> int:
    """Return the largest group size that divides the number of work-items.

    >>> _choose_block(1024), _choose_block(1000), _choose_block(7)
    (256, 250, 7)
    """
    return next(n for n in range(min(BLOCK, n_items), 0, -1) if n_items % n == 0)
