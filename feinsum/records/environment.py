"""Environments of measurements: processors, devices, drivers, fleets, their limits.

The roofline is the least time that the measured limits of a device allow. For ``i j, j
-> i`` with 1000 x 1000 entries of 8 bytes, on a device with 4e10 bytes/s and 2e11
operations/s: 2e6 operations take 1e-5 s, 8.016e6 bytes take 2.004e-4 s, so no kernel
takes less than 0.2 ms.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from constantdict import constantdict
from pydantic import Field

from feinsum.errors import InvalidRecordError, MeasurementError
from feinsum.records.document import Document, Part, compute_content_id
from feinsum.words import format_brief, format_count

SHOWN = (
    "avx", "avx2", "fma", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile",
    "asimd", "sve", "sve2",
)  # fmt: skip
"""The features shown to people."""

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


@dataclass(frozen=True)
class Processor(Part):
    """A CPU as the system describes it; unknown values are -1 or empty.

    Attributes:
        family, model, stepping: the vendor's numbers for its processors; on ARM the
            architecture, the part and the revision.
        microarchitecture: archspec's name, such as ``zen5``, or a generic one, such as
            ``x86_64_v4``, if no other fits.
        features: sorted names of the instruction sets that affect code generation.
        n_cores: physical cores.
        cache_bytes: the data caches that a core uses: ``L1d``, ``L2``, ``L3``.
    """

    mappings = ("cache_bytes",)

    vendor: str
    family: int
    model: int
    stepping: int
    microarchitecture: str
    features: tuple[str, ...]
    n_cores: int
    cache_bytes: Mapping[str, int]

    @property
    def is_known(self) -> bool:
        """Whether it can be distinguished from others: numbers may be masked."""
        # virtual machines may hide the numbers, but programs need the features
        return bool(self.features)

    @property
    def caches(self) -> str:
        """The caches in words.

        >>> Processor("", -1, -1, -1, "", (), 1, {"L1d": 49152, "L2": 2**20}).caches
        'L1d 48 KiB, L2 1 MiB'
        """
        sizes = sorted(self.cache_bytes.items())
        return ", ".join(f"{name} {_format_size(n_bytes)}" for name, n_bytes in sizes)

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector register that compilers use; at least 16.

        >>> Processor("", -1, -1, -1, "", ("avx", "avx2"), 1, {}).vector_bytes
        32
        """
        # other processors have SSE, NEON or no vectors: 16 bytes
        widths = {"avx512f": 64, "avx2": 32}
        return max((widths.get(name, 16) for name in self.features), default=16)

    @property
    def shown_features(self) -> tuple[str, ...]:
        """Its features among :data:`SHOWN`."""
        return tuple(name for name in SHOWN if name in self.features)

    def __str__(self) -> str:
        """Describe it in one line.

        >>> str(Processor("", 26, 2, 1, "zen5", ("avx2", "fma"), 8, {"L2": 2**20}))
        'zen5, 8 cores, L2 1 MiB, avx2 fma'
        """
        cores = "" if self.n_cores < 0 else format_count(self.n_cores, "core")
        name = self.microarchitecture or "unknown microarchitecture"
        parts = (name, cores, self.caches, " ".join(self.shown_features))
        return ", ".join(part for part in parts if part)


def _format_size(n_bytes: int) -> str:
    for unit, name in UNITS:
        # only whole units: 48 KiB is the size of a cache, 0.047 MiB is not
        if n_bytes >= unit and n_bytes % unit == 0:
            return f"{n_bytes // unit} {name}"
    return f"{n_bytes} B"


CUDA_PLATFORM = "NVIDIA CUDA C++"
"""The platform of facts of the target ``cuda``; that of OpenCL is ``NVIDIA CUDA``."""
HOST_PLATFORM = "Host C compiler"
"""The platform of facts of the target ``host``; all others are OpenCL's."""

DeviceKind = Literal["cpu", "gpu", "accelerator", "other"]


def _is_none(value: object) -> bool:
    return value is None


def _is_empty(value: Mapping[str, Any]) -> bool:
    return not value


@dataclass(frozen=True)
class Device(Part):
    """An OpenCL device as a piece of hardware under a platform.

    Strings are kept verbatim as OpenCL reports them; nothing is guessed.

    Attributes:
        architecture: instruction set of a CPU (``x86_64``), vendor of a GPU.
        compute_units: number of parallel compute units.
        processor: the CPU; None for a GPU, and in facts from before this field
            existed, whose documents omit it, so their ids stay.
    """

    platform: str
    name: str
    vendor: str
    kind: DeviceKind
    architecture: str
    compute_units: int
    processor: Annotated[Processor | None, Field(exclude_if=_is_none)] = None

    @cached_property
    def id(self) -> str:
        """Content id: equal on machines with equal hardware and platform."""
        return _compute_device_id(self)

    @property
    def is_identified(self) -> bool:
        """Whether an equal device is the same hardware.

        Names of CPUs do not identify them: in clouds, processors of several generations
        share one name.
        """
        # The name of a GPU is that of a chip.
        if self.kind != "cpu":
            return True
        return self.processor is not None and self.processor.is_known

    def is_surely(self, other: Device) -> bool:
        """Return whether both are the same hardware under the same platform."""
        return self == other and self.is_identified

    @property
    def microarchitecture(self) -> str | None:
        """The processor's microarchitecture; None if unknown, as for a GPU."""
        return (self.processor.microarchitecture or None) if self.processor else None

    def __str__(self) -> str:
        return f"{self.name} ({self.platform})"


