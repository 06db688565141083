"""GPUs through CuPy: arrays, launches, streams, clocks, cuBLAS and cuTENSOR."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import Any

import numpy as np

from feinsum.dtypes import is_half
from feinsum.errors import DeviceLostError, MeasurementError
from feinsum.libraries import ALIGNMENT
from feinsum.targets.cuda.cupy_errors import (
    CudaErrors,
    explain_error,
    is_lasting,
    load_cupy,
)
from feinsum.targets.cuda.cutensor import load_cutensor
from feinsum.targets.cuda.gemm import Gemm
from feinsum.targets.cuda.nvrtc import CudaBinary
from feinsum.targets.protocol import Array
from feinsum.words import describe_type, get_first_lines

MAX_SHARED_BYTES_ATTRIBUTE = 8
"""``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``."""

MAX_MODULES = 64
"""Number of loaded binaries that are cached, for more functions and repeated builds."""


class _Foreign:
    """A stream of another library, with the protocol of CuPy 14."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def _wrap_stream(cupy: Any, address: int) -> Any:
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_Foreign(address))
    return cupy.cuda.ExternalStream(address)


HEAD_START_CYCLES = np.int64(200_000)
"""Cycles for which the GPU is kept busy while the host enqueues the timed launches.

Otherwise the time of a short kernel would be that of its launch.
"""


@cache
def _build_delay_kernel(_device: int) -> Any:
    code = """
    extern "C" __global__ void delay(long long n)
    { for (long long const start = clock64(); clock64() - start < n;); }
    """
    module = load_cupy().RawModule(
        code=code, backend="nvrtc", options=("-default-device",)
    )
    return module.get_function("delay")


