"""A driver of GPUs where there is none: the compiler of the host runs CUDA C++.

What NVRTC compiled is run by its source: work-items are fibers that change at barriers.
It is for tests alone, and far too slow for anything else.
"""

from __future__ import annotations

import ctypes
import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import pytest

from feinsum.errors import DeviceUnavailableError, MeasurementError
from feinsum.targets.cuda import session
from feinsum.targets.cuda.gemm import multiply_reference
from feinsum.targets.cuda.nvrtc import find_nvrtc
from feinsum.targets.cuda.session import GpuFacts
from tests.targets.cuda.fibers import function

__all__ = ["StandInDriver", "needs_nvrtc", "stand_in"]


def contract_reference(modes, arrays):
    """What cuTENSOR computes, by numpy: a product of two arrays into a third one."""
    (first, second, result), (left, right, out) = arrays, modes
    assert all(len({*mode}) == len(mode) for mode in modes)
    np.einsum(first, left, second, right, out, out=result)


BARRIERS = "work-items end while others wait at a barrier"


def _why_no_nvrtc() -> str:
    try:
        find_nvrtc()
    except DeviceUnavailableError as error:
        return str(error)
    return "" if shutil.which("g++") else "there is no g++"


needs_nvrtc = pytest.mark.skipif(bool(_why_no_nvrtc()), reason=_why_no_nvrtc())


@pytest.fixture
def stand_in(monkeypatch):
    """A driver with one GPU."""
    made = StandInDriver()
    monkeypatch.setattr(session, "_DRIVERS", [made])
    return made


def memory_at(address, dtype, shape, strides):
    """The flat memory that a strided array spans."""
    n = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (n * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


@dataclass(frozen=True, eq=False)
class StandInDriver:
    """Finds one GPU; see :class:`feinsum.targets.cuda.session.Driver`."""

    capability: tuple[int, int] = (9, 0)
    memory_bytes: int = 1 << 28

    def gpus(self):
        return (
            GpuFacts(
                0, "stand-in", self.capability, 2, 1_000_000, self.memory_bytes,
                1 << 20, "0000:00:00", "12.9",
            ),
        )  # fmt: skip

    def open(self, ordinal):
        return StandInSession(self.memory_bytes)


@dataclass(frozen=True, eq=False)
class StandInSession:
    """Arrays are those of numpy; see ``feinsum.targets.cuda.cupy_session``.

    Attributes:
        streams: where each of the launches, and what else is enqueued, went.
    """

    memory_bytes: int
    launches: list[str] = field(default_factory=list)
    streams: list[tuple[str, object]] = field(default_factory=list)

    stream = "the target's"

    def _launched(self, what, stream):
        self.launches.append(what)
        self._enqueued(what, stream)

    def _enqueued(self, what, stream):
        self.streams.append((what, stream or self.stream))

    def active(self, stream=None):
        return nullcontext()

    def allocate(self, n_entries, dtype):
        return np.empty(n_entries, dtype)

    def empty(self, shape, dtype):
        return np.empty(shape, dtype)

    def write(self, array, values):
        array[: values.size] = values

    def read(self, array):
        return array.copy()

    def clear(self, array, stream=None):
        self._enqueued("clear", stream)
        array[:] = 0

    def strided(self, array, shape, strides):
        return np.lib.stride_tricks.as_strided(array, shape, strides)

    def packed(self, array):
        return array if self.is_packed(array) else array.copy("C")

    def cast(self, array, dtype):
        return array if array.dtype == dtype else array.astype(dtype)

    def is_packed(self, array):
        return array.flags.c_contiguous

    def form(self, array):
        return array.shape, array.strides, array.dtype

    def stream_at(self, address):
        return address

    def current_stream(self):
        return "the caller's"

    def multiplier(self, gemm, dtype):
        def run(addresses, stream):
            self._launched("product", stream)
            sizes = gemm.sizes
            shapes = (0, 1, 3), (0, 3, 2), (0, 1, 2)
            flat = [
                memory_at(address, dtype, [sizes[k] for k in shape], strides)
                for address, shape, strides in zip(
                    addresses, shapes, (gemm.left, gemm.right, gemm.out), strict=True
                )
            ]
            multiply_reference(gemm, *flat)

        return run

    def contract(self, modes, arrays, stream=None):
        self._launched("cutensor", stream)
        contract_reference(modes, arrays)

    def addresses(self, arrays):
        return [array.ctypes.data for array in arrays]

    def overwrite(self, array, values, stream=None):
        self._enqueued("overwrite", stream)
        array[...] = values

    def einsum(self, subscripts, arrays, stream=None):
        self._launched("library", stream)
        return np.ascontiguousarray(np.einsum(subscripts, *arrays, optimize=True))

    def function(self, binary, name, shared_bytes):
        assert binary.image[:4] == b"\x7fELF" or b".target" in binary.image
        return function(binary.source, name, shared_bytes)

    def launch(self, function, grid, block, arguments, shared_bytes, stream=None):
        assert all(isinstance(n, int) and n > 0 for n in (*grid, *block))
        held = [np.array(x) if isinstance(x, np.generic) else x for x in arguments]
        places = [x if isinstance(x, int) else x.ctypes.data for x in held]
        slots = (ctypes.c_void_p * len(held))(*places)
        sizes = [(ctypes.c_uint * 3)(*part) for part in (grid, block)]
        if function(*sizes, slots):
            raise MeasurementError(BARRIERS)
        self._launched("launch", stream)

    def launcher(self, function, grid, block, shared_bytes, values):
        def launch(addresses, stream):
            left = iter(addresses)
            given = [next(left) if value is None else value for value in values]
            assert not list(left)
            self.launch(function, grid, block, given, shared_bytes, stream)

        return launch

    def synchronize(self, stream=None):
        self._enqueued("synchronize", stream)

    def wait(self, waiting, awaited):
        self._enqueued(("wait for", awaited), waiting)

    def timed(self, run, stream=None):
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    def repeated(self, run, n):
        def replay():
            for _ in range(n):
                run()

        return replay

    def free_bytes(self):
        return self.memory_bytes

    def adopted(self, array):
        found = array if isinstance(array, np.ndarray) else array.host
        return found, self.current_stream()
