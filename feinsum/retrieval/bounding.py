"""Lower bounds of einsums on a device, with its measured limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from feinsum.bounds import Bound, MemoryLevel, bound_at, levels_of
from feinsum.db import Database, opened_store
from feinsum.errors import MeasurementError
from feinsum.ir import (
    BatchedEinsum,
    FunctionalBatchedEinsum,
    require_dense,
    require_einsum,
)
from feinsum.measure import einsum_operations
from feinsum.records import DevicePeaks, operations_s
from feinsum.targets.devices import open_device

__all__ = ["bound", "bound_on"]


def bound(
    einsum: BatchedEinsum | FunctionalBatchedEinsum,
    sizes: Mapping[str, int] | None = None,
    *,
    levels: Sequence[MemoryLevel] | None = None,
    device: str | None = None,
    database: Database = None,
) -> Bound:
    """What an einsum costs at least, at every level of the memory.

    Per level: bytes that any execution moves, the least time, and the tile that attains
    it. No bytes are fewer than all arrays once. An einsum of several operands is
    bounded by the least over the orders and fusions of its products that are
    considered; the result names them.

    Args:
        sizes: the value of every size parameter.
        levels: of the memory, the nearest first; by default those of the device.
        device: part of a name, see :func:`feinsum.measure.open_device`.
        database: where the measured limits of the device are. Without them no times are
            known; ``feinsum devices --measure`` measures them.

    Raises:
        BoundError: if a size has no value, or the nearest memory cannot hold what one
            step needs.

    Source: Ziogas et al., *Deinsum*, section IV; see ``docs/explanation/bounds.md``.

    >>> import feinsum
    >>> from feinsum.bounds import MemoryLevel
    >>> A, B = feinsum.array("A", (1000, 1000)), feinsum.array("B", (1000, 1000))
    >>> levels = [MemoryLevel("cache", 80_000), MemoryLevel("memory", None, 1, 32e9)]
    >>> found = feinsum.bound(feinsum.einsum("ij,jk->ik", A, B), levels=levels)
    >>> found.level("memory").n_bytes, dict(found.level("memory").tile)
    (159840228, {'i': 100, 'k': 100, 'j': 100})
    >>> found.compulsory_bytes, found.limit, round(found.seconds * 1e3, 3)
    (24000000, 'memory', 4.995)
    """
    if not isinstance(einsum, FunctionalBatchedEinsum):
        require_dense(require_einsum(einsum))
    if levels is not None:
        return bound_at(einsum, sizes or {}, levels)
    opened = open_device(device)
    with opened_store(database, has_shipped=True) as store:
        peaks = store.peaks(opened.device.id)
    return bound_on(einsum, sizes or {}, levels_of(opened.device, peaks), peaks)


def bound_on(
    einsum: BatchedEinsum | FunctionalBatchedEinsum,
    sizes: Mapping[str, int],
    levels: Sequence[MemoryLevel],
    peaks: DevicePeaks | None,
) -> Bound:
    """The bound for levels and the measured limits of what computes."""
    plain = einsum.einsum if isinstance(einsum, FunctionalBatchedEinsum) else einsum
    found = bound_at(einsum, sizes, levels)
    if peaks is None:
        return found
    try:
        least_s = operations_s(einsum_operations(plain, sizes), peaks)
    except MeasurementError:  # a dtype whose rate was not measured
        return found
    return found.with_operations(least_s)
