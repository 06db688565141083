"""The operations of the target on an open GPU, and the driver that opens it.

The driver, with CuPy behind it, is the only access to GPUs. Without one nothing of CuPy
is loaded: its library lists the devices.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from feinsum.errors import DeviceUnavailableError
from feinsum.targets.cuda.cupy_errors import CudaErrors, load_cupy
from feinsum.targets.cuda.cupy_session import CupySession
from feinsum.targets.cuda.gemm import Gemm
from feinsum.targets.cuda.nvrtc import CudaBinary
from feinsum.targets.protocol import Array


class Session(Protocol):
    """One open GPU. Arrays are flat; a stream of None is that of the target."""

    @property
    def stream(self) -> Any: ...

    def allocate(self, n_entries: int, dtype: np.dtype[Any]) -> Any:
        """An array for the stream of the target."""
        ...

    def write(self, array: Any, values: Array) -> None: ...

    def read(self, array: Any) -> Array: ...

    def clear(self, array: Any, stream: Any = None) -> None:
        """Write zeros, without the host."""
        ...

    def strided(self, array: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """The same memory with other axes, whose strides are in bytes."""
        ...

    def packed(self, array: Any) -> Any:
        """The array, or a copy of it in C's order, aligned as kernels expect."""
        ...

    def is_packed(self, array: Any) -> bool: ...

    def cast(self, array: Any, dtype: np.dtype[Any]) -> Any:
        """The array, or a copy of it with another dtype."""
        ...

    def form(self, array: Any) -> Hashable:
        """The properties of an array on which a call depends."""
        ...

    def current_stream(self) -> Any:
        """The caller's; None if another GPU is the current one."""
        ...

    def stream_at(self, address: int) -> Any:
        """A stream of another library; 0 is the default one."""
        ...

    def active(self, stream: Any = None) -> AbstractContextManager[Any]:
        """While it is entered, this GPU and the given stream are the current ones."""
        ...

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """An array for the current stream; this GPU has to be the current one.

        On another stream its memory may still be in use: it is handed out again as soon
        as the host has freed it.
        """
        ...

    def launcher(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        values: Sequence[np.generic | None],
    ) -> Callable[[Sequence[int], Any], None]:
        """A quick function of addresses and a stream that launches a kernel.

        This GPU has to be the current one.

        Args:
            values: the arguments in their order; None for an array.
        """
        ...

    def multiplier(
        self, gemm: Gemm, dtype: np.dtype[Any]
    ) -> Callable[[Sequence[int], Any], None]:
        """A function of addresses and a stream that multiplies by BLAS.

        The addresses are those of left, right and the result; see :class:`Gemm`. This
        GPU has to be the current one.
        """
        ...

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        """Where the first entries of arrays are."""
        ...

    def overwrite(self, array: Any, values: Any, stream: Any = None) -> None:
        """Copy an array over another one of the same shape, both with any strides."""
        ...

    def einsum(self, subscripts: str, arrays: Sequence[Any], stream: Any = None) -> Any:
        """The result of the vendor's libraries, as a new array in C order."""
        ...

    def function(self, binary: CudaBinary, name: str, shared_bytes: int) -> Any:
        """A loaded kernel that may take ``shared_bytes`` at the launch."""
        ...

    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int,
        stream: Any = None,
    ) -> None: ...

    def multiply(
        self, gemm: Gemm, left: Any, right: Any, result: Any, stream: Any = None
    ) -> None:
        """A stack of products of matrices, by cuBLAS."""
        ...

    def synchronize(self, stream: Any = None) -> None:
        """Wait until all work on a stream has ended."""
        ...

    def wait(self, waiting: Any, awaited: Any) -> None:
        """Let later work on a stream wait for the earlier work on another one."""
        ...

    def timed(self, run: Callable[[], None], stream: Any = None) -> float:
        """Seconds between two events around what ``run`` launches."""
        ...

    def repeated(self, run: Callable[[], None], n: int) -> Callable[[], None]:
        """A graph that does ``n`` times what ``run`` launches."""
        ...

    def free_bytes(self) -> int:
        """The most that can be allocated, as far as it is known."""
        ...

    def adopted(self, array: Any) -> tuple[Any, Any]:
        """An array of any library as one of CuPy, and the stream where it is ready."""
        ...


LEAST_DRIVER = 12000
"""The least version of CUDA that a driver must support, in its own notation: 12.0."""

CLOCK_RATE = 13
"""``cudaDevAttrClockRate``; the properties lack it since CUDA 13."""

NO_DEVICE = 100
"""``CUDA_ERROR_NO_DEVICE``."""


@dataclass(frozen=True)
class GpuFacts:
    """Properties of a GPU, by its driver.

    Attributes:
        capability: major and minor number.
        clock_khz: the highest of the multiprocessors.
        memory_bytes: of the global memory.
        cache_bytes: of the second-level cache.
        slot: the place on the bus.
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

    def open(self, ordinal: int) -> Session: ...


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
    if version.value < LEAST_DRIVER:
        raise DeviceUnavailableError(
            f"NVIDIA's driver supports CUDA {_dotted(version.value)}; expected "
            f"{_dotted(LEAST_DRIVER)} or newer: update the driver"
        )


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


class CupyDriver:
    """GPUs by way of CuPy; see :class:`Driver`."""

    def gpus(self) -> tuple[GpuFacts, ...]:
        """All GPUs, in the order of the driver.

        Raises:
            DeviceUnavailableError: saying what is missing.
        """
        check_driver()
        runtime = load_cupy().cuda.runtime
        with CudaErrors("the GPUs cannot be listed", kind=DeviceUnavailableError):
            driver = _dotted(runtime.driverGetVersion())
            return tuple(
                _facts(
                    runtime.getDeviceProperties(k),
                    runtime.deviceGetAttribute(CLOCK_RATE, k),
                    k,
                    driver,
                )
                for k in range(runtime.getDeviceCount())
            )

    def open(self, ordinal: int) -> CupySession:
        cupy = load_cupy()
        with CudaErrors(
            "GPU {} cannot be opened", ordinal, kind=DeviceUnavailableError
        ):
            device = cupy.cuda.Device(ordinal)
            with device:
                # does not wait for the legacy default stream, which others use
                return CupySession(device, cupy.cuda.Stream(non_blocking=True))


def _facts(
    properties: dict[str, Any], clock_khz: int, ordinal: int, driver: str
) -> GpuFacts:
    place = "{pciDomainID:04x}:{pciBusID:02x}:{pciDeviceID:02x}"
    return GpuFacts(
        ordinal,
        properties["name"].decode(),
        (properties["major"], properties["minor"]),
        properties["multiProcessorCount"],
        clock_khz,
        properties["totalGlobalMem"],
        properties["l2CacheSize"],
        place.format(**properties),
        driver,
    )


_FOUND: list[Driver] = [CupyDriver()]


def find_driver() -> Driver:
    """The driver of CuPy; tests replace it where there is no GPU."""
    return _FOUND[-1]
