"""Arrays that behave as CuPy's do where plans use them, in memory of the host.

As there, numpy's functions and operators take them, but not together with numpy's
arrays, and nothing converts them to the host but ``get``. Their memory is the host's,
so every MPI can send it.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

FREE_BYTES = 1 << 30

DEVICE = SimpleNamespace(synchronize=lambda: None, mem_info=(FREE_BYTES, FREE_BYTES))


class GpuArray(NDArrayOperatorsMixin):
    """An array on a GPU that does not exist.

    Attributes:
        copies: number of copies to the host, of all arrays.
    """

    copies = 0
    device = DEVICE

    def __init__(self, host: np.ndarray) -> None:
        self._host = host

    @property
    def __cuda_array_interface__(self) -> dict:
        return {**self._host.__array_interface__, "version": 3}

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise TypeError("no implicit conversion to a NumPy array")

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
        arguments = dict(kwargs)
        if out is not None:
            arguments["out"] = tuple(map(_unwrap, out))
        return _wrap(getattr(ufunc, method)(*map(_unwrap, inputs), **arguments))

    def __array_function__(self, function, types, args, kwargs):
        keywords = {k: v for k, v in kwargs.items() if k != "like"}
        if function is np.asarray:  # copies from the host
            return GpuArray(np.array(*args, **keywords))
        return _wrap(function(*_unwrap_all(args), **keywords))

    def __getitem__(self, index):
        return GpuArray(self._host[index])

    def __setitem__(self, index, value) -> None:
        self._host[index] = _unwrap(value)

    def __getattr__(self, name: str):
        if name in ("shape", "dtype", "size", "nbytes", "ndim", "flags"):
            return getattr(self._host, name)
        if name in ("copy", "reshape", "view", "transpose"):
            return lambda *args: GpuArray(getattr(self._host, name)(*args))
        raise AttributeError(name)

    def get(self) -> np.ndarray:
        type(self).copies += 1
        return self._host.copy()


def to_gpu(array: np.ndarray) -> GpuArray:
    return GpuArray(np.array(array, order="C"))


def make_cupy() -> SimpleNamespace:
    """What takes the place of the module, for ranks that have no block."""
    return SimpleNamespace(empty=lambda shape: GpuArray(np.empty(shape)))


def _wrap(value):
    return GpuArray(value) if isinstance(value, np.ndarray) else value


def _unwrap(value):
    if isinstance(value, GpuArray):
        return value._host
    if isinstance(value, np.ndarray):
        raise TypeError("an array of numpy among those on a GPU")
    return value


def _unwrap_all(args):
    return [
        _unwrap_all(value)
        if isinstance(value, list | tuple)
        and any(isinstance(entry, GpuArray) for entry in value)
        else _unwrap(value)
        for value in args
    ]
