"""GPUs by way of CuPy: arrays, launches, streams and clocks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from feinsum.device_arrays import ALIGNMENT
from feinsum.errors import DeviceLostError, MeasurementError
from feinsum.targets.cuda.cublas import blas
from feinsum.targets.cuda.cupy_errors import (
    CudaErrors,
    explained,
    is_lasting,
    load_cupy,
)
from feinsum.targets.cuda.gemm import Gemm
from feinsum.targets.cuda.launching import Launcher
from feinsum.targets.cuda.nvrtc import CudaBinary
from feinsum.targets.protocol import Array
from feinsum.words import type_in_words

__all__ = ["CupySession"]

MOST_SHARED_BYTES = 8
"""``CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES``."""


MOST_MODULES = 64
"""Loaded binaries that are kept for further functions, and for being built again."""


class _Foreign:
    """A stream of another library, by the protocol that CuPy 14 takes."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def _stream(cupy: Any, address: int) -> Any:
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_Foreign(address))
    return cupy.cuda.ExternalStream(address)


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
    module = load_cupy().RawModule(
        code=code, backend="nvrtc", options=("-default-device",)
    )
    return module.get_function("delay")


@dataclass(frozen=True, eq=False)
class CupySession:
    """A GPU with a stream of the target.

    See :class:`feinsum.targets.cuda.session.Session`.
    """

    device: Any
    stream: Any
    _modules: dict[bytes, Any] = field(default_factory=dict)
    _streams: dict[int, Any] = field(default_factory=dict)

    def allocate(self, n_entries: int, dtype: np.dtype[Any]) -> Any:
        with self.active(self.stream):
            return self.empty((n_entries,), dtype)

    def write(self, array: Any, values: Array) -> None:
        with CudaErrors("an array cannot be written"), self.device, self.stream:
            array.set(values)
            # the copy may be asynchronous, and callers reuse `values`
            self.stream.synchronize()

    def read(self, array: Any) -> Array:
        with CudaErrors("an array cannot be read"), self.device:
            values: Array = array.get(stream=self.stream)
            self.stream.synchronize()
            return values

    def clear(self, array: Any, stream: Any = None) -> None:
        with CudaErrors("an array cannot be written"), self.device:
            array.data.memset_async(0, array.nbytes, stream or self.stream)

    def strided(self, array: Any, shape: Sequence[int], strides: Sequence[int]) -> Any:
        return load_cupy().ndarray(shape, array.dtype, array.data, strides)

    def packed(self, array: Any) -> Any:
        if self.is_packed(array):
            return array
        with CudaErrors("a copy of {} bytes", array.nbytes), self.device:
            return array.copy("C")

    def cast(self, array: Any, dtype: np.dtype[Any]) -> Any:
        if array.dtype == dtype:
            return array
        with CudaErrors("a copy of {} entries of {}", array.shape, dtype), self.device:
            return array.astype(dtype)

    def is_packed(self, array: Any) -> bool:
        return bool(array.flags.c_contiguous) and not array.data.ptr % ALIGNMENT

    def form(self, array: Any) -> Hashable:
        place = array.data
        lag = place.ptr % ALIGNMENT
        return array.shape, array.strides, array.dtype, place.device_id, lag

    def current_stream(self) -> Any:
        cuda = load_cupy().cuda
        if cuda.runtime.getDevice() != self.device.id:
            return None
        return cuda.get_current_stream()

    def stream_at(self, address: int) -> Any:
        kind = load_cupy().cuda.Stream
        if not address:
            return kind.null
        found = self._streams.get(address)
        if found is None:
            found = self._streams[address] = _stream(load_cupy(), address)
        return found

    @contextmanager
    def active(self, stream: Any = None) -> Iterator[None]:
        # CuPy hands memory that was freed to the next array of the same stream
        with self.device, stream or nullcontext():
            yield

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
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
        api = importlib.import_module("cupy_backends.cuda.api.driver")
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
        is_stack = gemm.sizes[0] > 1 or dtype == np.float16
        function, one, zero = blas(dtype.char, is_stack)
        cuda, arguments = load_cupy().cuda, gemm.arguments(is_stack=is_stack)
        current_stream = cuda.get_current_stream
        handle_here = cuda.device.get_cublas_handle

        def multiply(addresses: Sequence[int], stream: Any) -> None:
            try:
                # CuPy's handle works on the current stream: others are entered first
                if stream is current_stream():
                    function(handle_here(), *arguments(one, zero, *addresses))
                else:
                    with stream:
                        function(handle_here(), *arguments(one, zero, *addresses))
            except RuntimeError as error:
                CudaErrors("the product failed").explain(error)
                raise

        return multiply

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        return [array.data.ptr for array in arrays]

    def overwrite(self, array: Any, values: Any, stream: Any = None) -> None:
        with CudaErrors("an array cannot be written"), self.device, self._on(stream):
            array[...] = values

    def einsum(self, subscripts: str, arrays: Sequence[Any], stream: Any = None) -> Any:
        """CuBLAS by CuPy, and cuTENSOR where ``CUPY_ACCELERATORS`` names it."""
        cupy = load_cupy()
        with CudaErrors("CuPy's einsum failed"), self.device, self._on(stream):
            found = cupy.einsum(subscripts, *arrays, optimize=True)
            return self.packed(found)

    def _on(self, stream: Any) -> Any:
        return stream or self.stream

    def function(self, binary: CudaBinary, name: str, shared_bytes: int) -> Any:
        cupy = load_cupy()
        with CudaErrors("the kernel {!r} cannot be loaded", name), self.device:
            module = self._modules.get(binary.image)
            if module is None:
                module = cupy.cuda.function.Module()
                module.load(binary.image)
                if len(self._modules) >= MOST_MODULES:
                    self._modules.clear()  # functions keep their own
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
        with CudaErrors("the kernel failed to start"), self.device:
            function(
                tuple(grid), tuple(block), tuple(arguments),
                shared_mem=shared_bytes, stream=self._on(stream),
            )  # fmt: skip

    def multiply(
        self, gemm: Gemm, left: Any, right: Any, result: Any, stream: Any = None
    ) -> None:
        multiply = self.multiplier(gemm, result.dtype)
        with self.device:
            multiply(self.addresses((left, right, result)), self._on(stream))

    def synchronize(self, stream: Any = None) -> None:
        with CudaErrors("the kernel failed to run"), self.device:
            self._on(stream).synchronize()

    def wait(self, waiting: Any, awaited: Any) -> None:
        with CudaErrors("a stream cannot wait"), self.device:
            waiting.wait_event(awaited.record())

    def timed(self, run: Callable[[], None], stream: Any = None) -> float:
        cupy = load_cupy()
        with CudaErrors("the kernel failed to run"), self.device:
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
        with CudaErrors("the launches cannot be captured"), self.device, self.stream:
            self.stream.begin_capture()
            try:
                for _ in range(n):
                    run()
            finally:  # else nothing could be launched on the stream any more
                graph = self.stream.end_capture()

        def replay(_kept: Callable[[], None] = run) -> None:
            """The arrays that it works on live as long as what launches them."""
            graph.launch(self.stream)

        return replay

    def free_bytes(self) -> int:
        cupy = load_cupy()
        with CudaErrors("the free memory cannot be read"), self.device:
            free, total = cupy.cuda.runtime.memGetInfo()
            pool = cupy.get_default_memory_pool()
            if cupy.cuda.get_allocator() != pool.malloc:
                return int(total)  # another allocator may keep any part of it for reuse
            # the driver counts blocks that the pool keeps for reuse as taken
            return int(free) + int(pool.free_bytes())

    def adopted(self, array: Any) -> tuple[Any, Any]:
        """On CuPy's current stream: DLPack makes it wait for the array's own."""
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
                    f"{type_in_words(array)} cannot be imported by DLPack: "
                    f"{explained(str(error))}"
                ) from error
