"""Work counts: operations of an einsum, bytes touched.

The count of an einsum is that of the cheapest way to evaluate each row separately. A
Gop/s rate refers to this count, whatever the kernel actually does:

1. An index that occurs in one operand only and not in the output is summed over
   that operand alone: ``I - O`` additions, with I entries before and O after.
   A diagonal (an index twice in one term) selects entries and costs nothing.
2. The operands are contracted pairwise. A step over I index tuples with O results
   is I multiplications and ``I - O`` additions; an index is summed as soon as
   nothing else carries it. The order is one with the fewest operations, found by
   exhaustion, for up to eight operands; above, that of opt_einsum's ``greedy``.

A multiplication or an addition of complex numbers is one operation of a complex
dtype. Nothing is shared between rows. The dtype of a step is numpy's result type
of all operands that enter it.

For a sparse operand, only stored entries count: a step runs over the nodes of the tree,
down to the deepest level that it contains from the root, with two operations each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod

import numpy as np

from feinsum.errors import MeasurementError
from feinsum.ir import BatchedEinsum, Extent, SizeParam, nodes_of
from feinsum.nests import Operations, network_of, postorders, sizes_at
from feinsum.paths import contraction_steps

__all__ = [
    "dense_footprint_bytes",
    "dense_n_terms",
    "dense_operations",
    "sparse_operations",
]

INDEX_BYTES = 4


def dense_operations(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> dict[str, int]:
    """Exact number of additions and multiplications, by dtype.

    See the module for the convention.

    Args:
        sizes: the value of every size parameter.

    Returns:
        For each numpy dtype text (``<f8``) the sum over all rows.

    >>> from feinsum.ir import array, einsum
    >>> e = einsum("ij,jk->ik", array("A", ("M", 3)), array("B", (3, 4)))
    >>> dense_operations(e, {"M": 2})
    {'<f8': 40}
    """
    extents = tuple(
        (index, _value(extent, sizes)) for index, extent in einsum.extents.items()
    )
    steps = contraction_steps(einsum.inputs, einsum.output, extents)
    counts: Counter[str] = Counter()
    for row in einsum.rows:
        for step in steps:
            dtype = np.result_type(*(row[p].dtype for p in step.operands))
            counts[dtype.str] += step.n_operations
    return {dtype: count for dtype, count in counts.items() if count}


def sparse_operations(
    einsum: BatchedEinsum, sizes: Mapping[str, int]
) -> dict[str, int]:
    """Operations of the path with the fewest, by the profile of the tree."""
    network, known = network_of(einsum), sizes_at(einsum, sizes)
    if einsum.n_operands == 1:
        least = float(einsum.batch_size * known.nodes[-1])
    else:
        cost = Operations(network, known)
        least = min(cost.least(path) for path in postorders(network))
    return {einsum.output_dtypes[0].str: round(least)}


def dense_footprint_bytes(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> int:
    """Bytes of every distinct operand and of every result, each once.

    A tree has its values and, with 4 bytes each, its indices and pointers.
    """
    nodes = nodes_of(einsum, sizes)
    operands = sum(
        nodes[-1] * operand.dtype.itemsize
        + INDEX_BYTES * (sum(nodes) + sum(nodes[:-1]))
        if operand.storage and nodes
        else _n_entries(operand.shape, sizes) * operand.dtype.itemsize
        for operand in einsum.operands
    )
    gives_pattern = any(operand.storage == "csf=" for operand in einsum.operands)
    n_result = (
        nodes[-1] if gives_pattern and nodes else _n_entries(einsum.output_shape, sizes)
    )
    return operands + sum(n_result * dtype.itemsize for dtype in einsum.output_dtypes)


def dense_n_terms(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> int:
    """Number of products summed for one entry of a result."""
    return _n_entries((einsum.extents[i] for i in einsum.summation_indices), sizes)


def _value(extent: Extent, sizes: Mapping[str, int]) -> int:
    if not isinstance(extent, SizeParam):
        return extent
    if extent.name not in sizes:
        raise MeasurementError(
            f"the size {extent.name!r} has no value; given are {dict(sizes)}"
        )
    return sizes[extent.name]


def _n_entries(shape: Iterable[Extent], sizes: Mapping[str, int]) -> int:
    return prod(_value(extent, sizes) for extent in shape)
