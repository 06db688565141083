"""The roles that the indices of an einsum can play in a recipe."""

from __future__ import annotations

from math import prod

import numpy as np

from feinsum.ir import BatchedEinsum, Extent, IndexList, SizeParam
from feinsum.transforms.registry import Parameters

RUN_TIME_EXTENT = 4096
"""The extent that cost models assume for a size parameter."""


def get_typical_extent(extent: Extent) -> int:
    """Return an extent, or the assumed one of a size parameter."""
    return RUN_TIME_EXTENT if isinstance(extent, SizeParam) else extent


def is_long(extent: Extent) -> bool:
    """Return whether an index is worth splitting into blocks for a grid."""
    return get_typical_extent(extent) >= 64


def count_index_tuples(einsum: BatchedEinsum, indices: IndexList) -> int:
    """Count the index tuples; size parameters count as long extents."""
    return prod(get_typical_extent(einsum.extents[index]) for index in indices)


def compute_reuse(einsum: BatchedEinsum) -> float:
    """Return the number of loop iterations per array entry.

    >>> from feinsum import array, einsum
    >>> product = einsum("ik,kj->ij", array("A", (60, 60)), array("B", (60, 60)))
    >>> compute_reuse(product)
    20.0
    """
    terms = (*einsum.inputs, einsum.output)
    entries = sum(count_index_tuples(einsum, term) for term in terms)
    return count_index_tuples(einsum, einsum.indices) / entries


def find_carriers(einsum: BatchedEinsum, index: str) -> tuple[int, ...]:
    """Return the operand positions whose term has ``index``."""
    return tuple(p for p, term in enumerate(einsum.inputs) if index in term)


def find_element_indices(einsum: BatchedEinsum) -> tuple[str, ...]:
    """Return the long output indices, such as elements; other extents must be known.

    There are none if an operand repeats an index: a tile of a diagonal would repeat an
    axis.

    >>> from feinsum import array, einsum
    >>> find_element_indices(einsum("ij,ej->ei", array("D", (4, 4)),
    ...     array("u", ("N", 4))))
    ('e',)
    """
    if any(len(set(term)) < len(term) for term in einsum.inputs):
        return ()
    unknown = {i for i, n in einsum.extents.items() if isinstance(n, SizeParam)}
    return tuple(
        index
        for index in einsum.output
        if is_long(einsum.extents[index]) and unknown <= {index}
    )


def fit_lanes(extent: Extent, lanes: int) -> int:
    """Halve ``lanes`` until the index fills a vector.

    >>> fit_lanes(5, 8), fit_lanes(SizeParam("N"), 8)
    (4, 8)
    """
    while isinstance(extent, int) and lanes > extent:
        lanes //= 2
    return lanes


def has_real_dtype(einsum: BatchedEinsum) -> bool:
    """Return whether all operands have the same native floating-point dtype."""
    dtypes = {operand.dtype for operand in einsum.operands}
    return len(dtypes) == 1 and dtypes <= {np.dtype(np.float64), np.dtype(np.float32)}


def has_blas_dtype(einsum: BatchedEinsum) -> bool:
    """Return whether all operands have the same dtype, one that BLAS multiplies."""
    dtypes = {operand.dtype for operand in einsum.operands}
    return len(dtypes) == 1 and dtypes <= set(map(np.dtype, ("f4", "f8", "c8", "c16")))


def get_number(parameters: Parameters, name: str) -> int:
    value = parameters[name]
    assert isinstance(value, int)
    return value


def get_text(parameters: Parameters, name: str) -> str:
    value = parameters[name]
    assert isinstance(value, str)
    return value
