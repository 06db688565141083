"""The processor of this machine, as Linux describes it and archspec names it.

Virtual machines may mask the numbers of a processor, but not its features, without
which programs could not use its instructions. So features determine the name::

    flags avx512f, avx512_vp2intersect, ... of AuthenticAMD   ->   zen5

Containers may hide files; values that cannot be read are unknown, which is no error.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from archspec.cpu import TARGETS
from archspec.cpu.schema import TARGETS_JSON

from feinsum.records import Processor

CPUINFO = Path("/proc/cpuinfo")
SYSTEM = Path("/sys/devices/system/cpu")

UNKNOWN = -1

MASKED = frozenset({"cldemote", "flush_l1d", "pku", "tsc_adjust", "waitpkg"})
"""Features that hypervisors often mask, and that compilers do not use.

archspec requires them of recent processors, and would name an older one without them.
"""

NO_SIGN = MASKED | {"movdir64b", "movdiri", "rdseed"}
"""Features that are not required of a microarchitecture that should have them.

Linux disables RDSEED on Zen 5 because of a defect, and hypervisors hide the moves.
"""

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}

Block = Mapping[str, str]
"""The lines of ``/proc/cpuinfo`` on one logical processor."""


@dataclass(frozen=True)
class Names:
    """Names in ``/proc/cpuinfo`` on an architecture."""

    vendor: str
    family: str
    model: str
    stepping: str
    features: str


X86 = Names("vendor_id", "cpu family", "model", "stepping", "flags")
ARM = Names(
    "CPU implementer", "CPU architecture", "CPU part", "CPU revision", "Features"
)


@cache
def describe_host_processor() -> Processor:
    """Describe the processor of this machine."""
    return describe_processor(_read(CPUINFO), platform.machine(), SYSTEM)


def describe_processor(cpuinfo: str, machine: str, system: Path) -> Processor:
    """Describe the processor from files of Linux.

    Args:
        cpuinfo: the text of ``/proc/cpuinfo``.
        machine: the architecture: ``x86_64``, ``aarch64``.
        system: the folder ``/sys/devices/system/cpu``.
    """
    # hybrid processors have several kinds of cores: describe the first
    blocks = _split_blocks(cpuinfo)
    names = ARM if any(ARM.features in block for block in blocks) else X86
    first_core = next((block for block in blocks if names.features in block), {})
    vendor = _convert_vendor(first_core.get(names.vendor, ""))
    flags = frozenset(first_core.get(names.features, "").split())
    return Processor(
        vendor=vendor,
        family=_parse_number(first_core.get(names.family, "")),
        model=_parse_number(first_core.get(names.model, "")),
        stepping=_parse_number(first_core.get(names.stepping, "")),
        microarchitecture=name_microarchitecture(
            machine, vendor, flags, first_core.get(ARM.model, "")
        ),
        features=tuple(sorted(flags & _list_features(machine))),
        n_cores=_count_cores(blocks, system),
        cache_bytes=_read_cache_bytes(system),
    )


def name_microarchitecture(
    machine: str, vendor: str, flags: frozenset[str], part: str = ""
) -> str:
    """Name the most specific microarchitecture whose features are all present.

    archspec chooses in the same way, except for the features in :data:`NO_SIGN`. The
    name is empty without flags.

    Args:
        machine: instruction set, as named by :func:`platform.machine`.
        vendor: vendor of the processor.
        flags: features that the processor has.
        part: the part number of an ARM core, which breaks ties.

    >>> name_microarchitecture("x86_64", "AuthenticAMD", frozenset({"sse", "sse2"}))
    'x86_64'
    """
    fitting = [
        target
        for target in _list_targets(machine)
        if target.vendor in (vendor, "generic")
        and target.features - NO_SIGN <= _add_implied(flags)
    ]
    if not (flags and fitting):
        return ""
    # generic levels, such as x86_64_v3, are for processors that archspec does not know
    generic = max((t for t in fitting if t.vendor == "generic"), key=_measure_depth)
    special = [target for target in fitting if target > generic]
    named = [target for target in special if part and target.cpu_part == part]
    return str(max(named or special or [generic], key=_measure_depth).name)


def _list_targets(machine: str) -> Sequence[Any]:
    """List archspec's microarchitectures that features distinguish."""
    return [
        target
        for target in TARGETS.values()
        if target.family.name == machine
        and (target.vendor != "generic" or target.features or target.name == machine)
    ]


def _list_features(machine: str) -> frozenset[str]:
    """Return the features by which archspec distinguishes microarchitectures."""
    return frozenset().union(*(t.features for t in _list_targets(machine))) - MASKED


def _add_implied(flags: frozenset[str]) -> frozenset[str]:
    """Add SSE3, which Linux lists under another name."""
    return flags | {"sse3"} if "ssse3" in flags else flags


def _measure_depth(target: Any) -> tuple[int, int]:
    return len(target.ancestors), len(target.features)


def _split_blocks(cpuinfo: str) -> list[Block]:
    """Return the paragraphs of ``/proc/cpuinfo``, one for each logical processor."""
    paragraphs = re.split(r"\n\s*\n", cpuinfo.strip())
    return [_parse_fields(paragraph.splitlines()) for paragraph in paragraphs]


def _parse_fields(lines: Iterable[str]) -> Block:
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _convert_vendor(name: str) -> str:
    """Return the name of a vendor, which is a number on ARM."""
    vendors: Mapping[str, str] = TARGETS_JSON["conversions"]["arm_vendors"]
    return vendors.get(name, name)


def _parse_number(text: str) -> int:
    try:
        # x86 writes decimal numbers, ARM hexadecimal ones with 0x
        return int(text, 0)
    except ValueError:
        return UNKNOWN


def _count_cores(blocks: Iterable[Block], system: Path) -> int:
    """Count the groups of logical processors that share a core."""
    lists = system.glob("cpu[0-9]*/topology/thread_siblings_list")
    siblings = {_read(path).strip() for path in lists} - {""}
    ids = {(b.get("physical id"), b["core id"]) for b in blocks if "core id" in b}
    return len(siblings) or len(ids) or UNKNOWN


def _read_cache_bytes(system: Path) -> dict[str, int]:
    """Read the sizes of the data caches of the first core, in bytes."""
    sizes = {}
    for entry in sorted(system.glob("cpu0/cache/index*")):
        level, kind, size = (
            _read(entry / name).strip() for name in ("level", "type", "size")
        )
        n_bytes = re.fullmatch(r"(\d+)([KMG]?)", size)
        if level and n_bytes and kind in ("Data", "Unified"):
            name = f"L{level}d" if kind == "Data" else f"L{level}"
            sizes[name] = int(n_bytes[1]) * UNITS[n_bytes[2]]
    return sizes


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""
