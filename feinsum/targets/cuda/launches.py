"""Launches as data: all but addresses, for any process with such a GPU.

A launch is that of a kernel or a product of cuBLAS. Neither needs the code generator
that made it, so a process can pass launches to another one. :meth:`prepare` loads them
into a session::

    operands, result, temporaries  ->  table of addresses  ->  launch 0, launch 1, ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np

from feinsum.targets.cuda.cupy_session import CupySession
from feinsum.targets.cuda.gemm import Gemm
from feinsum.targets.cuda.nvrtc import CudaBinary
from feinsum.targets.protocol import Timer

Prepared: TypeAlias = Callable[[Sequence[int], Any], None]
"""A launch as a function of addresses and a stream."""


@dataclass(frozen=True)
class KernelLaunch:
    """The launch of a kernel.

    Attributes:
        name: its name in the binary.
        grid: number of work-groups along each axis.
        block: number of work-items of a group along each axis.
        shared_bytes: dynamic shared memory of a group.
        values: the arguments in their order; None for an array.
    """

    binary: CudaBinary
    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    values: tuple[np.generic | None, ...]

    def prepare(self, session: CupySession) -> Prepared:
        """Load the kernel; this GPU has to be the current one."""
        function = session.function(self.binary, self.name, self.shared_bytes)
        return session.launcher(
            function, self.grid, self.block, self.shared_bytes, self.values
        )


@dataclass(frozen=True)
class GemmLaunch:
    """A product of cuBLAS; its arrays are left, right and the result."""

    gemm: Gemm
    dtype: np.dtype[Any]

    def prepare(self, session: CupySession) -> Prepared:
        """Choose the function of cuBLAS; this GPU has to be the current one."""
        return session.multiplier(self.gemm, self.dtype)


Launch: TypeAlias = KernelLaunch | GemmLaunch


@dataclass(frozen=True)
class LaunchList:
    """The launches of a kernel.

    Attributes:
        temporaries: number of entries and dtype of each temporary.
        launches: each with the positions of its arrays among operands, result and
            temporaries.
    """

    temporaries: tuple[tuple[int, np.dtype[Any]], ...]
    launches: tuple[tuple[Launch, tuple[int, ...]], ...]

    def prepare(
        self, session: CupySession
    ) -> Callable[[Sequence[Any], Any, Any], None]:
        """Return a function of operands, result and stream that launches everything.

        This GPU has to be the current one.
        """
        prepared = prepare_launches(self.launches, session)

        def run(operands: Sequence[Any], result: Any, stream: Any) -> None:
            # allocated for the current stream, whose order makes reuse of memory safe
            buffers = [session.empty((n,), dtype) for n, dtype in self.temporaries]
            table = session.addresses((*operands, result, *buffers))
            for launch, positions in prepared:
                launch([table[k] for k in positions], stream)

        return run


def prepare_launches(
    launches: Sequence[tuple[Launch, tuple[int, ...]]], session: CupySession
) -> list[tuple[Prepared, tuple[int, ...]]]:
    """Load launches into a session; each keeps its positions in a table."""
    return [(launch.prepare(session), positions) for launch, positions in launches]


def time_launches(
    session: CupySession, launch: Callable[[], None], timer: Timer
) -> float:
    """Return the seconds of launches by events, or by the wall clock to their end."""
    # earlier work is not timed
    session.synchronize()
    if timer == "cuda-events":
        return session.timed(launch)
    with session.active():
        start = perf_counter()
        launch()
        session.synchronize()
    return perf_counter() - start
