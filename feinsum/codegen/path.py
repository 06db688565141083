"""Contraction paths: in which order to multiply more than two operands."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TypeAlias

import numpy as np

from feinsum.errors import InvalidEinsumError
from feinsum.ir import BatchedEinsum, SizeParam
from feinsum.ir.paths import Path, find_path, path_outputs

__all__ = ["ContractionPath", "check_path", "contraction_path", "intermediate_bytes"]

ContractionPath: TypeAlias = Path

TYPICAL_LONG_EXTENT = 10_000
"""What a size parameter counts as when the cost of a path is estimated."""


def contraction_path(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    *,
    max_bytes: int | None = None,
) -> ContractionPath:
    """The order with the fewest operations, see :func:`feinsum.ir.paths.find_path`.

    Args:
        einsum: the computation; its rows share the path.
        sizes: values of size parameters; missing ones count as long.
        max_bytes: of all products ahead of the results together. A step may take
            more than two arrays then, and the last one all that are left.

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
    n_products = max(einsum.n_operands - 2, 1)
    most = max_bytes // (einsum.batch_size * _itemsize(einsum))
    for max_entries in (most, most // n_products):
        path = find_path(einsum.inputs, einsum.output, extents, max_entries=max_entries)
        if intermediate_bytes(einsum, path, sizes) <= max_bytes:
            return path
    return (tuple(range(einsum.n_operands)),)


def intermediate_bytes(
    einsum: BatchedEinsum,
    path: ContractionPath,
    sizes: Mapping[str, int] | None = None,
) -> int:
    """Of all products ahead of the results, in which entries are as in the results."""
    extents = _extents(einsum, sizes or {})
    products = path_outputs(einsum.inputs, einsum.output, path)[:-1]
    entries = sum(prod(extents[index] for index in term) for term in products)
    return entries * einsum.batch_size * _itemsize(einsum)


def _itemsize(einsum: BatchedEinsum) -> int:
    return np.result_type(*(op.dtype for op in einsum.operands)).itemsize


def _extents(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> dict[str, int]:
    return {
        index: sizes.get(x.name, TYPICAL_LONG_EXTENT) if isinstance(x, SizeParam) else x
        for index, x in einsum.extents.items()
    }


def check_path(einsum: BatchedEinsum, path: ContractionPath) -> None:
    """Refuse a path that does not end with one array.

    Raises:
        InvalidEinsumError: with the rule ``path``.
    """
    left = einsum.n_operands
    for step in path:
        if (
            not step
            or len(set(step)) != len(step)
            or not all(0 <= p < left for p in step)
        ):
            raise InvalidEinsumError(
                f"contraction path {path}: step {step} does not name distinct "
                f"positions among the {left} arrays left",
                rules=("path",),
            )
        left += 1 - len(step)
    if left != 1:
        raise InvalidEinsumError(
            f"contraction path {path} leaves {left} arrays; it must leave one",
            rules=("path",),
        )
