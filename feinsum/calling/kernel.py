"""The kernel of a call: generated, retrieved, built once, run often."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feinsum.codegen import Strides, contraction_path, generate_loopy
from feinsum.db import Database
from feinsum.errors import BuildError
from feinsum.ir import BatchedEinsum
from feinsum.measure import CompiledKernel, OpenDevice, compile_kernel
from feinsum.records import Policy
from feinsum.retrieval import OnMiss, retrieve
from feinsum.retrieval.applying import ISLPY_WARNING

__all__ = ["OUTPUT", "CallKernel", "CallOptions", "build_kernel"]

logger = logging.getLogger(__name__)

OUTPUT = "out"
"""The name of the result in a kernel of one row."""


@dataclass(frozen=True)
class CallOptions:
    """How a kernel is looked up; see :func:`feinsum.retrieve`."""

    database: Database = None
    policy: Policy | None = None
    on_miss: OnMiss = "return"


@dataclass(frozen=True, eq=False)
class CallKernel:
    """A built kernel.

    Attributes:
        is_retrieved: whether a recipe was applied.
    """

    compiled: CompiledKernel
    is_retrieved: bool

    @property
    def t_unit(self) -> Any:
        """The translation unit that was built."""
        return self.compiled.t_unit


def build_kernel(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    strides: Mapping[str, Strides],
    opened: OpenDevice,
    options: CallOptions,
) -> CallKernel:
    """The kernel with the best recipe, or without one if none is known or works.

    Without a recipe an einsum of more than two operands is contracted pairwise.

    Args:
        strides: of arrays that are not in C's order.

    Raises:
        FeinsumError: with ``on_miss="raise"`` the reason why there is no recipe.
        BuildError: if the kernel cannot be built.
    """
    plain = opened.prepare(generate_loopy(einsum, strides=strides))
    found = retrieve(
        plain,
        device=opened.device.id,
        database=options.database,
        policy=options.policy,
        on_miss=options.on_miss,
    )
    if found is not plain:
        try:
            return CallKernel(_compiled(found, opened), is_retrieved=True)
        except BuildError:
            if options.on_miss == "raise":
                raise
            logger.exception("the retrieved kernel is passed over")
    if einsum.n_operands > 2:
        path = contraction_path(einsum, sizes)
        plain = generate_loopy(einsum, path=path, strides=strides)
    return CallKernel(_compiled(plain, opened), is_retrieved=False)


def _compiled(t_unit: Any, opened: OpenDevice) -> CompiledKernel:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ISLPY_WARNING, DeprecationWarning)
        return compile_kernel(t_unit, opened)
