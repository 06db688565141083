"""CuPy with streams, events, graphs and failures, where there is no GPU.

Work waits in its stream until the host waits for it: what runs on the wrong stream, or
does not wait for another one, gives wrong results. New memory has no numbers in it, and
is never used again. Kernels are those of the stand-in: fibers on the processor.
"""

from __future__ import annotations

import ctypes
import sys
from collections import deque
from contextlib import nullcontext
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest

from feinsum.targets.cuda import session
from feinsum.targets.cuda.cupy_errors import load_cupy
from feinsum.targets.cuda.cupy_session import CupySession, _build_delay_kernel, get_blas
from feinsum.targets.cuda.cutensor import load_cutensor
from tests.targets.cuda.fake_cupy.cupy_backends.cuda.libs import cublas
from tests.targets.cuda.fibers import function
from tests.targets.cuda.stand_in import StandInDriver, contract_reference

__all__ = [
    "CUDARuntimeError", "FakeGpu", "Stream", "cutensor", "fake_gpu", "ndarray",
]  # fmt: skip

ADDRESSES = count(0)
ALIGNMENT = 256
NO_NUMBER = 255
"""All bytes of a NaN."""


class CUDARuntimeError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class Event:
    def __init__(self):
        self.stream, self.is_done = None, True

    def record(self, stream):
        self.stream, self.is_done = stream, False
        stream.do(self._end)

    def _end(self):
        self.is_done = True

    def synchronize(self):
        while not self.is_done:
            self.stream.do_next()


class Stream:
    """What it is to do, in order; nothing is done before somebody waits."""

    known: dict[int, Stream] = {}  # noqa: RUF012
    current: list[Stream] = []  # noqa: RUF012

    def __init__(self, non_blocking=False):
        self.ptr, self.left, self.captured = next(ADDRESSES), deque(), None
        self.known[self.ptr] = self

    @classmethod
    def from_external(cls, other):
        return cls.known[other.__cuda_stream__()[1]]

    def do(self, work):
        (self.left if self.captured is None else self.captured).append(work)

    def do_next(self):
        self.left.popleft()()

    def synchronize(self):
        while self.left:
            self.do_next()

    def record(self):
        event = Event()
        event.record(self)
        return event

    def wait_event(self, event):
        self.do(event.synchronize)

    def begin_capture(self):
        assert self.captured is None
        self.captured = []

    def end_capture(self):
        captured, self.captured = self.captured, None
        return SimpleNamespace(launch=lambda stream: [*map(stream.do, captured)])

    def __enter__(self):
        self.current.append(self)
        return self

    def __exit__(self, *_):
        self.current.pop()


Stream.null = Stream()
Stream.current.append(Stream.null)


def current():
    return Stream.current[-1]


class FakeGpu:
    """It is its own pool of memory.

    Attributes:
        free: bytes of an array at most, and of the driver's answer.
        kept: all memory that was ever allocated.
        fault: None, or what a launch raises: at once, or when it runs.
        is_late: which of them.
    """

    def __init__(self):
        self.reset()

    def reset(self):
        self.free, self.kept = 1 << 28, []
        self.fault, self.is_late = None, False
        self.allocator = self.malloc

    def free_bytes(self):
        return 0

    def malloc(self, n_bytes):
        if n_bytes > self.free:
            raise OutOfMemoryError(f"Out of memory allocating {n_bytes:,} bytes")
        memory = np.full(n_bytes + ALIGNMENT, NO_NUMBER, np.uint8)
        self.kept.append(memory)
        skipped = -memory.ctypes.data % ALIGNMENT
        return memory[skipped : skipped + n_bytes]

    def launch(self, kernel, sizes, words, stream):
        """Launch a kernel of the host.

        Args:
            words: its arguments, each with its bytes as a number.
        """
        if self.fault and not self.is_late:
            raise self.fault

        def run():
            if self.fault:
                raise self.fault
            held = (ctypes.c_uint64 * len(words))(*words)
            places = range(start := ctypes.addressof(held), start + 8 * len(words), 8)
            given = [
                word if is_array else place
                for is_array, word, place in zip(
                    kernel.are_arrays, words, places, strict=True
                )
            ]
            parts = [(ctypes.c_uint * 3)(*part) for part in sizes]
            assert not kernel(*parts, (ctypes.c_void_p * len(words))(*given))

        stream.do(run)


GPU = FakeGpu()


class ndarray:  # noqa: N801
    """An array of numpy that is written when its stream comes to it."""

    __module__ = "cupy"

    def __init__(self, shape, dtype=float, memptr=None, strides=None):
        dtype = np.dtype(dtype)
        memory = GPU.malloc(int(np.prod(shape)) * dtype.itemsize) if memptr is None \
            else memptr.memory  # fmt: skip
        self.host = np.ndarray(shape, dtype, memory, strides=strides)

    @classmethod
    def of(cls, host):
        made = cls.__new__(cls)
        made.host = host
        return made

    @property
    def data(self):
        n_bytes = 1 + sum(
            (n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)
        ) + self.itemsize if self.host.size else 0  # fmt: skip
        ptr = self.host.ctypes.data
        return SimpleNamespace(
            ptr=ptr, device_id=0, memory=(ctypes.c_char * n_bytes).from_address(ptr),
            memset_async=lambda byte, n, stream: stream.do(
                lambda: ctypes.memset(ptr, byte, n)
            ),
        )  # fmt: skip

    def __getattr__(self, name):
        if name not in {"shape", "strides", "dtype", "nbytes", "itemsize", "flags",
                        "ndim", "size"}:  # fmt: skip
            raise AttributeError(name)
        return getattr(self.host, name)

    def __setitem__(self, where, values):
        source = getattr(values, "host", values)
        current().do(lambda: self.host.__setitem__(where, source))

    def _with(self, dtype):
        made = ndarray(self.shape, dtype)
        made[...] = self
        return made

    def astype(self, dtype):
        return self._with(dtype)

    def copy(self, order):
        return self._with(self.dtype)

    def reshape(self, shape):
        view = self.host.view()
        view.shape = shape
        return self.of(view)

    def transpose(self, axes):
        return self.of(self.host.transpose(axes))

    def set(self, values):
        self[...] = values

    def get(self, stream=None):
        (stream or current()).synchronize()
        return self.host.copy()

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, stream):
        Stream.known[stream].wait_event(current().record())
        return self.host


