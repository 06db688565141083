"""torch and JAX as far as calls on a GPU need them, on streams of the fake one."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from tests.targets.cuda.fake_driver import Stream, ndarray

__all__ = ["JaxArray", "Tensor", "jax", "torch"]


class OutOfMemoryError(RuntimeError):
    pass


class Tensor:
    """An array of numpy that is read and written on torch's stream."""

    __module__ = "torch"
    device = "cuda:0"

    def __init__(self, host, *, requires_grad=False, is_neg=False):
        self.host, self.requires_grad, self.is_negative = host, requires_grad, is_neg
        self.shape, self.dtype = host.shape, host.dtype

    def stride(self):
        return self.host.strides

    def get_device(self):
        return 0

    def data_ptr(self):
        return self.host.ctypes.data

    def is_neg(self):
        return self.is_negative

    def resolve_neg(self):
        made = TORCH.empty(self.shape, self.dtype)
        TORCH.stream.do(lambda: np.negative(self.host, out=made.host))
        return made

    def is_conj(self):
        return False

    def permute(self, axes):
        return Tensor(self.host.transpose(axes))

    def reshape(self, shape):
        return Tensor(self.host.reshape(shape))

    def to(self, dtype):
        assert dtype == self.dtype
        return self

    def contiguous(self):
        return self

    def fill(self, values):
        TORCH.stream.do(lambda: np.copyto(self.host, values))

    def wait(self):
        """The values, for whoever waits for torch's stream alone."""
        TORCH.stream.synchronize()
        return self.host.copy()

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, stream):
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient")
        Stream.known[stream].wait_event(TORCH.stream.record())
        return self.host


class Torch:
    """Attributes:
    is_full: whether there is no memory for another tensor.
    """

    OutOfMemoryError = OutOfMemoryError
    float64, int64, uint8 = map(np.dtype, ("float64", "int64", "uint8"))

    def __init__(self):
        self.reset()
        self.cuda = SimpleNamespace(
            current_stream=lambda: SimpleNamespace(cuda_stream=self.stream.ptr)
        )

    def reset(self):
        self.stream, self.is_full = Stream(), False

    def empty(self, shape, dtype, device=None):
        if self.is_full:
            raise OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB.")
        return Tensor(ndarray(shape, dtype).host)

    def einsum(self, subscripts, *tensors):
        hosts = [tensor.host for tensor in tensors]
        if hosts[0].dtype.kind == "i":
            raise RuntimeError("\"baddbmm_cuda\" not implemented for 'Long'")
        made = self.empty(np.einsum(subscripts, *hosts).shape, hosts[0].dtype)
        self.stream.do(lambda: np.einsum(subscripts, *hosts, out=made.host))
        return made

    def from_dlpack(self, array):
        return Tensor(array.__dlpack__(stream=self.stream.ptr))


TORCH = Torch()


@pytest.fixture
def torch(monkeypatch):
    """With a stream of its own as the current one."""
    TORCH.reset()
    monkeypatch.setitem(sys.modules, "torch", TORCH)
    return TORCH


class JaxArray:
    """An array that nobody else writes; only its library knows its stream."""

    __module__ = "jaxlib._jax"

    def __init__(self, host):
        assert host.flags.c_contiguous
        self.host, self.stream = host, Stream()

    def wait(self):
        self.stream.synchronize()
        return self.host

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, stream):
        return self.host


@pytest.fixture
def jax(monkeypatch):
    """Takes arrays over that lie in C's order."""

    def from_dlpack(array):
        made = JaxArray(array.host)
        array.__dlpack__(stream=made.stream.ptr)
        return made

    module = SimpleNamespace(from_dlpack=from_dlpack)
    monkeypatch.setitem(sys.modules, "jax.dlpack", module)
    return module
