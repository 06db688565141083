"""Numbers of 16 bits: half precision, and bfloat16, which numpy has from ml_dtypes.

Sums of such numbers are added up in single precision, and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

try:
    from ml_dtypes import bfloat16
except ImportError:  # without ml_dtypes, there are no arrays of bfloat16
    BFLOAT16: np.dtype[Any] | None = None
else:
    BFLOAT16 = np.dtype(bfloat16)

FLOAT16: np.dtype[Any] = np.dtype(np.float16)
SINGLE: np.dtype[Any] = np.dtype(np.float32)

# no comparisons with None, which numpy takes for float64
HALVES = frozenset({FLOAT16} if BFLOAT16 is None else {FLOAT16, BFLOAT16})
"""The types of half precision that numpy has."""


def is_half(dtype: np.dtype[Any]) -> bool:
    """Tell whether numbers are of half precision, of either type.

    >>> is_half(np.dtype("f2")), is_half(np.dtype("f4"))
    (True, False)
    """
    return dtype in HALVES


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
