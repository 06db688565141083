"""Kernels for GPUs that are written by hand, in one dialect for OpenCL and CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from feinsum.targets.cuda.code import PREAMBLE
from feinsum.targets.cuda.cupy_session import CupySession
from feinsum.targets.cuda.launches import KernelLaunch, time_launches
from feinsum.targets.cuda.nvrtc import CudaBinary
from feinsum.targets.protocol import Timer

BLOCK = 256
"""Default number of work-items of a group."""

_NAMES = "\n".join(
    f"#define {kind}{lanes} feinsum_vec<{kind}, {lanes}>"
    for kind in ("float", "double")
    for lanes in (2, 4, 8, 16)
)

DIALECT = f"""{PREAMBLE}
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
    """A compiled kernel; see :class:`feinsum.targets.protocol.SourceKernel`."""

    session: CupySession
    binary: CudaBinary
    name: str

    def run(
        self,
        arguments: Sequence[Any],
        n_items: int,
        n_local: int | None = None,
        timer: Timer | None = None,
    ) -> float:
        """Return the seconds of a run over ``n_items`` work-items."""
        session, block = self.session, n_local or _choose_block(n_items)
        grid, values = (
            (n_items // block, 1, 1),
            [getattr(x, "flat", x) if hasattr(x, "layout") else x for x in arguments],
        )
        numbers = tuple(x if isinstance(x, np.generic) else None for x in values)
        launch = KernelLaunch(self.binary, self.name, grid, (block, 1, 1), 0, numbers)
        addresses = session.addresses(
            [x for x in values if not isinstance(x, np.generic)]
        )
        with session.active():
            start = launch.prepare(session)
        run = partial(start, addresses, session.stream)
        return time_launches(session, run, timer or "cuda-events")


def _choose_block(n_items: int) -> int:
    """Return the largest group size that divides the number of work-items.

    >>> _choose_block(1024), _choose_block(1000), _choose_block(7)
    (256, 250, 7)
    """
    return next(n for n in range(min(BLOCK, n_items), 0, -1) if n_items % n == 0)
