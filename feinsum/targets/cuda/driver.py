"""The driver that the target needs, with CuPy behind it: the only access to GPUs.

Without a driver nothing of CuPy is loaded: its library lists the devices.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import numpy as np

from feinsum.errors import DeviceUnavailableError, MeasurementError
from feinsum.targets.cuda.nvrtc import INSTALL_HINT, CudaBinary
from feinsum.targets.cuda.products import BlasCall
from feinsum.targets.messages import first_lines
from feinsum.targets.protocol import Array

__all__ = ["CupyDriver", "Driver", "GpuFacts", "Session", "find_driver"]

LEAST_DRIVER = 12000
"""The version of CUDA that a driver must know, as it tells it: 12.0."""

CLOCK_RATE = 13
"""``cudaDevAttrClockRate``; the properties of CUDA 13 have it no more."""

MOST_SHARED_BYTES = 8
"""``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``."""

NO_DEVICE = 100
"""``CUDA_ERROR_NO_DEVICE``."""


@dataclass(frozen=True)
class GpuFacts:
    """Properties of a GPU, by its driver.

    Attributes:
        capability: major and minor number.
        clock_khz: of the multiprocessors, the highest.
        memory_bytes: of the global memory.
        cache_bytes: of the second-level cache.
        slot: the place on the bus.
        driver: the version of CUDA that the driver knows, such as ``12.4``.
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


class Session(Protocol):
    """One open GPU. Arrays are flat; a stream of None is that of the target."""

    def allocate(self, n_entries: int, dtype: np.dtype[Any]) -> Any: ...

    def write(self, array: Any, values: Array) -> None: ...

    def read(self, array: Any) -> Array: ...

    def clear(self, array: Any, stream: Any = None) -> None:
        """Write zeros, without the host."""
        ...

    def packed(self, array: Any) -> Any:
        """The array, or a copy of it in C's order."""
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
        self, call: BlasCall, first: Any, second: Any, result: Any, stream: Any = None
    ) -> None:
        """A stack of products of matrices, by cuBLAS."""
        ...

    def synchronize(self) -> None: ...

    def timed(self, run: Callable[[], None], stream: Any = None) -> float:
        """Seconds between two events around what ``run`` launches."""
        ...

    def repeated(self, run: Callable[[], None], n: int) -> Callable[[], None]:
        """A graph that does ``n`` times what ``run`` launches."""
        ...

    def free_bytes(self) -> int: ...

    def adopted(self, array: Any) -> tuple[Any, Any]:
        """An array of another library as one of this, and its stream: by DLPack."""
        ...


class Driver(Protocol):
    """Finds and opens GPUs."""

    def gpus(self) -> tuple[GpuFacts, ...]: ...

    def open(self, ordinal: int) -> Session: ...


@contextmanager
def cuda_errors(
    what: str, kind: type[MeasurementError] = MeasurementError
) -> Iterator[None]:
    """Turn every error of CuPy in the body into a ``kind``."""
    try:
        yield
    except _cupy().cuda.memory.OutOfMemoryError as error:
        raise kind(
            f"{what}: the GPU lacks the memory ({first_lines(error)}); compute it in "
            "parts, or free arrays of other libraries"
        ) from error
    except RuntimeError as error:  # of the runtime, the driver, cuBLAS or cuTENSOR
        raise kind(f"{what}: {explained(str(error))}") from error


def explained(said: str) -> str:
    """The meaning of a CUDA error code for the user.

    >>> explained("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access")[:44]
    'the kernel accessed memory that is not its o'
    """
    for code, meaning in _MEANINGS.items():
        if code in said.replace("_", "").lower():
            return f"{meaning} ({first_lines(said)})"
    return first_lines(said)


_MEANINGS = {
    "illegaladdress": "the kernel accessed memory that is not its own; the GPU gives "
    "nothing more to this process, start another one",
    "ecc": "the memory of the GPU has an error that its ECC could not correct; "
    "measure again, and replace the GPU if this comes back",
    "launchoutofresources": "the GPU lacks registers or shared memory for a "
    "work-group; take a smaller one",
    "invalidimage": "the cubin is of another compute capability; clear the cache",
    "launchtimeout": "the kernel ran into the time limit of a GPU with a display",
}


