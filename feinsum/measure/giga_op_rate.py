"""Rates in giga-operations per second, the paper's figure of merit."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from feinsum.errors import MeasurementError
from feinsum.ir import BatchedEinsum
from feinsum.measure.reference import einsum_operations
from feinsum.measure.timing import timeit
from feinsum.targets.layout import bind_sizes_of, entry_kernel
from feinsum.targets.protocol import OpenDevice

__all__ = ["measure_giga_op_rate"]


def measure_giga_op_rate(
    t_unit: Any,
    einsum: BatchedEinsum,
    arguments: Mapping[str, Any],
    *,
    device: OpenDevice | str | None = None,
    sizes: Mapping[str, int] | None = None,
    rounds: int = 20,
    warmup: int = 5,
    min_total_s: float = 0.05,
    max_total_s: float = 30.0,
) -> dict[str, float]:
    """Measure the operations of ``einsum`` per median time of ``t_unit``, by dtype.

    Args:
        t_unit: a kernel that computes ``einsum``.
        einsum: the einsum to count, see :mod:`feinsum.measure.counts`; unnecessary work
            of the kernel does not count.
        arguments: sizes or arguments of the kernel, see :func:`timeit`.
        sizes: values of the size parameters of ``einsum``; by default the sizes of the
            kernel with the same names.
        rounds, warmup, min_total_s, max_total_s: as for :func:`timeit`.

    Returns:
        Giga-operations per second for each dtype text.

    Raises:
        MeasurementError: if a size parameter has no value.
    """
    known = bind_sizes_of(entry_kernel(t_unit), arguments)
    known = {**known, **(sizes or {})}
    needed = [param.name for param in einsum.size_params]
    if missing := [name for name in needed if name not in known]:
        raise MeasurementError(f"sizes {missing} of the einsum have no value: {known}")
    operations = einsum_operations(einsum, {name: known[name] for name in needed})
    samples = timeit(
        t_unit,
        arguments,
        device=device,
        rounds=rounds,
        warmup=warmup,
        min_total_s=min_total_s,
        max_total_s=max_total_s,
    )
    seconds = median(samples)
    return {dtype: count / seconds * 1e-9 for dtype, count in operations.items()}
