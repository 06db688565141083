"""Rooflines: the minimum time that the measured limits of a device allow.

A ladder of kernels, the triad with more and more multiply-adds, measures the limits'
corner; Gop/s is the paper's figure of merit::

    op/s |          ,---------   peak: operations_per_s
         |        ,'
         |      ,'               slope: bandwidth_bytes_per_s
         |    ,'
         +---------------------  operations per byte
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from feinsum.errors import MeasurementError, WrongResultError
from feinsum.ir import BatchedEinsum, WorkloadLike
from feinsum.measure.peaks import (
    CHAINS,
    CTYPES,
    choose_triad_array_bytes,
    get_vector_type,
)
from feinsum.measure.reference import count_operations, make_reference
from feinsum.measure.timing import interleave, timeit
from feinsum.records import DevicePeaks, compute_quartiles
from feinsum.records import compute_roofline_s as compute_roofline_s
from feinsum.targets.layout import Layout, bind_sizes_of, get_entry_kernel
from feinsum.targets.protocol import OpenDevice, SourceKernel, Timer


@dataclass(frozen=True)
class MinimumWork:
    """The minimum work: operations by dtype, and bytes to move."""

    operations: Mapping[str, int]
    footprint_bytes: int

    @classmethod
    def of(cls, einsum: WorkloadLike, sizes: Mapping[str, int]) -> MinimumWork:
        """Count the work of an einsum."""
        reference = make_reference(einsum)
        return cls(reference.operations(sizes), reference.footprint_bytes(sizes))

    @property
    def n_operations(self) -> int:
        return sum(self.operations.values())

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.n_operations / self.footprint_bytes

    def bound(self, peaks: DevicePeaks) -> float:
        """Return the operations per second that the roofline allows."""
        seconds = compute_roofline_s(self.operations, self.footprint_bytes, peaks)
        return self.n_operations / seconds


def compute_roofline_fraction(
    measured_s: float,
    operations: Mapping[str, int],
    footprint_bytes: int,
    peaks: DevicePeaks,
) -> float:
    """Divide the roofline time by the measured one; 1 for a kernel at the limit.

    Above 1 if the data stay in caches, which are faster than main memory.
    """
    return compute_roofline_s(operations, footprint_bytes, peaks) / measured_s


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
        einsum: the einsum to count, see :mod:`feinsum.measure.reference`; unnecessary
            work of the kernel does not count.
        arguments: sizes or arguments of the kernel, see :func:`timeit`.
        device: as for :func:`timeit`.
        sizes: values of the size parameters of ``einsum``; by default the sizes of the
            kernel with the same names.
        rounds: as for :func:`timeit`.
        warmup: as for :func:`timeit`.
        min_total_s: as for :func:`timeit`.
        max_total_s: as for :func:`timeit`.

    Returns:
        Giga-operations per second for each dtype text.

    Raises:
        MeasurementError: if a size parameter has no value.
    """
    values = bind_sizes_of(get_entry_kernel(t_unit), arguments)
    values = {**values, **(sizes or {})}
    needed = [param.name for param in einsum.size_params]
    if missing := [name for name in needed if name not in values]:
        raise MeasurementError(f"sizes {missing} of the einsum have no value: {values}")
    operations = count_operations(einsum, {name: values[name] for name in needed})
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


