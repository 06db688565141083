"""Limits of any device of a kind: the minimum and maximum time of an einsum.

The limits are per compute unit and generous: an order of magnitude above the fastest
hardware of the kind, caches included. Anything beyond them was not measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from feinsum.contraction.paths import find_contraction_steps
from feinsum.dtypes import get_eps, is_half
from feinsum.ir import BatchedEinsum, get_nodes
from feinsum.records.environment import Device, DeviceKind

MAX_UNITS = 2**20
"""More compute units than any device has."""

SLOWEST_OPERATION_S = 1e-6
"""Maximum seconds of any device for one multiplication and its memory accesses."""

MAX_SEARCHED = 6
"""Maximum operands for which the cheapest order is searched.

The search is exponential, and senders choose the number of operands.
"""

OVERHEAD_S = 60.0
"""Maximum seconds of a kernel launch, however busy the machine is."""

_HUGE = 10**30
"""Counts are capped far above realistic values, so that they fit a float."""


@dataclass(frozen=True)
class Capability:
    """The limits of a device.

    Attributes:
        bytes_per_s: moved, from whatever memory.
        operation_bytes_per_s: operations times the size of their numbers in bytes: half
            the precision, twice the operations.
    """

    bytes_per_s: float
    operation_bytes_per_s: float

    def operations_per_s(self, itemsize: int) -> float:
        return self.operation_bytes_per_s / itemsize

    def seconds(self, work: Work) -> float:
        """Return the minimum time for some work."""
        return max(
            work.n_bytes / self.bytes_per_s,
            work.operation_bytes / self.operation_bytes_per_s,
        )


@dataclass(frozen=True)
class Work:
    """The minimum work to evaluate an einsum.

    Attributes:
        n_bytes: entries that are read or written, each once.
        operation_bytes: multiplications, each times the bytes of its result.
    """

    n_bytes: int
    operation_bytes: int


PER_UNIT: dict[DeviceKind, Capability] = {
    "cpu": Capability(4e12, 3e13),
    "gpu": Capability(4e13, 2e15),
    "accelerator": Capability(4e14, 2e17),
    "other": Capability(4e14, 2e17),
}
"""A core with two units of 64 bytes for multiply-adds does 6e12 at 6 GHz; a
multiprocessor of a GPU with matrix units 1e14; an accelerator may be one unit."""


def get_capability(device: Device) -> Capability:
    """Return the limits of a device of this kind with this many units."""
    # The number of units is stated by the sender, so it is bounded.
    n_units = min(max(device.compute_units, 1), MAX_UNITS)
    unit = PER_UNIT[device.kind]
    return Capability(n_units * unit.bytes_per_s, n_units * unit.operation_bytes_per_s)


def compute_least_work(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Work:
    """Return the minimum work of any evaluation of the einsum, on any device.

    Each entry is touched once. A product of two operands takes a multiplication for
    each tuple of the indices that remain after indices of a single operand are summed;
    with more operands, at least half of the operations of the cheapest order are
    multiplications. Every entry of a sparse operand is read, and multiplied once; only
    the entries of other operands that it meets count.

    The tighter bounds of :mod:`feinsum.bounds` need sizes and bandwidths of caches,
    which come from the sender.

    >>> from feinsum.ir import array, einsum
    >>> e = einsum("ij,jk->ik", array("A", ("M", 3)), array("B", (3, 4)))
    >>> compute_least_work(e, {"M": 2})
    Work(n_bytes=208, operation_bytes=192)
    """
    if nodes := get_nodes(einsum, sizes):
        itemsize = einsum.output_dtypes[0].itemsize
        n_bytes = nodes[-1] * itemsize
        return Work(min(n_bytes, _HUGE), min(n_bytes, _HUGE))
    extents = einsum.extents_at(sizes)
    item_bytes = sum(dtype.itemsize for dtype in einsum.output_dtypes)
    n_result_bytes = _count(einsum.output, extents) * item_bytes
    if einsum.sparse_position is not None:
        has_pattern = any(op.storage == "csf=" for op in einsum.operands)
        return Work(0 if has_pattern else min(n_result_bytes, _HUGE), 0)
    # An array that several rows read is counted once: a cache may hold it.
    touched: dict[str, int] = {}
    for row in einsum.rows:
        for term, operand in zip(einsum.inputs, row, strict=True):
            n_bytes = _count(term, extents) * operand.dtype.itemsize
            touched[operand.name] = max(n_bytes, touched.get(operand.name, 0))
    n_bytes = sum(touched.values()) + n_result_bytes
    n_pairs = _count_least_products(einsum, extents)
    itemsize = max(dtype.itemsize for dtype in einsum.output_dtypes)
    return Work(min(n_bytes, _HUGE), min(n_pairs * itemsize, _HUGE))


def _count_least_products(einsum: BatchedEinsum, extents: Mapping[str, int]) -> int:
    """Count the multiplications of one row; the other rows may be equal to it."""
    # The search for an order is not needed for two operands.
    if einsum.n_operands == 2:
        left_term, right_term = map(set, einsum.inputs)
        return _count((left_term & right_term) | set(einsum.output), extents)
    if not 2 < einsum.n_operands <= MAX_SEARCHED:
        return 0  # without a known bound, nothing is refused
    steps = find_contraction_steps(einsum.inputs, einsum.output, tuple(extents.items()))
    return sum(step.n_operations for step in steps[einsum.n_operands :]) // 2


def estimate_slowest_s(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> float:
    """Return the maximum seconds of a kernel that multiplies all operands at once."""
    n_tuples = count_products(einsum, einsum.indices, sizes)
    n_operations = min(n_tuples * einsum.batch_size * einsum.n_operands, _HUGE)
    return OVERHEAD_S + n_operations * SLOWEST_OPERATION_S


def compute_least_tolerance(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> float:
    """Return the rounding error of a sum of all products, in the coarsest dtype."""
    n_terms = min(count_products(einsum, einsum.summation_indices, sizes), _HUGE)
    inexact = [
        dtype if is_half(dtype) else np.result_type(dtype, np.float16)
        for dtype in einsum.output_dtypes
    ]
    return max(map(get_eps, inexact)) * n_terms


def count_products(
    einsum: BatchedEinsum, indices: Iterable[str], sizes: Mapping[str, int]
) -> int:
    """Count the tuples of indices; those of a tree at most as often as it has entries.

    >>> from feinsum.ir import array, einsum, sparse_array
    >>> e = einsum("ij,jk->ik", sparse_array("A", ("M", 9)), array("B", (9, 4)))
    >>> count_products(e, "ijk", {"M": 9, "nodes.0": 9, "nodes.1": 20})
    80
    """
    extents, chosen = einsum.extents_at(sizes), set(indices)
    nodes = get_nodes(einsum, sizes)
    if not nodes:
        return _count(chosen, extents)
    stored = set(einsum.inputs[einsum.sparse_position or 0])
    return _count(chosen - stored, extents) * min(
        nodes[-1], _count(chosen & stored, extents)
    )


def _count(indices: Iterable[str], extents: Mapping[str, int]) -> int:
    """Return how many tuples distinct indices have."""
    return prod(extents[index] for index in set(indices))
