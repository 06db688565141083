"""As much of CuPy as the runner of a bundle takes, on the processor.

It stands in the place of CuPy where no GPU is: in a folder of its own on the path of
the runner's process. Nothing was compiled for its capability, so that sources are. A
variable makes it misbehave.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from types import SimpleNamespace

import numpy as np

from tests.targets.cuda.fibers import function

__version__ = "0.fake"


class CUDARuntimeError(Exception):
    pass


class CUDADriverError(Exception):
    pass


class ndarray:  # noqa: N801
    def __init__(self, host):
        self.host, self.data, self.nbytes = host, self, host.nbytes
        self.dtype, self.ptr = host.dtype, host.ctypes.data

    def memset(self, byte, n_bytes):
        ctypes.memset(self.host.ctypes.data, byte, n_bytes)

    def get(self):
        return self.host.copy()


def _hang():
    """Until the alarm that the runner has set, which comes at once."""
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    signal.setitimer(signal.ITIMER_REAL, 1e-3)
    time.sleep(600)


def asarray(values):
    if os.environ.get("FAKE_CUPY") == "die":
        os._exit(9)
    return ndarray(np.array(values, order="C"))


def empty(shape, dtype):
    return ndarray(np.empty(shape, dtype))


def get_default_memory_pool():
    return SimpleNamespace(free_all_blocks=lambda: None)


class RawModule:
    def __init__(self, code=None, backend=None, options=(), path=None):
        assert path is None
        assert "-default-device" in options
        assert "#include <" not in code
        self.code = code

    def get_function(self, name):
        if name == "feinsum_delay":
            return lambda grid, block, arguments: None
        return _Kernel(self.code, name)


class _Kernel:
    max_dynamic_shared_size_bytes = 0

    def __init__(self, code, name):
        self.code, self.name = code, name

    def __call__(self, grid, block, arguments, shared_mem=0):
        assert shared_mem == self.max_dynamic_shared_size_bytes
        trouble = os.environ.get("FAKE_CUPY", "")
        kind, _, mark = trouble.partition(":")
        if mark and mark in self.code:
            if kind == "crash":
                os.abort()
            if kind == "fail":
                raise CUDADriverError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many")
            if kind == "lasting":
                raise CUDADriverError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal access")
            if kind == "hang":
                _hang()
        held = [getattr(x, "host", None) for x in arguments]
        held = [
            np.array(x) if h is None else h
            for x, h in zip(arguments, held, strict=True)
        ]
        slots = (ctypes.c_void_p * len(held))(*(x.ctypes.data for x in held))
        sizes = [(ctypes.c_uint * 3)(*part) for part in (grid, block)]
        assert not function(self.code, self.name, shared_mem)(*sizes, slots)
        if kind == "wrong" and mark in self.code:
            held[0][...] += 1  # the output


class _Event:
    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        pass


def _properties(_device):
    if os.environ.get("FAKE_CUPY") == "none":
        raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
    return {"name": b"Fake GPU", "major": 9, "minor": 9, "multiProcessorCount": 2,
            "totalGlobalMem": 1 << 30}  # fmt: skip


cuda = SimpleNamespace(
    get_current_stream=lambda: SimpleNamespace(synchronize=lambda: None),
    Event=_Event,
    device=SimpleNamespace(get_cublas_handle=lambda: 7),
    get_elapsed_time=lambda first, last: 1e3 * (last.at - first.at),
    runtime=SimpleNamespace(
        CUDARuntimeError=CUDARuntimeError,
        getDeviceProperties=_properties,
        driverGetVersion=lambda: 13000,
        deviceGetAttribute=lambda attribute, _device: {13: 1_000_000}[attribute],
    ),
    driver=SimpleNamespace(CUDADriverError=CUDADriverError),
    compiler=SimpleNamespace(CompileException=ValueError),
    memory=SimpleNamespace(OutOfMemoryError=MemoryError),
)