@cache
def _cupy() -> Any:
    """The module.

    Raises:
        DeviceUnavailableError: if it cannot be imported.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        raise DeviceUnavailableError(
            f"CuPy cannot be imported ({error}); {INSTALL_HINT}"
        ) from error


def _cublas() -> Any:
    """The module of CuPy that calls cuBLAS.

    Raises:
        MeasurementError: if it cannot be loaded.
    """
    try:
        return importlib.import_module("cupy_backends.cuda.libs.cublas")
    except ImportError as error:
        raise MeasurementError(
            f"cuBLAS cannot be loaded ({first_lines(str(error))}); install the CUDA "
            "toolkit or nvidia-cublas, or take another recipe than gpu_matrices"
        ) from error


def check_driver(load: Callable[[str], Any] = ctypes.CDLL) -> None:
    """Refuse what CuPy could not work with, by name.

    Raises:
        DeviceUnavailableError: if there is no driver, no GPU, or the driver is older
            than CUDA 12.0.
    """
    try:
        library = load("libcuda.so.1")
    except OSError as error:
        raise DeviceUnavailableError(
            "there is no driver of NVIDIA (libcuda.so.1); install one, or take another "
            "device"
        ) from error
    code = library.cuInit(0)
    if code == NO_DEVICE:
        raise DeviceUnavailableError(
            "the driver of NVIDIA finds no GPU; in a container, give it one"
        )
    if code:
        raise DeviceUnavailableError(
            f"the driver of NVIDIA does not start (error {code}); run nvidia-smi"
        )
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    if version.value < LEAST_DRIVER:
        raise DeviceUnavailableError(
            f"the driver of NVIDIA knows CUDA {_dotted(version.value)}, expected "
            f"{_dotted(LEAST_DRIVER)} or newer; install a newer driver"
        )


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


class CupyDriver:
    """GPUs by way of CuPy; see :class:`Driver`."""

    def gpus(self) -> tuple[GpuFacts, ...]:
        """Those that there are.

        Raises:
            DeviceUnavailableError: saying what is missing.
        """
        check_driver()
        runtime = _cupy().cuda.runtime
        with cuda_errors("the GPUs cannot be listed", DeviceUnavailableError):
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
        cupy = _cupy()
        with cuda_errors(f"GPU {ordinal} cannot be opened", DeviceUnavailableError):
            device = cupy.cuda.Device(ordinal)
            with device:
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


def _packed(array: Any) -> Any:
    """In C's order; CuPy, as numpy does, makes an axis of none."""
    return _cupy().ascontiguousarray(array).reshape(array.shape)


HEAD_START_CYCLES = np.int64(200_000)
"""For which the GPU is kept busy while the host enqueues what is timed, some 0.1 ms:
otherwise the time of a short kernel is that of its launch.
"""


@cache
def _delay_kernel(_device: int) -> Any:
    code = """
    extern "C" __global__ void delay(long long n)
    { for (long long const start = clock64(); clock64() - start < n;); }
    """
    module = _cupy().RawModule(code=code, backend="nvrtc", options=("-default-device",))
    return module.get_function("delay")


