"""What is missing is said by name: a driver, a GPU, CuPy, a newer driver."""

from __future__ import annotations

import ctypes
import importlib
from contextlib import nullcontext

import numpy as np
import pytest

from feinsum.errors import (
    DeviceLostError,
    DeviceUnavailableError,
    MeasurementError,
)
from feinsum.targets.cuda import CUDA, cupy_errors
from feinsum.targets.cuda import session as driver
from feinsum.targets.cuda.cupy_errors import LOST, CudaErrors, load_cupy
from feinsum.targets.cuda.cupy_session import CupySession, get_blas
from feinsum.targets.cuda.products import MatrixProduct
from feinsum.targets.cuda.session import CupyDriver, check_driver
from tests.targets.cuda.fake_cupy import cupy
from tests.targets.cuda.fake_cupy.cupy_backends.cuda.libs import cublas


class Library:
    """Of a driver, as far as it is asked before CuPy is loaded."""

    def __init__(self, code=0, version=12040):
        self.code, self.version = code, version

    def cuInit(self, _flags):  # noqa: N802
        return self.code

    def cuDriverGetVersion(self, out):  # noqa: N802
        ctypes.cast(out, ctypes.POINTER(ctypes.c_int))[0] = self.version
        return 0


def missing(_name):
    raise OSError


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (missing, "NVIDIA.s driver .* was not found"),
        (lambda _: Library(code=100), "finds no GPU"),
        (lambda _: Library(code=999), r"does not start \(error 999\)"),
        (lambda _: Library(version=11080), r"supports CUDA 11\.8; expected 12\.0"),
    ],
)
def test_what_is_missing_is_named(load, said):
    """Each with what to do."""
    with pytest.raises(DeviceUnavailableError, match=said):
        check_driver(load)


def test_a_driver_that_does_is_taken():
    """Nothing is said."""
    check_driver(lambda _: Library())


def test_the_lack_of_cupy_is_named(monkeypatch):
    """With the extra that brings it."""

    def refuse(name):
        raise ImportError(f"No module named {name!r}")

    load_cupy.cache_clear()
    monkeypatch.setattr(driver, "check_driver", lambda: None)
    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(DeviceUnavailableError, match=r"CuPy .* pip install 'feinsum"):
        CupyDriver().gpus()


def test_the_lack_of_cublas_is_named(monkeypatch):
    """CuPy loads it when it is called for the first time."""

    def refuse(name):
        raise ImportError('Failure finding "libcublasLt.so.13"')

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(MeasurementError, match=r"libcublasLt.* install the CUDA"):
        get_blas.__wrapped__("d", is_stack=False)


@pytest.mark.parametrize("n", [1, 3])
def test_products_are_asked_of_cublas(monkeypatch, n):
    """One, or a stack of them, at the addresses of the arrays."""
    monkeypatch.setattr("feinsum.targets.cuda.cupy_session.load_cublas", lambda: cublas)
    monkeypatch.setattr("feinsum.targets.cuda.cupy_session.load_cupy", lambda: cupy)
    get_blas.cache_clear()
    rng = np.random.default_rng(0)
    left, right = rng.random((n, 6, 4)), rng.random((6, 5))
    product = MatrixProduct(
        "A", "B", "C", (n, 4, 5, 6), (True, False), (False, True)
    )  # fmt: skip
    arrays = [cupy.asarray(x) for x in (right, left, np.empty((n, 4, 5)))]
    session = CupySession(nullcontext(), nullcontext())
    multiply = session.multiplier(product.gemm({}), arrays[2].dtype)
    multiply(session.addresses(arrays), nullcontext())
    get_blas.cache_clear()
    assert np.allclose(arrays[2].get(), left.transpose(0, 2, 1) @ right)


def test_a_machine_without_a_gpu_says_so():
    """The real driver: either there are devices, or a reason."""
    load_cupy.cache_clear()
    try:
        assert all(device.kind == "gpu" for device in CUDA.devices())
    except DeviceUnavailableError as error:
        assert "NVIDIA" in str(error) or "CuPy" in str(error)  # noqa: PT017


ERRORS = [
    ("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access", "not its own", True),
    ("cudaErrorIllegalAddress: an illegal memory access", "not its own", True),
    ("cudaErrorMisalignedAddress: misaligned address", "misaligned", True),
    ("CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure", "unspecified", True),
    ("cudaErrorLaunchFailure: unspecified launch failure", "unspecified", True),
    ("CUDA_ERROR_ASSERT: device-side assert triggered", "triggered", True),
    ("CUDA_ERROR_ECC_UNCORRECTABLE: an ECC error", "ECC could not", True),
    ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many", "use a smaller one", False),
    ("CUDA_ERROR_OUT_OF_MEMORY: out of memory", "compute it in parts", False),
    ("cudaErrorMemoryAllocation: out of memory", "compute it in parts", False),
    ("CUBLAS_STATUS_ALLOC_FAILED", "compute it in parts", False),
    ("cudaErrorInvalidValue: invalid argument", "invalid argument", False),
    ("CUDA_ERROR_UNKNOWN: unknown error", "unknown error", False),
]


@pytest.mark.parametrize(("code", "words", "is_lost"), ERRORS)
def test_errors_of_cuda_are_explained(monkeypatch, code, words, is_lost):
    """Codes that users meet come with what to do, others as they are. Kind and words of
    one that lasts say that the process has lost the GPU.
    """
    monkeypatch.setattr(cupy_errors, "load_cupy", lambda: cupy)
    with (
        pytest.raises(MeasurementError, match=words) as caught,
        CudaErrors("it failed"),
    ):
        raise RuntimeError(code)
    assert isinstance(caught.value, DeviceLostError) == is_lost
    assert (LOST in str(caught.value)) == is_lost
