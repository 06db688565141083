"""The memory limit on intermediate products.

``ij,jk,kl->il`` with extents of 4000 and ``l = 1`` is computed as ``A (B C)`` with an
intermediate of 4000 entries, or as ``(A B) C`` with 16 million: the limit decides
whether a recipe with the second path may be used.

Contraction paths make einsums of many operands fast by computing intermediates, and the
fastest path may need intermediates far larger than operands and results.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import prod
from typing import Any

import psutil
from loopy import AddressSpace
from pymbolic.mapper.evaluator import evaluate

from feinsum.ir import BatchedEinsum, Extent, SizeParam, Workload
from feinsum.options import get_intermediate_bytes
from feinsum.records import TransformSpec
from feinsum.targets.layout import get_entry_kernel

logger = logging.getLogger(__name__)

SHARE = 4
"""Divisor of the free memory: intermediates may take the quotient by default."""


def get_intermediate_limit_bytes(
    einsum: BatchedEinsum, sizes: Mapping[str, int]
) -> int:
    """Return the configured limit, by default a part of the free memory.

    The part is rounded down to a power of two, so that it seldom changes. It is at
    least the size of the largest operand or result.

    Args:
        einsum: the einsum.
        sizes: values of its size parameters.

    Raises:
        MeasurementError: if the variable is not a number.
    """
    named = get_intermediate_bytes()
    if named is not None:
        return named
    share = max(int(psutil.virtual_memory().available) // SHARE, 1)
    # Rounded, since the limit is part of cache keys; never below the size of an array
    # that is needed anyway.
    return max(1 << (share.bit_length() - 1), _count_largest_bytes(einsum, sizes))


def has_room(
    spec: TransformSpec,
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    limit: int | None = None,
) -> bool:
    """Return whether the intermediates of a recipe fit into the limit.

    A recipe that is unknown here, does not fit the einsum, or depends on an unknown
    size passes: it is refused elsewhere, or accepted.

    Args:
        spec: the recipe.
        einsum: the einsum to whose names the recipe refers.
        sizes: values of its size parameters, as far as known.
        limit: in bytes; by default :func:`get_intermediate_limit_bytes`.
    """
    # a plug-in may import what imports this module
    from feinsum.transforms import REGISTRY
    from feinsum.transforms.cost import count_distinct_bytes, replace_sizes

    transform = REGISTRY.get((spec.name, spec.version))
    if transform is None or transform.steps is None:
        return True
    if any(x.name not in sizes for x in einsum.size_params):
        return True
    literal = replace_sizes(einsum, sizes)
    try:
        *stored, _ = transform.steps(literal, spec.parameters).einsums
        n_bytes = sum(count_distinct_bytes(step)[1] for step in stored)
    except Exception:  # a record may contain anything
        logger.info("%.200s does not fit %s", spec, einsum.subscripts, exc_info=True)
        return True
    if limit is None:
        limit = get_intermediate_limit_bytes(einsum, sizes)
    return n_bytes <= limit


def do_all_fit(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> bool:
    """Return whether all proposed recipes fit into the limit at these sizes."""
    from feinsum.transforms import REGISTRY
    from feinsum.transforms.registry import list_proposed

    limit = get_intermediate_limit_bytes(einsum, sizes)
    return all(
        has_room(transform.spec(parameters), einsum, sizes, limit)
        for transform in REGISTRY.values()
        if transform.steps is not None
        for parameters in list_proposed(transform, Workload(einsum, sizes))
    )


def count_temporary_bytes(t_unit: Any, sizes: Mapping[str, int]) -> int:
    """Count the bytes of the temporaries that all work-groups of a kernel share."""
    return sum(
        prod(int(evaluate(extent, dict(sizes))) for extent in temporary.shape)
        * temporary.dtype.numpy_dtype.itemsize
        for temporary in get_entry_kernel(t_unit).temporary_variables.values()
        if temporary.address_space == AddressSpace.GLOBAL
    )


def _count_largest_bytes(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> int:
    arrays = [(x.shape, x.dtype) for x in einsum.operands]
    arrays += [(einsum.output_shape, dtype) for dtype in einsum.output_dtypes]
    return max(
        prod(_evaluate_extent(extent, sizes) for extent in shape) * dtype.itemsize
        for shape, dtype in arrays
    )


def _evaluate_extent(extent: Extent, sizes: Mapping[str, int]) -> int:
    return sizes.get(extent.name, 1) if isinstance(extent, SizeParam) else extent