def from_dlpack(array):
    return ndarray.of(array.__dlpack__(stream=current().ptr))


def einsum(subscripts, *arrays, optimize):
    hosts = [array.host for array in arrays]
    made = np.einsum(subscripts, *(np.zeros(x.shape, x.dtype) for x in hosts))
    result = ndarray(made.shape, made.dtype)
    current().do(lambda: np.einsum(subscripts, *hosts, out=result.host))
    return result


class Function:
    """A kernel of a module, with its handle."""

    known: dict[int, Function] = {}  # noqa: RUF012

    def __init__(self, source, name):
        self.source, self.name, self.ptr = source, name, next(ADDRESSES)
        self.known[self.ptr] = self

    def launch(self, grid, block, shared_bytes, words, stream):
        kernel = function(self.source, self.name, shared_bytes)
        GPU.launch(kernel, (grid, block), words, stream)


def launch_kernel(handle, *given):
    """``cuLaunchKernel``, which has copied the arguments when it returns."""
    *sizes, shared_bytes, stream, places, _ = given
    found = Function.known[handle]
    n_arguments = len(function(found.source, found.name, shared_bytes).are_arrays)
    words = [
        ctypes.c_uint64.from_address(place).value
        for place in (ctypes.c_void_p * n_arguments).from_address(places)
    ]
    found.launch(sizes[:3], sizes[3:], shared_bytes, words, Stream.known[stream])


class Module:
    """Of a binary, which for us is its source."""

    sources: dict[bytes, str] = {}  # noqa: RUF012

    def load(self, image):
        self.source = self.sources[image]

    def get_function(self, name):
        return Function(self.source, name)


class Session(CupySession):
    """The real one, which notes what binaries were compiled from."""

    def function(self, binary, name, shared_bytes):
        Module.sources[binary.image] = binary.source
        return super().function(binary, name, shared_bytes)


class Device(nullcontext):
    id = 0


class Driver(StandInDriver):
    def open(self, ordinal):
        return Session(Device(), Stream(non_blocking=True))


def product(name):
    """A function of cuBLAS on the current stream."""
    return lambda *given: current().do(lambda: getattr(cublas, name)(*given))


def contraction(alpha, first, left, second, right, beta, result, out):
    """``cupyx.cutensor.contraction`` on the current stream."""
    assert (alpha, beta) == (1.0, 0.0)
    hosts = [array.host for array in (first, second, result)]
    current().do(lambda: contract_reference([left, right, out], hosts))


DELAY = SimpleNamespace(get_function=lambda _: lambda *_, **__: None)
CUPY = SimpleNamespace(
    RawModule=lambda **_: DELAY,
    cuda=SimpleNamespace(
        Event=Event,
        Stream=Stream,
        device=SimpleNamespace(get_cublas_handle=lambda: cublas.HANDLE),
        driver=SimpleNamespace(funcSetAttribute=lambda *_: None),
        function=SimpleNamespace(Module=Module),
        get_allocator=lambda: GPU.allocator,
        get_current_stream=current,
        get_elapsed_time=lambda _first, _last: 1.0,
        runtime=SimpleNamespace(
            getDevice=lambda: 0, memGetInfo=lambda: (GPU.free, 1 << 40)
        ),
    ),
    einsum=einsum,
    from_dlpack=from_dlpack,
    get_default_memory_pool=lambda: GPU,
    ndarray=ndarray,
)
MODULES = {
    "cupy": CUPY,
    "cupy_backends.cuda.api.driver": SimpleNamespace(launchKernel=launch_kernel),
    "cupy_backends.cuda.libs.cublas": SimpleNamespace(**{
        name: product(name) for name in ("dgemm", "dgemmStridedBatched")
    }),
}  # fmt: skip
CUTENSOR = {
    "cupy_backends.cuda.libs.cutensor": SimpleNamespace(get_version=lambda: 20301),
    "cupyx.cutensor": SimpleNamespace(contraction=contraction),
}
CACHES = load_cupy, load_cutensor, get_blas, _build_delay_kernel


@pytest.fixture
def fake_gpu(monkeypatch):
    """The GPU, which CuPy and the driver find."""
    for name, module in MODULES.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(session, "_DRIVERS", [Driver()])
    for cache in CACHES:
        cache.cache_clear()
    GPU.reset()
    yield GPU
    for cache in CACHES:
        cache.cache_clear()


@pytest.fixture
def cutensor(fake_gpu, monkeypatch):
    """The library, which CuPy finds beside the GPU."""
    for name, module in CUTENSOR.items():
        monkeypatch.setitem(sys.modules, name, module)
    load_cutensor.cache_clear()
    yield
    load_cutensor.cache_clear()
