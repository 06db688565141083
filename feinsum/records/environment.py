"""Where a measurement was made: the device, its driver, the software, the policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal

from constantdict import constantdict

from feinsum.records.document import STRICT, content_id

__all__ = ["Device", "DeviceKind", "DevicePeaks", "Environment"]

DeviceKind = Literal["cpu", "gpu", "accelerator", "other"]


@dataclass(frozen=True)
class Device:
    """An OpenCL device as a piece of hardware under a platform.

    Strings are kept verbatim as OpenCL reports them; nothing is guessed.

    Attributes:
        architecture: instruction set of a CPU (``x86_64``), vendor of a GPU.
        compute_units: number of parallel compute units.
    """

    __pydantic_config__ = STRICT

    platform: str
    name: str
    vendor: str
    kind: DeviceKind
    architecture: str
    compute_units: int

    @cached_property
    def id(self) -> str:
        """Content id: equal on machines with equal hardware and platform."""
        return _id_of_device(self)

    def __str__(self) -> str:
        return f"{self.name} ({self.platform})"


@lru_cache(256)
def _id_of_device(device: Device) -> str:
    return content_id(device)


@dataclass(frozen=True)
class Environment:
    """Everything that a timing depends on, apart from the workload and recipe.

    Attributes:
        driver_version, platform_version: verbatim from OpenCL.
        software: package name to version.
        policy: how times were measured (rounds, warm-up, timer).
    """

    __pydantic_config__ = STRICT

    device: Device
    driver_version: str
    platform_version: str
    software: Mapping[str, str]
    policy: Mapping[str, str | int | float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "software", constantdict(self.software))
        object.__setattr__(self, "policy", constantdict(self.policy))

    @cached_property
    def id(self) -> str:
        return content_id(self)


@dataclass(frozen=True)
class DevicePeaks:
    """The measured limits of a device, for rooflines.

    Attributes:
        bandwidth_bytes_per_s: of a triad over arrays larger than the caches.
        operations_per_s: for each dtype, of fused multiply-adds in registers
            (two operations each).
        measured_at: UTC, ISO 8601.
    """

    __pydantic_config__ = STRICT

    device: Device
    bandwidth_bytes_per_s: float
    operations_per_s: Mapping[str, float]
    measured_at: str

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "operations_per_s", constantdict(self.operations_per_s)
        )

    @cached_property
    def id(self) -> str:
        return content_id(self)
