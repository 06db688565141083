"""A quick estimate of the speed-up of a recipe over the untransformed kernel.

The tuner takes seconds to measure for a record. Here the question is only whether a
recommended recipe pays off on this machine, which has to be answered in a fraction of a
second: on arrays of a few megabytes, with few runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import log2, prod

from constantdict import constantdict

from feinsum.ir import BatchedEinsum, profile_names
from feinsum.measure.cases import (
    Case,
    pairwise_baseline,
    posed_case,
)
from feinsum.measure.kernel import CompiledKernel, compile_kernel
from feinsum.measure.race import Race
from feinsum.measure.reference import MANY_TIMES, einsum_operations, footprint_bytes
from feinsum.nests import sizes_at
from feinsum.records.capability import n_products
from feinsum.targets.protocol import OpenDevice
from feinsum.transforms.nests import usual_sizes

__all__ = ["built_baseline", "quick_sizes", "race_of"]

QUICK_BYTES = 1 << 25
"""Most bytes of all arrays."""
QUICK_OPERATIONS = 50_000_000
"""Most operations of the untransformed kernel, which does about 1e9 per second."""
LONGEST = 1 << 20
"""Largest value for an unknown extent."""


def quick_sizes(einsum: BatchedEinsum, known: Mapping[str, int]) -> dict[str, int]:
    """Sizes for timing an einsum: near those of a kernel, or as large as allowed.

    They are powers of two, so that kernels of about the same size share an answer.

    >>> from feinsum.ir import array, einsum
    >>> matvec = einsum("ij,j->i", array("A", ("n", 4)), array("x", 4))
    >>> quick_sizes(matvec, {"n": 1000}), quick_sizes(matvec, {})
    ({'n': 1024}, {'n': 524288})
    """
    if einsum.sparse_position is not None:
        return _quick_sparse_sizes(einsum, known)
    sizes = {
        x.name: 1 << max(0, round(log2(known[x.name])))
        if known.get(x.name, 0) > 0
        else LONGEST
        for x in einsum.size_params
    }
    while _is_long(einsum, sizes) and any(size > 1 for size in sizes.values()):
        longest = max(sizes, key=lambda name: sizes[name])
        sizes[longest] //= 2
    return sizes


def _quick_sparse_sizes(
    einsum: BatchedEinsum, known: Mapping[str, int]
) -> dict[str, int]:
    """Those of a kernel, all of them divided by one power of two if they are large.

    They are powers of two, as far as a tree can have such a profile.
    """
    sizes = {
        name: 1 << max(0, round(log2(n)))
        for name, n in usual_sizes(einsum, known).items()
    }
    while _is_large(einsum, sizes) and max(sizes.values()) > 1:
        sizes = {name: max(1, n // 2) for name, n in sizes.items()}
    position = einsum.sparse_position or 0
    shape = [sizes_at(einsum, sizes).extents[i] for i in einsum.inputs[position]]
    above = 1
    for name, extent in zip(profile_names(einsum), shape, strict=True):
        least = 1 if above == 1 else above
        above = sizes[name] = min(max(sizes[name], least), above * extent)
    return sizes


def _is_large(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> bool:
    n_operations = n_products(einsum, einsum.indices, sizes) * einsum.n_operands
    n_bytes = footprint_bytes(einsum, sizes)
    return n_bytes > QUICK_BYTES or n_operations > QUICK_OPERATIONS


def race_of(
    compiled: CompiledKernel, case: Case, sizes: Mapping[str, int], opened: OpenDevice
) -> Race:
    """The race between a recipe and the untransformed kernel at given sizes.

    Args:
        compiled: the kernel with the recipe, of the einsum of ``case``.
        sizes: values of the size parameters of that einsum.

    Raises:
        BuildError: if the untransformed kernel cannot be built.
    """
    posed = posed_case(case.einsum, sizes)
    plain = built_baseline(case.einsum, constantdict(sizes), opened)
    baseline = plain.bind(posed.arguments)
    kernel = compiled.bind(posed.arguments).sharing(baseline)
    # results of both kernels are rounded
    return Race(kernel, baseline, sizes, 2 * posed.tolerance)


@lru_cache(maxsize=4)
def built_baseline(
    einsum: BatchedEinsum, sizes: Mapping[str, int], opened: OpenDevice
) -> CompiledKernel:
    """The untransformed kernel, built once for all recipes of an einsum.

    Raises:
        BuildError, MeasurementError: if it cannot be.
    """
    posed = posed_case(einsum, sizes)
    return compile_kernel(pairwise_baseline(posed) or posed.t_unit, opened)


def _is_long(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> bool:
    if footprint_bytes(einsum, sizes) > QUICK_BYTES:
        return True
    n_points = prod(einsum.extents_at(sizes).values())
    if n_points * einsum.n_operands * einsum.batch_size <= QUICK_OPERATIONS:
        return False
    n_least = sum(einsum_operations(einsum, sizes).values())
    # one nest with more operations than that is replaced by pairwise steps
    return MANY_TIMES * n_least > QUICK_OPERATIONS or not n_least