@dataclass(frozen=True, eq=False)
class CupySession:
    """A GPU with a stream of the target; see :class:`Session`."""

    device: Any
    stream: Any
    _modules: dict[bytes, Any] = field(default_factory=dict)

    def allocate(self, n_entries: int, dtype: np.dtype[Any]) -> Any:
        with (
            cuda_errors(f"an array of {n_entries * dtype.itemsize} bytes"),
            self.device,
        ):
            return _cupy().empty(n_entries, dtype)

    def write(self, array: Any, values: Array) -> None:
        with cuda_errors("an array cannot be written"), self.device, self.stream:
            array.set(values)
            self.stream.synchronize()

    def read(self, array: Any) -> Array:
        with cuda_errors("an array cannot be read"), self.device:
            values: Array = array.get(stream=self.stream)
            self.stream.synchronize()
            return values

    def clear(self, array: Any, stream: Any = None) -> None:
        with cuda_errors("an array cannot be written"), self.device:
            array.data.memset_async(0, array.nbytes, stream or self.stream)

    def packed(self, array: Any) -> Any:
        with cuda_errors(f"a copy of {array.nbytes} bytes"), self.device:
            return _packed(array)

    def overwrite(self, array: Any, values: Any, stream: Any = None) -> None:
        with cuda_errors("an array cannot be written"), self.device, self._on(stream):
            array[...] = values

    def einsum(self, subscripts: str, arrays: Sequence[Any], stream: Any = None) -> Any:
        """CuBLAS by CuPy, and cuTENSOR where ``CUPY_ACCELERATORS`` names it."""
        cupy = _cupy()
        with cuda_errors("CuPy's einsum failed"), self.device, self._on(stream):
            found = cupy.einsum(subscripts, *arrays, optimize=True)
            return _packed(found)

    def _on(self, stream: Any) -> Any:
        return stream or self.stream

    def function(self, binary: CudaBinary, name: str, shared_bytes: int) -> Any:
        cupy = _cupy()
        with cuda_errors(f"the kernel {name!r} cannot be loaded"), self.device:
            module = self._modules.get(binary.image)
            if module is None:
                module = cupy.cuda.function.Module()
                module.load(binary.image)
                self._modules[binary.image] = module
            function = module.get_function(name)
            if shared_bytes:
                cupy.cuda.driver.funcSetAttribute(
                    function.ptr, MOST_SHARED_BYTES, shared_bytes
                )
            return function

    def launch(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        arguments: Sequence[Any],
        shared_bytes: int,
        stream: Any = None,
    ) -> None:
        with cuda_errors("the kernel failed to start"), self.device:
            function(
                tuple(grid), tuple(block), tuple(arguments),
                shared_mem=shared_bytes, stream=self._on(stream),
            )  # fmt: skip

    def multiply(
        self, call: BlasCall, first: Any, second: Any, result: Any, stream: Any = None
    ) -> None:
        library, cupy = _cublas(), _cupy()
        name = "sgemm" if result.dtype == np.float32 else "dgemm"
        one, zero = (np.full(1, x, result.dtype).ctypes for x in (1, 0))
        left = first.data.ptr, call.ld_first, call.step_first
        right = second.data.ptr, call.ld_second, call.step_second
        into = result.data.ptr, call.ld_result, call.step_result
        n = 3 if call.n_products > 1 else 2  # without steps, there is one product
        with cuda_errors("cuBLAS failed"), self.device, self._on(stream):
            gemm = getattr(library, name if n == 2 else f"{name}StridedBatched")
            gemm(
                cupy.cuda.device.get_cublas_handle(), *call[:5], one.data,
                *left[:n], *right[:n], zero.data, *into[:n], *call[11 : 9 + n],
            )  # fmt: skip

    def synchronize(self) -> None:
        with cuda_errors("the kernel failed to run"), self.device:
            self.stream.synchronize()

    def timed(self, run: Callable[[], None], stream: Any = None) -> float:
        cupy = _cupy()
        with cuda_errors("the kernel failed to run"), self.device:
            first, last = cupy.cuda.Event(), cupy.cuda.Event()
            delay = _delay_kernel(self.device.id)
            delay((1,), (1,), (HEAD_START_CYCLES,), stream=self._on(stream))
            first.record(self._on(stream))
            run()
            last.record(self._on(stream))
            last.synchronize()
            elapsed_ms = cupy.cuda.get_elapsed_time(first, last)
        return max(float(elapsed_ms) * 1e-3, 1e-9)

    def repeated(self, run: Callable[[], None], n: int) -> Callable[[], None]:
        with cuda_errors("the launches cannot be captured"), self.device, self.stream:
            self.stream.begin_capture()
            for _ in range(n):
                run()
            graph = self.stream.end_capture()

        def replay(_kept: Callable[[], None] = run) -> None:
            """The arrays that it works on live as long as what launches them."""
            graph.launch(self.stream)

        return replay

    def free_bytes(self) -> int:
        cupy = _cupy()
        with cuda_errors("the memory cannot be asked for"), self.device:
            free, _ = cupy.cuda.runtime.memGetInfo()
            return int(free) + int(cupy.get_default_memory_pool().free_bytes())

    def adopted(self, array: Any) -> tuple[Any, Any]:
        """On CuPy's current stream: DLPack makes it wait for the array's own."""
        cupy = _cupy()
        with cuda_errors("an array cannot be taken over"), self.device:
            stream = cupy.cuda.get_current_stream()
            if isinstance(array, cupy.ndarray):
                return array, stream
            try:
                return cupy.from_dlpack(array), stream
            except (BufferError, RuntimeError, TypeError) as error:
                raise MeasurementError(
                    f"a {type(array).__name__} cannot be taken over by DLPack: "
                    f"{first_lines(str(error))}"
                ) from error


_FOUND: list[Driver] = [CupyDriver()]


def find_driver() -> Driver:
    """The driver of CuPy; tests replace it where there is no GPU."""
    return _FOUND[-1]