STEPS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Numbers of multiply-adds per loaded pair of entries."""

# As in the peaks; work-groups of 64 suit every GPU.
_WIDTHS = (1, 2, 4, 8)

_LOCAL = 64

_BLOCK = CHAINS * _LOCAL * max(_WIDTHS)

_S, _A, _T = 3.0, 0.999, 0.001

# Each work-item has eight vectors under way. On a CPU they are neighbours; elsewhere
# they are a work-group's length apart, so that neighbouring work-items load neighbours.
# Multiply-adds are contracted by the compiler, as in the peaks.
_RUNG = """
#ifdef __OPENCL_VERSION__
#pragma OPENCL FP_CONTRACT ON
#endif
KERNEL(rung, __global {T} *restrict out, __global const {T} *restrict b,
       __global const {T} *restrict c, {S} s, {S} a, {S} t, uint n) {{
    size_t at = {at};
    {T} va = SPLAT({T}, a), vt = SPLAT({T}, t);
    {load}
    for (uint k = 1; k < n; ++k) {{ {step} }}
    {store}
}}
"""


@dataclass(frozen=True)
class Rung:
    """The result of a kernel with one arithmetic intensity.

    Attributes:
        n_steps: multiply-adds, of two operations each, on two loaded entries
            before the result is stored.
        samples_s: one time per round, in seconds.
    """

    n_steps: int
    work: MinimumWork
    samples_s: tuple[float, ...]

    @property
    def operations_per_s(self) -> float:
        """Operations per second at the median time."""
        return self.work.n_operations / median(self.samples_s)

    @property
    def spread(self) -> tuple[float, float]:
        """Operations per second at the upper and the lower quartile of the times."""
        quartiles_s = compute_quartiles(self.samples_s)
        n = self.work.n_operations
        return n / quartiles_s.high, n / quartiles_s.low


def measure_ladder(
    opened: OpenDevice,
    dtype: str = "<f8",
    steps: Sequence[int] = STEPS,
    *,
    array_bytes: int | None = None,
    rounds: int = 10,
    max_total_s: float = 10.0,
) -> tuple[Rung, ...]:
    """Measure how the rate rises with the arithmetic intensity until it saturates.

    A rung of k steps loads two arrays, does k multiply-adds on each pair of entries
    and stores a third array: the rung of one step is the triad of
    :func:`feinsum.measure.measure_peaks`. Every rung gets the vector width that is
    the fastest for it; then all run in turns. Results are checked.

    Args:
        opened: the device.
        dtype: ``<f8`` or ``<f4``.
        steps: the multiply-adds per pair of entries of each rung.
        array_bytes: of each array; :func:`choose_triad_array_bytes` by default.
        rounds: the minimum number of samples of a rung.
        max_total_s: of one rung; see :func:`feinsum.measure.interleave`.

    Raises:
        MeasurementError: for another dtype, or if the device fails or lacks it.
        WrongResultError: if a result is wrong.

    Source: paper, section 6, figure 3 (saturation of the arithmetic intensity).
    """
    has_dtype = dtype != "<f8" or opened.has_double
    if dtype not in CTYPES or not has_dtype:
        raise MeasurementError(
            f"no ladder of {dtype} on {opened.device}: expected one of "
            f"{sorted(CTYPES)} that the device computes with"
        )
    arrays = _Arrays.of(opened, dtype, array_bytes or choose_triad_array_bytes(opened))
    kernels = [_Kernel.of(arrays, width) for width in _WIDTHS]
    # Short rungs are limited by loads, long ones by registers: widths differ.
    rungs = [_choose_width(kernels, n_steps) for n_steps in steps]
    samples = interleave(
        rungs, rounds=rounds, warmup=1, min_total_s=0.0, max_total_s=max_total_s
    )
    for rung in rungs:
        rung.check()
    return tuple(
        Rung(rung.n_steps, rung.work, times)
        for rung, times in zip(rungs, samples, strict=True)
    )


def _choose_width(kernels: Sequence[_Kernel], n_steps: int) -> _Kernel:
    """Choose the vector width that is the fastest for a rung."""
    return min(
        (replace(kernel, n_steps=n_steps) for kernel in kernels),
        key=lambda rung: min(rung.run() for _ in range(2)),
    )


@dataclass(frozen=True)
class _Arrays:
    """The memory that all rungs share: ``b`` of ones, ``c`` of twos."""

    opened: OpenDevice
    layout: Layout
    buffers: tuple[Any, Any, Any]

    @classmethod
    def of(cls, opened: OpenDevice, dtype: str, array_bytes: int) -> _Arrays:
        kind = np.dtype(dtype)
        n_entries = max(1, array_bytes // (_BLOCK * kind.itemsize)) * _BLOCK
        layout = Layout((n_entries,), (1,), kind)
        out, b, c = (
            opened.upload(np.full(n_entries, value, kind), layout)
            for value in (np.nan, 1.0, 2.0)
        )
        return cls(opened, layout, (out, b, c))

    @property
    def n_bytes(self) -> int:
        return self.layout.n_entries * self.layout.dtype.itemsize

    def check(self, n_steps: int) -> None:
        """Compare the results with the closed form."""
        decay, fixed = _A ** (n_steps - 1), _T / (1 - _A)
        expected = decay * (1 + _S * 2) + (1 - decay) * fixed
        result = self.opened.download(self.buffers[0], self.layout)
        if not np.allclose(result, expected, rtol=1e-3, atol=0):
            raise WrongResultError(
                f"{n_steps} multiply-adds of {self.layout.dtype} give {result.min()} "
                f"to {result.max()}, expected {expected}"
            )


@dataclass(frozen=True)
class _Kernel:
    """A rung that can be timed; see :class:`feinsum.measure.timing.Timeable`."""

    arrays: _Arrays
    width: int
    kernel: SourceKernel
    n_steps: int = 1

    @classmethod
    def of(cls, arrays: _Arrays, width: int) -> _Kernel:
        is_cpu = arrays.opened.device.kind == "cpu"
        source = _write_source(arrays.layout.dtype.str, width, is_cpu)
        return cls(arrays, width, arrays.opened.program(source, "rung"))

    @property
    def work(self) -> MinimumWork:
        """The work: two operations per multiply-add, two arrays loaded, one stored."""
        layout = self.arrays.layout
        operations = {layout.dtype.str: 2 * self.n_steps * layout.n_entries}
        return MinimumWork(operations, 3 * self.arrays.n_bytes)

    @property
    def timer(self) -> Timer:
        return self.arrays.opened.timer

    def run(self, timer: Timer | None = None) -> float:
        layout = self.arrays.layout
        scalars = map(layout.dtype.type, (_S, _A, _T))
        arguments = (*self.arrays.buffers, *scalars, np.uint32(self.n_steps))
        n_items = layout.n_entries // (CHAINS * self.width)
        return self.kernel.run(arguments, n_items, _LOCAL, timer)

    def check(self) -> None:
        """Run once, and check the result."""
        self.run()
        self.arrays.check(self.n_steps)


def _write_source(dtype: str, width: int, is_cpu: bool) -> str:
    scalar = CTYPES[dtype]
    vector = get_vector_type(scalar, width)
    stride = 1 if is_cpu else _LOCAL
    chains = [(f"x{k}", f"at + {k * stride}") for k in range(CHAINS)]
    per_group = f"get_group_id(0) * {CHAINS * _LOCAL} + get_local_id(0)"
    return _RUNG.format(
        T=vector,
        S=scalar,
        at=f"get_global_id(0) * {CHAINS}" if is_cpu else per_group,
        load=" ".join(f"{vector} {x} = c[{at}] * s + b[{at}];" for x, at in chains),
        step=" ".join(f"{x} = {x} * va + vt;" for x, _ in chains),
        store=" ".join(f"out[{at}] = {x};" for x, at in chains),
    )
