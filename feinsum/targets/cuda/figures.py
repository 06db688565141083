"""The resources of a multiprocessor that a kernel uses, and its occupancy.

A kernel of 128 registers in groups of 256 work-items on ``sm_90``: a group takes 32,768
of 65,536 registers, so two groups, 512 of 2048 work-items, are resident: 0.25.

Source: NVIDIA, CUDA C++ Programming Guide, "Compute Capabilities", the table of
technical specifications; NVIDIA, CUDA Occupancy Calculator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from feinsum.errors import BuildError

WARP = 32
"""Work-items of a warp."""

MAX_THREADS = 1024
"""Maximum work-items of a work-group."""

MAX_REGISTERS = 255
"""Maximum registers of a work-item."""

REGISTERS = 1 << 16
"""Registers of a multiprocessor."""

MAX_SPILLED = 512
"""Maximum spilled bytes of a work-item; kernels that spill more are too slow."""

REGISTER_STEP = 256
"""Granularity of the registers of a warp."""


@dataclass(frozen=True)
class KernelFigures:
    """Resources of a kernel, as reported by ptxas.

    Attributes:
        registers: registers of a work-item.
        spill_bytes: bytes that a work-item stores and loads for lack of registers.
        stack_bytes: bytes of local memory of a work-item.
        shared_bytes: bytes of shared memory of a work-group that the source declares.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


def parse_figures(log: str, name: str) -> KernelFigures:
    """Parse the figures of one kernel from the log of ptxas.

    Raises:
        BuildError: if the log does not have them, as is the case for PTX.

    >>> parse_figures("ptxas info    : Compiling entry function 'f' for 'sm_90' " +
    ...     "ptxas . 8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads " +
    ...     "ptxas info : Used 10 registers, used 1 barriers, 1280 bytes smem", "f")
    KernelFigures(registers=10, spill_bytes=8, stack_bytes=8, shared_bytes=1280)
    """
    _, heading, section = log.partition(f"Compiling entry function '{name}'")
    # the log has a section for each kernel of the source
    section = section.partition("Compiling entry function")[0]
    registers = re.search(r"Used (\d+) registers", section)
    if not heading or registers is None:
        raise BuildError(
            f"the log of ptxas has no figures of {name!r}; compile for one of the "
            "architectures sm_..., not for compute_..."
        )
    return KernelFigures(
        int(registers[1]),
        _parse_number(section, "bytes spill stores")
        + _parse_number(section, "bytes spill loads"),
        _parse_number(section, "bytes stack frame"),
        _parse_number(section, "bytes smem"),
    )


def _parse_number(text: str, unit: str) -> int:
    match = re.search(rf"(\d+) {unit}", text)
    return int(match[1]) if match else 0


@dataclass(frozen=True)
class Multiprocessor:
    """Resources of a multiprocessor.

    Attributes:
        threads, groups: maximum numbers of resident work-items and work-groups.
        shared_bytes: bytes of shared memory for all groups.
        group_shared_bytes: maximum bytes for one group, if the launch requests them.
        reserved_bytes: bytes that the system reserves for each group.
    """

    threads: int
    groups: int
    shared_bytes: int
    group_shared_bytes: int
    reserved_bytes: int


_MULTIPROCESSORS = {
    70: Multiprocessor(2048, 32, 96 << 10, 96 << 10, 0),
    72: Multiprocessor(2048, 32, 96 << 10, 96 << 10, 0),
    75: Multiprocessor(1024, 16, 64 << 10, 64 << 10, 0),
    80: Multiprocessor(2048, 32, 164 << 10, 163 << 10, 1024),
    86: Multiprocessor(1536, 16, 100 << 10, 99 << 10, 1024),
    87: Multiprocessor(1536, 16, 164 << 10, 163 << 10, 1024),
    89: Multiprocessor(1536, 24, 100 << 10, 99 << 10, 1024),
    90: Multiprocessor(2048, 32, 228 << 10, 227 << 10, 1024),
    100: Multiprocessor(2048, 32, 228 << 10, 227 << 10, 1024),
    120: Multiprocessor(1536, 24, 100 << 10, 99 << 10, 1024),
}


def get_multiprocessor(capability: int) -> Multiprocessor:
    """Return the multiprocessor of a capability, or of the nearest older known one.

    Args:
        capability: as a number, such as 90.

    Raises:
        BuildError: if it is older than all that are known.
    """
    # newer ones have at least the resources of the nearest older one
    older = [key for key in _MULTIPROCESSORS if key <= capability]
    if not older:
        raise BuildError(
            f"compute capability {capability} is not supported; expected "
            f"{min(_MULTIPROCESSORS)} or more"
        )
    return _MULTIPROCESSORS[max(older)]


def occupancy(
    figures: KernelFigures, n_threads: int, capability: int, dynamic_bytes: int = 0
) -> float:
    """Return the share of a multiprocessor's work-items that can be resident.

    It is 0 if not even one work-group fits.

    Args:
        figures: figures of the kernel.
        n_threads: work-items of a work-group.
        capability: compute capability as a number, such as 90.
        dynamic_bytes: dynamic shared memory of the launch.

    >>> lean = KernelFigures(32, 0, 0, 0)
    >>> occupancy(lean, 256, 90), occupancy(KernelFigures(128, 0, 0, 0), 256, 90)
    (1.0, 0.25)
    >>> occupancy(KernelFigures(32, 0, 0, 49152), 128, 70)
    0.125
    """
    limits = get_multiprocessor(capability)
    shared = figures.shared_bytes + dynamic_bytes
    if n_threads > MAX_THREADS or shared > limits.group_shared_bytes:
        return 0.0
    warps = -(-n_threads // WARP)
    # registers are allocated in steps for each warp, and for all warps of a group
    warp_registers = -(-figures.registers * WARP // REGISTER_STEP) * REGISTER_STEP
    by_registers = (
        REGISTERS // warp_registers // warps if warp_registers else limits.groups
    )
    group_bytes = shared + limits.reserved_bytes
    by_shared = limits.shared_bytes // group_bytes if group_bytes else limits.groups
    # the scarcest resource limits the number of groups
    groups = min(
        limits.groups, limits.threads // (warps * WARP), by_registers, by_shared
    )
    return groups * warps * WARP / limits.threads


def require_occupancy(
    label: str,
    figures: KernelFigures,
    n_threads: int,
    capability: int,
    dynamic_bytes: int = 0,
) -> float:
    """Return the :func:`occupancy` of a kernel that is worth running.

    Raises:
        BuildError: if the occupancy is 0, or the kernel spills too many bytes.
    """
    at_once = occupancy(figures, n_threads, capability, dynamic_bytes)
    if figures.spill_bytes > MAX_SPILLED or not at_once:
        raise BuildError(
            f"{label} spills {figures.spill_bytes} bytes of a work-item, its occupancy "
            f"is {at_once}; expected at most {MAX_SPILLED} bytes, and more than 0"
        )
    return at_once
