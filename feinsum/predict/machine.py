"""Machine models of devices, without and with measured limits."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from constantdict import constantdict

from feinsum.records import Device, DevicePeaks, Processor
from feinsum.transforms.cost import LEVELS, Gpu, Machine

__all__ = ["machine_of"]

WIDE_UNITS = {"zen5", "skylake_avx512", "cascadelake", "icelake", "sapphirerapids"}
"""Microarchitectures that begin two multiply-adds of 64 bytes in a cycle."""
CYCLES_PER_S = 3.4e9
"""Clock of a server core under load. Virtual machines hide theirs."""


def machine_of(device: Device, peaks: DevicePeaks | None = None) -> Machine:
    """The machine model for costs; measured limits override typical values.

    For GPUs of other vendors than NVIDIA, typical figures are used.

    >>> cpu = Device("host", "a CPU", "", "cpu", "x86_64", 4)
    >>> machine_of(cpu).n_cores
    4
    """
    if device.kind == "gpu":
        return Machine(gpu=_gpu(device, peaks))
    machine = Machine(n_cores=max(device.compute_units, 1), cycles_per_s=CYCLES_PER_S)
    if device.processor is not None:
        machine = _with_processor(machine, device.processor)
    if peaks is None:
        return machine
    return replace(machine, bandwidth_bytes_per_s=peaks.bandwidth_bytes_per_s)


class _PerMultiprocessor(NamedTuple):
    """Figures of a compute capability, for each multiprocessor.

    Attributes:
        bandwidth, cache_bytes: its share, of what its usual GPU has.
        single, double: multiply-adds in a cycle.
        matrices: the same of doubles in products of matrices.
    """

    cycles_per_s: float
    bandwidth: float
    cache_bytes: int
    single: float
    double: float
    matrices: float


_KNOWN = {
    70: _PerMultiprocessor(1.53e9, 900e9 / 80, (6 << 20) // 80, 64, 32, 32),
    75: _PerMultiprocessor(1.59e9, 320e9 / 40, (4 << 20) // 40, 64, 2, 2),
    80: _PerMultiprocessor(1.41e9, 1555e9 / 108, (40 << 20) // 108, 64, 32, 64),
    86: _PerMultiprocessor(1.70e9, 936e9 / 82, (6 << 20) // 82, 128, 2, 2),
    89: _PerMultiprocessor(2.52e9, 1008e9 / 128, (72 << 20) // 128, 128, 2, 2),
    90: _PerMultiprocessor(1.75e9, 3350e9 / 132, (50 << 20) // 132, 128, 64, 128),
    100: _PerMultiprocessor(1.85e9, 8000e9 / 148, (126 << 20) // 148, 128, 64, 64),
    120: _PerMultiprocessor(2.41e9, 1792e9 / 170, (96 << 20) // 170, 128, 2, 2),
}
"""V100, T4, A100, RTX 3090, RTX 4090, H100 SXM, B200, RTX 5090.

Source: NVIDIA, data sheets and CUDA C++ Programming Guide, arithmetic instructions.
"""
_USUAL = 80


def _gpu(device: Device, peaks: DevicePeaks | None) -> Gpu:
    word, _, number = device.architecture.partition("_")
    is_known = word == "sm" and number.isdecimal() and int(number) >= min(_KNOWN)
    capability = int(number) if is_known else _USUAL
    each = _KNOWN[max(known for known in _KNOWN if known <= capability)]
    n_units = max(device.compute_units, 1)
    bandwidth = n_units * each.bandwidth
    rates = {4: each.single, 8: each.double}
    matrices = each.matrices if is_known else each.double  # OpenCL has none of these
    if peaks is not None:
        bandwidth = peaks.bandwidth_bytes_per_s
        cycles = 2 * n_units * each.cycles_per_s
        rates |= {
            np.dtype(dtype).itemsize: rate / cycles
            for dtype, rate in peaks.operations_per_s.items()
        }
    return Gpu(
        capability,
        n_units,
        each.cycles_per_s,
        bandwidth,
        n_units * each.cache_bytes,
        constantdict(rates),
        constantdict({4: rates[4], 8: max(rates[8], matrices)}),
    )


def _with_processor(machine: Machine, processor: Processor) -> Machine:
    vector_bytes = processor.vector_bytes
    is_wide = vector_bytes >= 64
    has_wide_units = is_wide and processor.microarchitecture in WIDE_UNITS
    caches = {
        level: processor.cache_bytes.get(level, machine.cache_bytes[level])
        for level in LEVELS
    }
    return replace(
        machine,
        vector_bytes=vector_bytes,
        fma_bytes=128 if has_wide_units else 2 * min(vector_bytes, 32),
        cache_bytes=constantdict(caches),
    )
