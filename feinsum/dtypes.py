"""Kinds of numbers, with those of 16 bits: half precision, and bfloat16 of ml_dtypes.

Sums of such numbers are added up in single precision, and rounded once. Calls import
this module, which loads no other package than numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FLOAT16: np.dtype[Any] = np.dtype(np.float16)
SINGLE: np.dtype[Any] = np.dtype(np.float32)

USER_DEFINED = 256
"""Number of the first dtype that is not numpy's own (``NPY_USERDEF``)."""


def is_half(dtype: np.dtype[Any]) -> bool:
    """Tell whether numbers are of half precision, of either type.

    >>> is_half(np.dtype("f2")), is_half(np.dtype("f4"))
    (True, False)
    """
    is_bfloat16 = dtype.num >= USER_DEFINED and dtype.name == "bfloat16"
    return is_bfloat16 or dtype == FLOAT16


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Tell whether entries are booleans or numbers."""
    return dtype.kind in "biufc" or is_half(dtype)


def is_inexact(dtype: np.dtype[Any]) -> bool:
    """Tell whether numbers are real or complex floating-point numbers."""
    return dtype.kind in "fc" or is_half(dtype)


def get_eps(dtype: np.dtype[Any]) -> float:
    """Return the distance from 1 to the next larger number.

    >>> get_eps(np.dtype("f2")) == 2.0**-10
    True
    """
    is_bfloat16 = is_half(dtype) and dtype != FLOAT16
    return 2.0**-7 if is_bfloat16 else float(np.finfo(dtype).eps)


def format_dtype(dtype: np.dtype[Any]) -> str:
    """Return the text form of a dtype, which :class:`numpy.dtype` parses.

    >>> format_dtype(np.dtype("float64"))
    '<f8'
    """
    return dtype.name if is_half(dtype) and dtype != FLOAT16 else dtype.str


def get_sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which numbers are added up.

    >>> get_sum_dtype(np.dtype("f2")), get_sum_dtype(np.dtype("f8"))
    (dtype('float32'), dtype('float64'))
    """
    return SINGLE if is_half(dtype) else dtype
