"""The driver, which lists and opens GPUs through CuPy.

NVIDIA's library is called first, without CuPy, so that a missing driver or GPU is
reported clearly, and machines without GPUs do not load CuPy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from feinsum.errors import DeviceUnavailableError
from feinsum.targets.cuda.cupy_errors import CudaErrors, load_cupy
from feinsum.targets.cuda.cupy_session import CupySession

MIN_DRIVER = 12000
"""The least version of CUDA that a driver must support, in its own notation: 12.0."""

CLOCK_RATE = 13
"""``cudaDevAttrClockRate``; the properties lack it since CUDA 13."""

NO_DEVICE = 100
"""``CUDA_ERROR_NO_DEVICE``."""


@dataclass(frozen=True)
class GpuFacts:
    """Properties of a GPU, as reported by its driver.

    Attributes:
        ordinal: number of the GPU.
        name: name of the GPU.
        capability: major and minor number of the compute capability.
        multiprocessors: number of multiprocessors.
        clock_khz: highest clock rate of the multiprocessors.
        memory_bytes: size of the global memory.
        cache_bytes: size of the second-level cache.
        slot: the address on the PCI bus.
        driver: the version of CUDA that the driver supports, such as ``12.4``.
    """

    ordinal: int
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    clock_khz: int
    memory_bytes: int
    cache_bytes: int
    slot: str
    driver: str


class Driver(Protocol):
    """Finds and opens GPUs."""

    def gpus(self) -> tuple[GpuFacts, ...]: ...

    def open(self, ordinal: int) -> CupySession: ...


def check_driver(load: Callable[[str], Any] = ctypes.CDLL) -> None:
    """Refuse drivers that CuPy cannot work with.

    Raises:
        DeviceUnavailableError: if there is no driver, no GPU, or the driver is older
            than CUDA 12.0.
    """
    try:
        library = load("libcuda.so.1")
    except OSError as error:
        raise DeviceUnavailableError(
            "NVIDIA's driver (libcuda.so.1) was not found; install it, or use another "
            "device"
        ) from error
    # before CuPy is imported, because its errors do not tell what is missing
    code = library.cuInit(0)
    if code == NO_DEVICE:
        raise DeviceUnavailableError(
            "NVIDIA's driver finds no GPU; a container has to be given one, such as by "
            "docker run --gpus all"
        )
    if code:
        raise DeviceUnavailableError(
            f"NVIDIA's driver does not start (error {code}); run nvidia-smi"
        )
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    if version.value < MIN_DRIVER:
        raise DeviceUnavailableError(
            f"NVIDIA's driver supports CUDA {_format_version(version.value)}; expected "
            f"{_format_version(MIN_DRIVER)} or newer: update the driver"
        )


def _format_version(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


class CupyDriver:
    """GPUs through CuPy; see :class:`Driver`."""

    def gpus(self) -> tuple[GpuFacts, ...]:
        """List all GPUs, in the order of the driver.

        Raises:
            DeviceUnavailableError: saying what is missing.
        """
        check_driver()
        runtime = load_cupy().cuda.runtime
        with CudaErrors("the GPUs cannot be listed", kind=DeviceUnavailableError):
            # the version of CUDA that the driver supports
            driver = _format_version(runtime.driverGetVersion())
            return tuple(
                _read_facts(
                    runtime.getDeviceProperties(ordinal),
                    runtime.deviceGetAttribute(CLOCK_RATE, ordinal),
                    ordinal,
                    driver,
                )
                for ordinal in range(runtime.getDeviceCount())
            )

    def open(self, ordinal: int) -> CupySession:
        cupy = load_cupy()
        with CudaErrors(
            "GPU {} cannot be opened", ordinal, kind=DeviceUnavailableError
        ):
            device = cupy.cuda.Device(ordinal)
            with device:
                # non-blocking: does not wait for the default stream of other libraries
                return CupySession(device, cupy.cuda.Stream(non_blocking=True))


def _read_facts(
    properties: dict[str, Any], clock_khz: int, ordinal: int, driver: str
) -> GpuFacts:
    slot = "{pciDomainID:04x}:{pciBusID:02x}:{pciDeviceID:02x}"
    return GpuFacts(
        ordinal,
        properties["name"].decode(),
        (properties["major"], properties["minor"]),
        properties["multiProcessorCount"],
        clock_khz,
        properties["totalGlobalMem"],
        properties["l2CacheSize"],
        slot.format(**properties),
        driver,
    )


_DRIVERS: list[Driver] = [CupyDriver()]


def find_driver() -> Driver:
    """Return CuPy's driver, which tests replace on machines without a GPU."""
    return _DRIVERS[-1]
