"""The known levels of a device's memory.

For two cores with private caches, and a shared last-level cache::

    registers   2 x 2 KiB  ]
    L1          2 x 48 KiB ]  ahead of L3: two memories of 1.05 MiB in parallel
    L2          2 x 1 MiB  ]
    L3          1 x 32 MiB    ahead of the DRAM: one memory of 34.1 MiB
    DRAM
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from feinsum.bounds.finite import FastMemory
from feinsum.errors import BoundError, MeasurementError
from feinsum.records import Device, DevicePeaks, Measurement, compute_roofline_s
from feinsum.words import format_count

REGISTERS, DRAM = "registers", "DRAM"
CACHES = {"L1": "L1d", "L2": "L2", "L3": "L3"}
"""Levels between registers and DRAM, with the names in records of processors."""
SHARED = "L3"
CORES_PER_L3 = 4
"""Assumed number of cores that share a last-level cache. If more share it, the memory
ahead of the DRAM counts as larger than it is, and bounds remain valid.
"""
VECTOR_REGISTERS = (
    ("avx512f", 32 * 64),
    ("avx", 16 * 32),
    ("asimd", 32 * 16),
    ("sse2", 16 * 16),
)
"""Bytes of all vector registers of a core, by the feature that adds them."""


@dataclass(frozen=True)
class MemoryLevel:
    """A level of memory.

    Attributes:
        name: name of the level.
        n_bytes: size of one copy; None if large or unknown.
        n_copies: number of copies: one for each core, or fewer if cores share them.
        bandwidth_bytes_per_s: bandwidth to all cores together; None if not measured.
    """

    name: str
    n_bytes: int | None
    n_copies: int = 1
    bandwidth_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.n_bytes is not None and self.n_bytes < 0:
            raise BoundError(
                f"{self.name} has {format_count(self.n_bytes, 'byte')}; expected "
                "0 or more"
            )
        if self.n_copies < 1:
            raise BoundError(
                f"{self.name} has {self.n_copies} copies; expected 1 or more"
            )


def list_levels(
    device: Device, peaks: DevicePeaks | None = None
) -> tuple[MemoryLevel, ...]:
    """Return the memory levels of a device, from the registers to the memory.

    Sizes are those reported for the processor, or else the measured ones of ``peaks``,
    which are rather too large, so that bounds remain valid. Without either, only the
    memory is known. Bandwidths are measured ones.

    >>> from feinsum.records import Processor
    >>> processor = Processor("", 26, 2, 1, "zen5", ("avx", "avx512f"), 2,
    ...                       {"L1d": 48 << 10, "L2": 1 << 20, "L3": 32 << 20})
    >>> cpu = Device("Host", "a CPU", "", "cpu", "x86_64", 2, processor)
    >>> [(level.name, level.n_bytes, level.n_copies) for level in list_levels(cpu)][:2]
    [('registers', 2048, 2), ('L1', 49152, 2)]
    """
    measured = {} if peaks is None else dict(peaks.cache_bytes_per_s)
    measured = {name: rate for name, rate in measured.items() if rate > 0}
    n_cores = max(device.compute_units, 1)
    levels = []
    if device.processor is not None:
        features = device.processor.features
        sizes = [n for feature, n in VECTOR_REGISTERS if feature in features]
        if sizes:
            levels.append(MemoryLevel(REGISTERS, sizes[0], n_cores))
    for name, (n_bytes, n_copies) in _list_caches(device, peaks).items():
        levels.append(MemoryLevel(name, n_bytes, n_copies, measured.get(name)))
    bandwidth = None if peaks is None else peaks.bandwidth_bytes_per_s
    if bandwidth is not None and bandwidth <= 0:
        bandwidth = None
    return (*levels, MemoryLevel(DRAM, None, 1, bandwidth))


def _list_caches(
    device: Device, peaks: DevicePeaks | None
) -> dict[str, tuple[int, int]]:
    """Return the size and number of each known cache."""
    n_cores = max(device.compute_units, 1)
    reported = {} if device.processor is None else device.processor.cache_bytes
    measured = {} if peaks is None else peaks.cache_bytes
    sizes = {}
    for name, default in CACHES.items():
        if reported.get(default):
            shared = -(-n_cores // CORES_PER_L3)
            sizes[name] = reported[default], shared if name == SHARED else n_cores
        # it is not known which cores share it: a copy for each is the valid assumption
        elif not any(reported.values()) and measured.get(name, 0) > 0:
            sizes[name] = measured[name], n_cores
    return sizes


def combine_levels_ahead(
    levels: Sequence[MemoryLevel], number: int
) -> FastMemory | None:
    """Combine all levels nearer than a level into one memory.

    If all nearer levels are private to cores, there is one such memory for each core;
    otherwise all copies count as a single memory.

    Returns:
        The memory; None if there is no nearer level, or one of unknown size.
    """
    ahead = levels[:number]
    sizes = [level.n_bytes for level in ahead]
    if not ahead or any(n is None for n in sizes):
        return None
    # With private levels only, each core has to fetch its own data; a shared cache may
    # serve all cores, so then all bytes count as one memory.
    copies = {level.n_copies for level in ahead}
    if len(copies) == 1 and all(level.name != SHARED for level in ahead):
        return FastMemory(sum(n or 0 for n in sizes), copies.pop())
    return FastMemory(sum((level.n_bytes or 0) * level.n_copies for level in ahead))


def find_roofline_s(measured: Measurement, peaks: DevicePeaks | None) -> float | None:
    """Return the time in seconds that the limits of a device allow; None if unknown.

    Facts and limits may contain anything: a dtype that was not measured or does not
    exist, and limits that no device has, are no errors.
    """
    if peaks is None:
        return None
    if min(peaks.bandwidth_bytes_per_s, *peaks.operations_per_s.values(), 1) <= 0:
        return None
    try:
        limit_s = compute_roofline_s(
            measured.operations, measured.footprint_bytes, peaks
        )
    except (MeasurementError, SyntaxError, TypeError, ValueError, OverflowError):
        return None
    return limit_s if limit_s > 0 and isfinite(limit_s) else None