# Most documents of a process name few devices. The cache is bounded, because a document
# of 64 KiB may be little but a list of features.
@lru_cache(64)
def _compute_device_id(device: Device) -> str:
    return compute_content_id(device)


@dataclass(frozen=True)
class Environment(Document):
    """Everything that a timing depends on, apart from the workload and recipe.

    Attributes:
        driver_version, platform_version: verbatim from OpenCL.
        software: package name to version.
        policy: how times were measured (rounds, warm-up, timer).
    """

    mappings = ("software", "policy")

    device: Device
    driver_version: str
    platform_version: str
    software: Mapping[str, str]
    policy: Mapping[str, str | int | float]

    def __repr__(self) -> str:
        return format_brief(self, f"{self.device}, driver {self.driver_version}")


_IRRELEVANT_OPTION = re.compile(
    r"-w|-fPIC|-shared|-fvisibility=.*|-std=.*|-mprefer-vector-width=256"
)
"""Options of warnings, linking and the language, which leave the loops as they are. One
of them changes only loops that no recipe has vectorized, without slowing them: for
operators on a Zen 5, generic loops took 0.96 times as long and recipes on record 1.01
times, in the geometric mean.
"""

_ONLY_COMPLEX = frozenset({"-fcx-fortran-rules"})
"""Options that change nothing but products of complex numbers."""

_COMPLEX = re.compile(r":[<>=|]?c\d")


def describe_driver_difference(
    measured: Environment, local: Environment, workload_text: str
) -> str:
    """Describe how the drivers of two environments of one device differ, if they do.

    Args:
        measured: environment of the measurement.
        local: environment of the caller.
        workload_text: the measured workload; some options only matter for complex
            numbers.
    """
    differences: list[str] = []
    if measured.driver_version != local.driver_version:
        differences.append(
            _format_contrast("driver", measured.driver_version, local.driver_version)
        )
    if measured.platform_version != local.platform_version:
        if measured.device.platform == HOST_PLATFORM:
            differences += _list_differing_options(measured, local, workload_text)
        else:
            versions = measured.platform_version, local.platform_version
            differences.append(_format_contrast("platform version", *versions))
    return "; and with ".join(differences)


def _list_differing_options(
    measured: Environment, local: Environment, workload_text: str
) -> Iterator[str]:
    is_complex = _COMPLEX.search(workload_text) is not None
    code, options = _parse_options(measured.platform_version, is_complex)
    local_code, local_options = _parse_options(local.platform_version, is_complex)
    if code != local_code:
        yield _format_contrast("feinsum's calling code of version", code, local_code)
    if options != local_options:
        only = sorted(options - local_options), sorted(local_options - options)
        texts = (" ".join(names) or "none" for names in only)
        yield _format_contrast("compiler option", *texts)


def _format_contrast(noun: str, measured: str, local: str) -> str:
    return f"{noun} {measured}; here it is {local}"


@lru_cache(64)
def _parse_options(
    platform_version: str, is_complex: bool
) -> tuple[str, frozenset[str]]:
    """Return the version of the calling code, and the options that can change a time.

    The platform version of host code is that version, followed by the options.
    """
    code, *options = platform_version.split() or [""]
    relevant = {o for o in options if not _IRRELEVANT_OPTION.fullmatch(o)}
    return code, frozenset(relevant if is_complex else relevant - _ONLY_COMPLEX)


@dataclass(frozen=True)
class DevicePeaks(Document):
    """The measured limits of a device, for rooflines.

    Attributes:
        bandwidth_bytes_per_s: of a triad over arrays larger than the caches.
        operations_per_s: for each dtype, of fused multiply-adds in registers
            (two operations each).
        measured_at: UTC, ISO 8601.
        cache_bytes_per_s: by the name of a cache (``L1``), the rate at which all cores
            together read from it. Empty if not measured; omitted from documents if
            empty, so older ids stay.
        cache_bytes: measured sizes by the same names, per core while all read; the
            share of a shared cache. Also omitted if empty.
    """

    mappings = ("operations_per_s", "cache_bytes_per_s", "cache_bytes")

    device: Device
    bandwidth_bytes_per_s: float
    operations_per_s: Mapping[str, float]
    measured_at: str
    cache_bytes_per_s: Annotated[Mapping[str, float], Field(exclude_if=_is_empty)] = (
        field(default_factory=dict)
    )
    cache_bytes: Annotated[Mapping[str, int], Field(exclude_if=_is_empty)] = field(
        default_factory=dict
    )


