"""cuBLAS by CuPy's bindings."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from feinsum.errors import MeasurementError
from feinsum.targets.messages import first_lines
from feinsum.targets.protocol import Array

__all__ = ["blas", "load_cublas"]


def load_cublas() -> Any:
    """The module of CuPy that calls cuBLAS.

    Raises:
        MeasurementError: if it cannot be loaded.
    """
    try:
        return importlib.import_module("cupy_backends.cuda.libs.cublas")
    except ImportError as error:
        raise MeasurementError(
            f"cuBLAS cannot be loaded ({first_lines(str(error))}); install the CUDA "
            "toolkit or nvidia-cublas, or use a recipe other than gpu_matrices"
        ) from error


@cache
def blas(kind: str, is_stack: bool) -> tuple[Callable[..., None], int, int]:
    """The function for a type of numbers, with the addresses of one and zero.

    Half precision, of stacks alone, is added up in single precision.
    """
    cublas = load_cublas()
    one, zero = _NUMBERS.setdefault(kind, _one_and_zero(kind))
    if kind == "e":
        return _of_halves(cublas), one.ctypes.data, zero.ctypes.data
    name = {"f": "s", "d": "d", "F": "c", "D": "z"}[kind] + "gemm"
    function = getattr(cublas, name + "StridedBatched" * is_stack)
    return function, one.ctypes.data, zero.ctypes.data


def _one_and_zero(kind: str) -> tuple[Array, Array]:
    dtype = "f" if kind == "e" else kind
    return np.ones(1, dtype), np.zeros(1, dtype)


CUDA_R_16F, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT = 2, 68, -1


def _of_halves(cublas: Any) -> Callable[..., None]:
    half = CUDA_R_16F

    def multiply(*given: int) -> None:
        *head, one, a, lda, step_a, b, ldb, step_b, zero, c, ldc, step_c, n = given
        cublas.gemmStridedBatchedEx(
            *head, one, a, half, lda, step_a, b, half, ldb, step_b,
            zero, c, half, ldc, step_c, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip

    return multiply


_NUMBERS: dict[str, tuple[Array, Array]] = {}
"""One and zero, which BLAS reads where they are."""