@dataclass(frozen=True, eq=False)
class CupySession:
    """One open GPU. Arrays are flat; a stream of None is that of the target.

    Tests replace it on machines without a GPU.
    """

    device: Any
    stream: Any
    _modules: dict[bytes, Any] = field(default_factory=dict)
    _streams: dict[int, Any] = field(default_factory=dict)

    def allocate(self, n_entries: int, dtype: np.dtype[Any]) -> Any:
        """Allocate an array for the stream of the target."""
        with self.active(self.stream):
            return self.empty((n_entries,), dtype)

    def write(self, array: Any, values: Array) -> None:
        """Copy entries from the host."""
        with CudaErrors("an array cannot be written"), self.device, self.stream:
            array.set(values)
            # the copy may be asynchronous, and callers reuse `values`
            self.stream.synchronize()

    def read(self, array: Any) -> Array:
        """Copy entries to the host, and wait for them."""
        with CudaErrors("an array cannot be read"), self.device:
            values: Array = array.get(stream=self.stream)
            self.stream.synchronize()
            return values

    def clear(self, array: Any, stream: Any = None) -> None:
        """Set an array to zero on the GPU."""
        with CudaErrors("an array cannot be written"), self.device:
            array.data.memset_async(0, array.nbytes, stream or self.stream)

    def strided(self, array: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
        """View memory with other axes, whose strides are in bytes."""
        return load_cupy().ndarray(shape, array.dtype, array.data, strides)

    def packed(self, array: Any) -> Any:
        """Return the array, or a copy in C order that is aligned as kernels expect."""
        if self.is_packed(array):
            return array
        with CudaErrors("a copy of {} bytes", array.nbytes), self.device:
            return array.copy("C")

    def cast(self, array: Any, dtype: np.dtype[Any]) -> Any:
        """Return the array, or a copy of it with another dtype."""
        if array.dtype == dtype:
            return array
        with CudaErrors("a copy of {} entries of {}", array.shape, dtype), self.device:
            return array.astype(dtype)

    def is_packed(self, array: Any) -> bool:
        """Return whether an array is in C order and aligned as kernels expect."""
        return bool(array.flags.c_contiguous) and not array.data.ptr % ALIGNMENT

    def form(self, array: Any) -> Hashable:
        """Return the properties of an array on which a call depends."""
        memory = array.data
        misalignment = memory.ptr % ALIGNMENT
        return array.shape, array.strides, array.dtype, memory.device_id, misalignment

    def current_stream(self) -> Any:
        """Return the caller's stream; None if another GPU is the current one."""
        cuda = load_cupy().cuda
        if cuda.runtime.getDevice() != self.device.id:
            return None
        return cuda.get_current_stream()

    def stream_at(self, address: int) -> Any:
        """Return a stream of another library; 0 is the default one."""
        kind = load_cupy().cuda.Stream
        if not address:
            return kind.null
        stream = self._streams.get(address)
        if stream is None:
            stream = self._streams[address] = _wrap_stream(load_cupy(), address)
        return stream

    @contextmanager
    def active(self, stream: Any = None) -> Iterator[None]:
        """Make this GPU and the given stream the current ones in the body."""
        # CuPy reuses freed memory for the next array of the same stream
        with self.device, stream or nullcontext():
            yield

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """Allocate an array for the current stream; this GPU has to be the current one.

        The memory may still be in use by another stream, because the pool reuses it as
        soon as the host has freed it.
        """
        try:
            return load_cupy().ndarray(shape, dtype)
        except (MemoryError, RuntimeError) as error:
            CudaErrors("an array of {} entries of {}", shape, dtype).explain(error)
            raise

    def launcher(
        self,
        function: Any,
        grid: Sequence[int],
        block: Sequence[int],
        shared_bytes: int,
        values: Sequence[np.generic | None],
    ) -> Callable[[Sequence[int], Any], None]:
        """Return a fast function of addresses and a stream that launches a kernel.

        This GPU has to be the current one.

        Args:
            function: the loaded kernel.
            grid: number of work-groups along each of three axes.
            block: number of work-items of a group along each of three axes.
            shared_bytes: dynamic shared memory of a group.
            values: the arguments in their order; None for an array.
        """
        api = importlib.import_module("cupy_backends.cuda.api.driver")
        # cuLaunchKernel is called directly: CuPy's own call checks and converts every
        # argument, which takes longer than a short kernel
        sizes = *grid, *block, shared_bytes
        launcher = Launcher(api.launchKernel, function, sizes, values)

        def launch(addresses: Sequence[int], stream: Any) -> None:
            try:
                launcher(addresses, stream.ptr)
            except RuntimeError as error:
                CudaErrors("the kernel failed to start").explain(error)
                raise

        return launch

    def multiplier(
        self, gemm: Gemm, dtype: np.dtype[Any]
    ) -> Callable[[Sequence[int], Any], None]:
        """Return a function of addresses and a stream that multiplies by BLAS.

        The addresses are those of left, right and the result; see :class:`Gemm`. This
        GPU has to be the current one.
        """
        # a stack of one matrix is faster as a single product, except in half precision,
        # where only the call for stacks accumulates in single precision
        is_stack = gemm.sizes[0] > 1 or is_half(dtype)
        function, unit, zero = get_blas(dtype.char, is_stack)
        cuda, arguments = load_cupy().cuda, gemm.arguments(is_stack=is_stack)
        current_stream = cuda.get_current_stream
        handle_here = cuda.device.get_cublas_handle

        def multiply(addresses: Sequence[int], stream: Any) -> None:
            try:
                # CuPy's handle works on the current stream, so others are made current
                if stream is current_stream():
                    function(handle_here(), *arguments(unit, zero, *addresses))
                else:
                    with stream:
                        function(handle_here(), *arguments(unit, zero, *addresses))
            except RuntimeError as error:
                CudaErrors("the product failed").explain(error)
                raise

        return multiply

    def contract(
        self, modes: Sequence[Sequence[int]], arrays: Sequence[Any], stream: Any = None
    ) -> None:
        """Contract two arrays into a third one by cuTENSOR, all of any strides.

        Args:
            modes: the indices of each array, as numbers.
            arrays: both operands, and the result.
            stream: the stream; by default that of the target.
        """
        loaded = load_cutensor()
        assert loaded is not None
        (first, second, result), (left, right, out) = arrays, modes
        with (
            CudaErrors("cuTENSOR failed"),
            self.device,
            self._choose_stream(stream),
        ):
            loaded[0].contraction(1.0, first, left, second, right, 0.0, result, out)

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        """Return the addresses of the first entries of arrays."""
        return [array.data.ptr for array in arrays]

    def overwrite(self, array: Any, values: Any, stream: Any = None) -> None:
        """Copy an array over another one of the same shape, both with any strides."""
        with (
            CudaErrors("an array cannot be written"),
            self.device,
            self._choose_stream(stream),
        ):
            array[...] = values

    def einsum(self, subscripts: str, arrays: Sequence[Any], stream: Any = None) -> Any:
        """Evaluate an einsum by cuBLAS, or with ``CUPY_ACCELERATORS`` by cuTENSOR."""
        cupy = load_cupy()
        with (
            CudaErrors("CuPy's einsum failed"),
            self.device,
            self._choose_stream(stream),
        ):
            result = cupy.einsum(subscripts, *arrays, optimize=True)
            return self.packed(result)

    def _choose_stream(self, stream: Any) -> Any:
        return stream or self.stream

    def function(self, binary: CudaBinary, name: str, shared_bytes: int) -> Any:
        """Load a kernel that may use ``shared_bytes`` of dynamic shared memory."""
        cupy = load_cupy()
        with CudaErrors("the kernel {!r} cannot be loaded", name), self.device:
            module = self._modules.get(binary.image)
            if module is None:
                module = cupy.cuda.function.Module()
                module.load(binary.image)
                if len(self._modules) >= MAX_MODULES:
                    self._modules.clear()  # functions keep their own
                self._modules[binary.image] = module
            function = module.get_function(name)
            if shared_bytes:
                cupy.cuda.driver.funcSetAttribute(
                    function.ptr, MAX_SHARED_BYTES_ATTRIBUTE, shared_bytes
                )
            return function

    def synchronize(self, stream: Any = None) -> None:
        """Wait until all work on a stream has ended."""
        with CudaErrors("the kernel failed to run"), self.device:
            self._choose_stream(stream).synchronize()

    def wait(self, waiting: Any, awaited: Any) -> None:
        """Let later work on a stream wait for the earlier work on another one."""
        with CudaErrors("a stream cannot wait"), self.device:
            waiting.wait_event(awaited.record())

    def timed(self, run: Callable[[], None], stream: Any = None) -> float:
        """Return the seconds between two events around the launches of ``run``."""
        cupy = load_cupy()
        with CudaErrors("the kernel failed to run"), self.device:
            start_event, end_event = cupy.cuda.Event(), cupy.cuda.Event()
            # the GPU is kept busy until all launches are enqueued, so that the events
            # exclude the time of the host
            delay = _build_delay_kernel(self.device.id)
            delay((1,), (1,), (HEAD_START_CYCLES,), stream=self._choose_stream(stream))
            start_event.record(self._choose_stream(stream))
            run()
            end_event.record(self._choose_stream(stream))
            end_event.synchronize()
            elapsed_ms = cupy.cuda.get_elapsed_time(start_event, end_event)
        return max(float(elapsed_ms) * 1e-3, 1e-9)

    def repeated(self, run: Callable[[], None], n: int) -> Callable[[], None]:
        """Capture ``n`` repetitions of the launches of ``run`` in a graph."""
        with CudaErrors("the launches cannot be captured"), self.device, self.stream:
            self.stream.begin_capture()
            try:
                for _ in range(n):
                    run()
            finally:  # a stream that still captures could not be used any more
                graph = self.stream.end_capture()

        def replay(_alive: Callable[[], None] = run) -> None:
            """Launch the graph, keeping alive the arrays that it works on."""
            graph.launch(self.stream)

        return replay

    def free_bytes(self) -> int:
        """Return the most bytes that can be allocated, as far as known."""
        cupy = load_cupy()
        with CudaErrors("the free memory cannot be read"), self.device:
            free, total = cupy.cuda.runtime.memGetInfo()
            pool = cupy.get_default_memory_pool()
            if cupy.cuda.get_allocator() != pool.malloc:
                return int(total)  # another allocator may have any part of it for reuse
            # the driver counts blocks that the pool caches for reuse as used
            return int(free) + int(pool.free_bytes())

    def adopted(self, array: Any) -> tuple[Any, Any]:
        """Import an array of any library; CuPy's current stream waits for its own.

        Returns:
            The array of CuPy, and the stream on which it is ready.
        """
        cupy = load_cupy()
        with CudaErrors("an array cannot be imported"), self.device:
            stream = cupy.cuda.get_current_stream()
            if isinstance(array, cupy.ndarray):
                return array, stream
            try:
                return cupy.from_dlpack(array), stream
            except (BufferError, RuntimeError, TypeError) as error:
                kind = DeviceLostError if is_lasting(str(error)) else MeasurementError
                raise kind(
                    f"{describe_type(array)} cannot be imported by DLPack: "
                    f"{explain_error(str(error))}"
                ) from error


def load_cublas() -> Any:
    """Import the module of CuPy that calls cuBLAS.

    Raises:
        MeasurementError: if it cannot be loaded.
    """
    try:
        return importlib.import_module("cupy_backends.cuda.libs.cublas")
    except ImportError as error:
        raise MeasurementError(
            f"cuBLAS cannot be loaded ({get_first_lines(str(error))}); install "
            "the CUDA "
            "toolkit or nvidia-cublas, or use a recipe other than gpu_matrices"
        ) from error


@cache
def get_blas(kind: str, is_stack: bool) -> tuple[Callable[..., None], int, int]:
    """Return the function for a dtype, with the addresses of one and zero.

    Half precision, which only stacks have, is accumulated in single precision.
    """
    cublas = load_cublas()
    unit, zero = _NUMBERS.setdefault(kind, _make_unit_and_zero(kind))
    if kind in CUDA_KINDS:
        # cublasHgemm accumulates in half precision, cublasGemmEx in single precision
        multiply = _make_half_product(cublas, CUDA_KINDS[kind])
        return multiply, unit.ctypes.data, zero.ctypes.data
    name = {"f": "s", "d": "d", "F": "c", "D": "z"}[kind] + "gemm"
    function = getattr(cublas, name + "StridedBatched" * is_stack)
    return function, unit.ctypes.data, zero.ctypes.data


def _make_unit_and_zero(kind: str) -> tuple[Array, Array]:
    dtype = "f" if kind in CUDA_KINDS else kind
    return np.ones(1, dtype), np.zeros(1, dtype)


CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT = 68, -1
CUDA_KINDS = {"e": 2, "E": 14}
"""CUDA_R_16F and CUDA_R_16BF, by numpy's characters of float16 and bfloat16."""


def _make_half_product(cublas: Any, half: int) -> Callable[..., None]:
    def multiply(*arguments: int) -> None:
        *head, unit, a, lda, step_a, b, ldb, step_b, zero, c, ldc, step_c, n = arguments
        cublas.gemmStridedBatchedEx(
            *head, unit, a, half, lda, step_a, b, half, ldb, step_b,
            zero, c, half, ldc, step_c, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip

    return multiply


_NUMBERS: dict[str, tuple[Array, Array]] = {}
"""One and zero by dtype, alive as long as BLAS may read them by their addresses."""

SLOT_BYTES = 8
"""Bytes of one argument: a pointer, or a number of at most the same size."""


class Launcher:
    """A kernel with its sizes, and memory for its arguments.

    Args:
        launch: ``cuLaunchKernel``, with addresses as numbers.
        function: the kernel; its ``ptr`` is its handle.
        sizes: sizes of grid and block, and bytes of shared memory.
        values: the arguments in their order; None for an array.
    """

    def __init__(
        self,
        launch: Callable[..., None],
        function: Any,
        sizes: Sequence[int],
        values: Sequence[np.generic | None],
    ) -> None:
        slots = (ctypes.c_uint64 * len(values))()
        start = ctypes.addressof(slots)
        slot_addresses = [start + SLOT_BYTES * k for k in range(len(values))]
        for address, value in zip(slot_addresses, values, strict=True):
            if value is not None:
                # the driver reads only the bytes of the parameter from a slot
                ctypes.memmove(address, value.tobytes(), value.nbytes)
        self._function = function  # the reference keeps its module loaded
        self._launch, self._head = launch, (function.ptr, *sizes)
        self._slots, self._turn = slots, Lock()
        self._pointers = (ctypes.c_void_p * len(values))(*slot_addresses)
        self._tail = ctypes.addressof(self._pointers), 0
        self._arrays = [k for k, value in enumerate(values) if value is None]

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Launch on a stream, with the addresses of the arrays."""
        slots = self._slots
        # the driver copies the arguments before it returns, so slots can be reused
        with self._turn:
            for k, address in zip(self._arrays, addresses, strict=True):
                slots[k] = address
            self._launch(*self._head, stream, *self._tail)
