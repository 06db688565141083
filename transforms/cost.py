"""What cost models count: index tuples, bytes of arrays, padding.

Costs rank recipes; they need not be accurate. A family counts the cycles of its loops
and the bytes that it moves; :func:`feinsum.machine.estimate_region_s` converts them to
seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from feinsum.ir import BatchedEinsum, IndexList
from feinsum.machine import LEVELS as LEVELS
from feinsum.machine import Gpu as Gpu
from feinsum.machine import MachineModel as MachineModel
from feinsum.machine import estimate_region_s as estimate_region_s


@dataclass(frozen=True)
class SizedEinsum(BatchedEinsum):
    """An einsum with numbers for all extents.

    Attributes:
        at_run_time: the indices whose extents a kernel learns only at run time. Their
            tiles have a fixed size; other indices are cut into tiles of about equal
            size.
    """

    at_run_time: frozenset[str] = frozenset()

    __hash__ = BatchedEinsum.__hash__


def compute_padding(extent: int, unit: int) -> float:
    """Return the work of a loop over whole tiles, relative to that of its extent.

    >>> compute_padding(20, 16)
    1.6
    """
    return -(-extent // unit) * unit / max(extent, 1)


def count_points(einsum: BatchedEinsum, indices: Iterable[str]) -> int:
    """Count the index tuples of an einsum whose extents are all known."""
    return prod(_get_extent(einsum, index) for index in indices)


def _get_extent(einsum: BatchedEinsum, index: str) -> int:
    extent = einsum.extents[index]
    assert isinstance(extent, int), f"{index} has no known extent"
    return extent


def count_distinct_bytes(einsum: BatchedEinsum) -> tuple[int, int]:
    """Return the bytes of all distinct operands, and those of all results."""
    seen: dict[tuple[str, IndexList], int] = {}
    for row in einsum.rows:
        for operand, term in zip(row, einsum.inputs, strict=True):
            n = count_points(einsum, dict.fromkeys(term)) * operand.dtype.itemsize
            seen[operand.name, term] = n
    n_results = count_points(einsum, einsum.output)
    written = sum(n_results * dtype.itemsize for dtype in einsum.output_dtypes)
    return sum(seen.values()), written