_REAL_PER_COMPLEX = 4
"""A complex multiply-add, two operations, is eight real operations."""


def compute_roofline_s(
    operations: Mapping[str, int], footprint_bytes: int, peaks: DevicePeaks
) -> float:
    """Compute the larger of the times to compute and to move the data, in seconds.

    Args:
        operations: number of operations by dtype; the times of the dtypes add
            up. A complex operation counts as four real ones, which is exact for
            multiply-adds.
        footprint_bytes: bytes that must be moved.
        peaks: measured limits of the device.

    Raises:
        MeasurementError: if the peak of a dtype is not known.

    Source: Williams, Waterman, Patterson, *Roofline*, CACM 52(4), 2009.
    """
    moving_s = footprint_bytes / peaks.bandwidth_bytes_per_s
    return max(compute_operations_s(operations, peaks), moving_s)


def compute_operations_s(operations: Mapping[str, int], peaks: DevicePeaks) -> float:
    """Return the time to compute alone, in seconds; see :func:`compute_roofline_s`."""
    return sum(_compute_s(*item, peaks) for item in operations.items())


def _compute_s(dtype: str, count: int, peaks: DevicePeaks) -> float:
    kind = np.dtype(dtype)
    is_complex = kind.kind == "c"  # peaks are measured for real numbers only
    real = np.empty(0, kind).real.dtype.str if is_complex else kind.str
    if real not in peaks.operations_per_s:
        raise MeasurementError(
            f"the peak of {real} on {peaks.device} is unknown; measured are "
            f"{sorted(peaks.operations_per_s)}, see measure_peaks(dtypes=...)"
        )
    weight = _REAL_PER_COMPLEX if is_complex else 1
    return count * weight / peaks.operations_per_s[real]


EngineName = Literal["local", "mpi", "dask"]

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True)
class Links(Part):
    """The time of messages and elements between two processes.

    Attributes:
        message_s: seconds per message, however short.
        element_s: seconds per element.
    """

    message_s: Seconds
    element_s: Seconds

    def __post_init__(self) -> None:
        if not (self.message_s >= 0 and self.element_s >= 0):
            raise InvalidRecordError(
                f"links with {self.message_s} s a message and {self.element_s} s an "
                "element; expected numbers from 0"
            )


@dataclass(frozen=True)
class Host(Part):
    """A machine of a fleet, without its name.

    Attributes:
        ranks: number of processes on the host.
        cores: number of cores that they could use.
    """

    ranks: Count
    cores: Count


@dataclass(frozen=True)
class Fleet(Document):
    """The ranks that ran a plan.

    Attributes:
        engine: the engine; ``local`` is one process in which ranks take turns.
        hosts: the hosts, in the order of their first ranks.
        threads: number of threads per rank.
        device: the processor of all hosts.
        software: the version of each package, by name.
        links: the links measured between two ranks, or None.

    >>> cpu = Device("p", "n", "v", "cpu", "x86_64", 2)
    >>> Fleet("mpi", (Host(2, 2), Host(4, 2)), 1, cpu).load
    2.0
    """

    mappings = ("software",)

    engine: EngineName
    hosts: Annotated[tuple[Host, ...], Field(min_length=1)]
    threads: Count
    device: Device
    software: Mapping[str, str] = field(default_factory=constantdict)
    links: Links | None = None

    @property
    def ranks(self) -> int:
        """Ranks of all hosts."""
        return sum(host.ranks for host in self.hosts)

    @property
    def load(self) -> float:
        """Threads of all ranks over cores, on the host with the most."""
        # the slowest host decides: all ranks wait for each other
        return max(host.ranks * self.threads / host.cores for host in self.hosts)

    @property
    def is_timed(self) -> bool:
        """Whether times are meaningful: all ranks run at once, each on its own cores.

        Ranks that share cores wait for each other, which says nothing about the plan.
        """
        return self.engine != "local" and self.load <= 1

    def is_like(self, other: Fleet) -> bool:
        """Return whether times of one apply to the other: same machines and load."""
        ours = self.engine, self.hosts, self.threads
        theirs = other.engine, other.hosts, other.threads
        return ours == theirs and self.device.is_surely(other.device)

    def __str__(self) -> str:
        n = len(self.hosts)
        hosts = f"{format_count(n, 'host')}, load {self.load:g}, {self.device}"
        return f"{format_count(self.ranks, 'rank')} ({self.engine}) on {hosts}"
