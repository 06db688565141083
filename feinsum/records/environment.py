"""Where a measurement was made: the device, its driver, the software, the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal

from constantdict import constantdict
from pydantic import Field

from feinsum.records.document import STRICT, Document, content_id
from feinsum.records.processor import Processor
from feinsum.words import brief

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
class Device:
    """An OpenCL device as a piece of hardware under a platform.

    Strings are kept verbatim as OpenCL reports them; nothing is guessed.

    Attributes:
        architecture: instruction set of a CPU (``x86_64``), vendor of a GPU.
        compute_units: number of parallel compute units.
        processor: the CPU; None for a GPU, and in facts from before this field
            existed, whose documents omit it, so their ids stay.
    """

    __pydantic_config__ = STRICT

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
        return _id_of_device(self)

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
        """Whether both are the same hardware under the same platform."""
        return self == other and self.is_identified

    @property
    def microarchitecture(self) -> str | None:
        """The processor's microarchitecture; None if unknown, as for a GPU."""
        return (self.processor.microarchitecture or None) if self.processor else None

    def __str__(self) -> str:
        return f"{self.name} ({self.platform})"


# Most documents of a process are of few devices. Bounded, because a document of 64 KiB
# may be little but a list of features.
@lru_cache(64)
def _id_of_device(device: Device) -> str:
    return content_id(device)


@dataclass(frozen=True)
class Environment(Document):
    """Everything that a timing depends on, apart from the workload and recipe.

    Attributes:
        driver_version, platform_version: verbatim from OpenCL.
        software: package name to version.
        policy: how times were measured (rounds, warm-up, timer).
    """

    device: Device
    driver_version: str
    platform_version: str
    software: Mapping[str, str]
    policy: Mapping[str, str | int | float]

    def __post_init__(self) -> None:
        # constant, and so hashable, as are all parts of a document
        object.__setattr__(self, "software", constantdict(self.software))
        object.__setattr__(self, "policy", constantdict(self.policy))

    def __repr__(self) -> str:
        return brief(self, f"{self.device}, driver {self.driver_version}")


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

    def __post_init__(self) -> None:
        for name in ("operations_per_s", "cache_bytes_per_s", "cache_bytes"):
            object.__setattr__(self, name, constantdict(getattr(self, name)))
