"""The kernel of a call: generated, retrieved, built once, run often."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from feinsum.calling.accumulators import with_wide_sums
from feinsum.calling.options import CallOptions
from feinsum.codegen import (
    ContractionPath,
    Strides,
    contraction_path,
    generate_loopy,
)
from feinsum.errors import BuildError
from feinsum.ir import BatchedEinsum
from feinsum.measure import CompiledKernel, OpenDevice, compile_kernel
from feinsum.measure.intermediates import (
    all_have_room,
    intermediate_limit_bytes,
    temporary_bytes,
)
from feinsum.predict import MEASURING
from feinsum.records import TransformSpec
from feinsum.retrieval import retrieve
from feinsum.tuning import measure_if_possible

logger = logging.getLogger(__name__)

OUTPUT = "out"
"""The name of the result in a kernel of one row."""


@dataclass(frozen=True, eq=False)
class CallKernel:
    """A built kernel.

    Attributes:
        is_retrieved: whether a recorded recipe was applied.
        spec: the recipe that was predicted, if one was.
    """

    compiled: CompiledKernel
    is_retrieved: bool = False
    spec: TransformSpec | None = None

    @property
    def t_unit(self) -> Any:
        """The translation unit that was built."""
        return self.compiled.t_unit


def recorded_kernel(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    strides: Mapping[str, Strides],
    opened: OpenDevice,
    options: CallOptions,
) -> CallKernel | None:
    """The kernel with the best recorded recipe; None if none works.

    With an effort that measures, the einsum is tuned unless it already was. Recipes
    that exceed the memory limit at these sizes are ignored.

    Args:
        sizes: values of its size parameters.
        strides: strides of arrays that are not in C order.

    Raises:
        FeinsumError: with ``on_miss="raise"``, the reason why there is no recipe.
    """
    if options.effort in MEASURING:
        measure_if_possible(
            einsum,
            sizes,
            options.effort,
            device=opened.device.id,
            database=options.database,
        )
    plain = opened.prepare(generate_loopy(einsum, strides=strides))
    found = retrieve(
        plain,
        device=opened.device.id,
        database=options.database,
        policy=options.policy,
        on_miss=options.on_miss,
        effort="recorded",
    )
    if found is plain or not fits_memory(found, einsum, sizes):
        return None
    if opened.reads_in_place:
        found = with_wide_sums(found, einsum, sizes)
    try:
        return CallKernel(compile_kernel(found, opened), is_retrieved=True)
    except BuildError:
        if options.on_miss == "raise":
            raise
        logger.exception("skipped the retrieved kernel")
        return None


def untransformed_kernel(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    strides: Mapping[str, Strides],
    opened: OpenDevice,
) -> CallKernel:
    """A kernel without a recipe; more than two operands are contracted pairwise.

    The memory for these products is limited; see
    :func:`feinsum.measure.intermediates.intermediate_limit_bytes`.

    Raises:
        MeasurementError: if the limit that is set is no number.
        BuildError: if the kernel cannot be built.
    """
    path = untransformed_path(einsum, sizes)
    plain = generate_loopy(einsum, path=path, strides=strides)
    unit = opened.prepare(plain)
    if opened.reads_in_place:
        unit = with_wide_sums(unit, einsum, sizes)
    return CallKernel(compile_kernel(unit, opened))


def untransformed_path(
    einsum: BatchedEinsum, sizes: Mapping[str, int]
) -> ContractionPath | None:
    """The contraction order without a recipe; None if one nest computes everything.

    Raises:
        MeasurementError: if the limit that is set is no number.
    """
    limit = intermediate_limit_bytes(einsum, sizes)
    path = contraction_path(einsum, sizes, max_bytes=limit)
    return path if len(path) > 1 else None


def fits_memory(t_unit: Any, einsum: BatchedEinsum, sizes: Mapping[str, int]) -> bool:
    """Whether the temporaries of a kernel fit into the memory limit."""
    n_bytes = temporary_bytes(t_unit, sizes)
    return not n_bytes or n_bytes <= intermediate_limit_bytes(einsum, sizes)


def sizes_that_matter(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Hashable:
    """What calls of an einsum have in common if they share a kernel.

    None where every intermediate that a kernel could have fits the memory; the sizes
    where one does not, as it decides on the kernel.
    """
    return None if all_have_room(einsum, sizes) else tuple(sorted(sizes.items()))
