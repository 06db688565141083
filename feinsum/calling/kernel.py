"""The kernel of a call: generated, retrieved, built once, run often."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from feinsum.codegen import contraction_path, generate_loopy
from feinsum.db import Database
from feinsum.errors import BuildError
from feinsum.ir import BatchedEinsum
from feinsum.measure import CompiledKernel, OpenCLDevice, compile_kernel
from feinsum.measure.opencl import opencl_errors
from feinsum.records import Policy
from feinsum.retrieval import OnMiss, retrieve
from feinsum.retrieval.recipes import ISLPY_WARNING

__all__ = ["CallKernel", "CallOptions", "build_kernel"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CallOptions:
    """How a kernel is looked up; see :func:`feinsum.retrieve`."""

    database: Database = None
    policy: Policy | None = None
    on_miss: OnMiss = "return"


@dataclass(frozen=True, eq=False)
class CallKernel:
    """A built kernel. Several threads may run it; they take turns.

    Attributes:
        is_retrieved: whether a recipe was applied.
    """

    compiled: CompiledKernel
    is_retrieved: bool
    _turn: Lock = field(default_factory=Lock, repr=False)

    @property
    def t_unit(self) -> Any:
        """The translation unit that was built."""
        return self.compiled.t_unit

    def run(self, arguments: Mapping[str, Any], queue: Any = None) -> Any:
        """A new array with the result, on the host if the arguments are there.

        Args:
            queue: of the same context as the kernel; by default the device's.

        Raises:
            MeasurementError: if the device refuses or fails.
        """
        compiled = self.compiled
        with self._turn, opencl_errors("the kernel failed to run"):
            _, (result,) = compiled.executor(
                queue or compiled.opencl.queue, **arguments
            )
        return result


def build_kernel(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    opencl: OpenCLDevice,
    options: CallOptions,
) -> CallKernel:
    """The kernel with the best recipe, or without one if none is known or works.

    Without a recipe an einsum of more than two operands is contracted pairwise.

    Raises:
        FeinsumError: with ``on_miss="raise"`` the reason why there is no recipe.
        BuildError: if the kernel cannot be built.
    """
    plain = generate_loopy(einsum)
    found = retrieve(
        plain,
        device=opencl.device.id,
        database=options.database,
        policy=options.policy,
        on_miss=options.on_miss,
    )
    if found is not plain:
        try:
            return CallKernel(_compiled(found, opencl), is_retrieved=True)
        except BuildError:
            if options.on_miss == "raise":
                raise
            logger.exception("the retrieved kernel is passed over")
    if einsum.n_operands > 2:
        plain = generate_loopy(einsum, path=contraction_path(einsum, sizes))
    return CallKernel(_compiled(plain, opencl), is_retrieved=False)


def _compiled(t_unit: Any, opencl: OpenCLDevice) -> CompiledKernel:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ISLPY_WARNING, DeprecationWarning)
        return compile_kernel(t_unit, opencl)
