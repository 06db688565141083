"""What is known of a device without a measurement, and with one."""

from __future__ import annotations

from dataclasses import replace

from constantdict import constantdict

from feinsum.records import Device, DevicePeaks, Processor
from feinsum.transforms.cost import LEVELS, Machine

__all__ = ["machine_of"]

WIDE_UNITS = {"zen5", "skylake_avx512", "cascadelake", "icelake", "sapphirerapids"}
"""Microarchitectures that begin two multiply-adds of 64 bytes in a cycle."""
CYCLES_PER_S = 3.4e9
"""Of a core of a server under load. Virtual machines hide theirs."""


def machine_of(device: Device, peaks: DevicePeaks | None = None) -> Machine:
    """What costs are computed with; measured limits go before what is usual.

    >>> cpu = Device("host", "a CPU", "", "cpu", "x86_64", 4)
    >>> machine_of(cpu).n_cores
    4
    """
    machine = Machine(n_cores=max(device.compute_units, 1), cycles_per_s=CYCLES_PER_S)
    if device.processor is not None:
        machine = _with_processor(machine, device.processor)
    if peaks is None:
        return machine
    return replace(machine, bandwidth_bytes_per_s=peaks.bandwidth_bytes_per_s)


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
