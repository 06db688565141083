"""Models of devices, with or without measured limits."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from constantdict import constantdict

from feinsum.machine import LEVELS, Gpu, MachineModel
from feinsum.records import Device, DevicePeaks, Processor
from feinsum.records.environment import CUDA_PLATFORM

WIDE_UNITS = {"zen5", "skylake_avx512", "cascadelake", "icelake", "sapphirerapids"}
"""Microarchitectures that issue two multiply-adds of 64 bytes in a cycle."""


def model_machine(device: Device, peaks: DevicePeaks | None = None) -> MachineModel:
    """Return the model of a device for costs; measured limits override typical values.

    GPUs of other vendors than NVIDIA get typical figures.

    >>> cpu = Device("host", "a CPU", "", "cpu", "x86_64", 4)
    >>> model_machine(cpu).n_cores
    4
    """
    if device.kind == "gpu":
        return MachineModel(gpu=_model_gpu(device, peaks))
    # the clock rate of a server core under load, which virtual machines do not report
    machine = MachineModel(n_cores=max(device.compute_units, 1), cycles_per_s=3.4e9)
    if device.processor is not None:
        machine = _with_processor(machine, device.processor)
    if peaks is None:
        return machine
    return replace(machine, bandwidth_bytes_per_s=peaks.bandwidth_bytes_per_s)


class _Usual(NamedTuple):
    """Figures of the usual GPU of a compute capability.

    Attributes:
        n_units: number of multiprocessors.
        cycles_per_s: clock rate.
        bandwidth: bytes that all multiprocessors read from memory per second.
        cache_bytes: size of the last-level cache.
        single: multiply-adds of a multiprocessor in a cycle, in single precision.
        double: the same in double precision.
        matrices: the same in double precision, in matrix products.
        half_matrices: the same in half precision, with sums in single precision.
    """

    n_units: int
    cycles_per_s: float
    bandwidth: float
    cache_bytes: int
    single: float
    double: float
    matrices: float
    half_matrices: float


_FIGURES_OF = {
    70: _Usual(80, 1.53e9, 900e9, 6 << 20, 64, 32, 32, 512),
    75: _Usual(40, 1.59e9, 320e9, 4 << 20, 64, 2, 2, 512),
    80: _Usual(108, 1.41e9, 1555e9, 40 << 20, 64, 32, 64, 1024),
    86: _Usual(82, 1.70e9, 936e9, 6 << 20, 128, 2, 2, 256),
    89: _Usual(128, 2.52e9, 1008e9, 72 << 20, 128, 2, 2, 256),
    90: _Usual(132, 1.75e9, 3350e9, 50 << 20, 128, 64, 128, 2048),
    100: _Usual(148, 1.85e9, 8000e9, 126 << 20, 128, 64, 64, 4096),
    120: _Usual(170, 2.41e9, 1792e9, 96 << 20, 128, 2, 2, 256),
}
"""V100, T4, A100, RTX 3090, RTX 4090, H100 SXM, B200, RTX 5090.

Source: NVIDIA, data sheets and CUDA C++ Programming Guide, arithmetic instructions.
"""
_DEFAULT = 80


def get_usual_gpu(architecture: str) -> Device:
    """Return the usual GPU of an architecture such as ``sm_90``, or the next older one.

    >>> get_usual_gpu("sm_87").compute_units
    82
    """
    n_units = _get_figures(_parse_capability(architecture) or _DEFAULT).n_units
    vendor = "NVIDIA Corporation"
    return Device(CUDA_PLATFORM, "a GPU", vendor, "gpu", architecture, n_units)


def _parse_capability(architecture: str) -> int | None:
    """Parse a compute capability; None if it is none of NVIDIA's, or too old."""
    word, _, number = architecture.partition("_")
    is_known = word == "sm" and number.isdecimal() and int(number) >= min(_FIGURES_OF)
    return int(number) if is_known else None


def _get_figures(capability: int) -> _Usual:
    return _FIGURES_OF[max(older for older in _FIGURES_OF if older <= capability)]


def _model_gpu(device: Device, peaks: DevicePeaks | None) -> Gpu:
    own_capability = _parse_capability(device.architecture)
    capability = own_capability or _DEFAULT
    usual = _get_figures(capability)
    n_units = max(device.compute_units, 1)
    # the bandwidth is about proportional to the number of multiprocessors
    bandwidth = n_units * (usual.bandwidth / usual.n_units)
    rates = {4: usual.single, 8: usual.double}
    # OpenCL has no products on tensor cores
    matrices, half_matrices = (
        (usual.matrices, usual.half_matrices)
        if own_capability
        else (usual.double, usual.single)
    )
    if peaks is not None:
        bandwidth = peaks.bandwidth_bytes_per_s
        cycles = 2 * n_units * usual.cycles_per_s
        rates |= {
            np.dtype(dtype).itemsize: rate / cycles
            for dtype, rate in peaks.operations_per_s.items()
        }
    return Gpu(
        capability,
        n_units,
        usual.cycles_per_s,
        bandwidth,
        n_units * (usual.cache_bytes // usual.n_units),
        constantdict(rates),
        constantdict({2: half_matrices, 4: rates[4], 8: max(rates[8], matrices)}),
    )


def _with_processor(machine: MachineModel, processor: Processor) -> MachineModel:
    vector_bytes = processor.vector_bytes
    is_wide = vector_bytes >= 64
    # other processors split a vector of 64 bytes into two halves
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
