"""Contraction paths of einsums, at their sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from feinsum.ir import BatchedEinsum, SizeParam
from feinsum.paths import Path, find_path, path_within

__all__ = ["ContractionPath", "contraction_path"]

ContractionPath: TypeAlias = Path

TYPICAL_LONG_EXTENT = 10_000
"""The assumed value of a size parameter in estimates of a path's cost."""


def contraction_path(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    *,
    max_bytes: int | None = None,
) -> ContractionPath:
    """The order with the fewest operations, see :func:`feinsum.paths.find_path`.

    Args:
        einsum: the computation; its rows share the path.
        sizes: values of size parameters; missing ones count as long.
        max_bytes: limit on all intermediates together. A step may then take more than
            two arrays, and the last one all that are left.

    >>> from feinsum.ir import array, einsum
    >>> J, D = array("J", (3, 3, "Nel")), array("D", (3, 20, 20))
    >>> e = einsum("xre,rij,ej->xei", J, D, array("u", ("Nel", 20)))
    >>> contraction_path(e)
    ((1, 2), (0, 1))
    >>> contraction_path(e, {"Nel": 100}, max_bytes=1000)
    ((0, 1, 2),)
    """
    extents = _extents(einsum, sizes or {})
    if max_bytes is None:
        return find_path(einsum.inputs, einsum.output, extents)
    most_entries = max_bytes // (einsum.batch_size * _itemsize(einsum))
    return path_within(einsum.inputs, einsum.output, extents, most_entries)


def _itemsize(einsum: BatchedEinsum) -> int:
    return np.result_type(*(op.dtype for op in einsum.operands)).itemsize


def _extents(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> dict[str, int]:
    return {
        index: sizes.get(x.name, TYPICAL_LONG_EXTENT) if isinstance(x, SizeParam) else x
        for index, x in einsum.extents.items()
    }
