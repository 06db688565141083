"""The functions that operand functions may call, as numpy evaluates them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

__all__ = ["FUNCTIONS", "UFUNCS", "function_of"]

UFUNCS: Mapping[str, np.ufunc] = {
    "abs": np.absolute,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "exp": np.exp,
    "fabs": np.absolute,
    "floor": np.floor,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "log": np.log,
    "log10": np.log10,
    "max": np.fmax,
    "min": np.fmin,
    "pow": np.power,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
"""Functions of real numbers, by their names in C. ``max`` and ``min`` are those of C,
too: a number goes before no number."""

_OTHERS: Mapping[str, Callable[..., Any]] = {
    "conj": np.conj,
    "imag": np.imag,
    "real": np.real,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}

_CASTS: Mapping[str, Callable[..., Any]] = {
    dtype.__name__: lambda x, dtype=dtype: np.asarray(x).astype(dtype)
    for dtype in (
        *(np.bool_, np.int8, np.int16, np.int32, np.int64),
        *(np.uint8, np.uint16, np.uint32, np.uint64),
        *(np.float16, np.float32, np.float64, np.complex64, np.complex128),
    )
}
"""Of arrays, and of numbers, which are of no dtype otherwise."""

FUNCTIONS = frozenset({*UFUNCS, *_OTHERS})
"""Functions of floating point numbers that raised operand functions may call."""


def function_of(name: str, n_args: int) -> Callable[..., Any] | None:
    """The function of that name and number of arguments; None if there is none.

    >>> function_of("sqrt", 1)(4.0), function_of("open", 1)
    (np.float64(2.0), None)
    """
    if (known := {**_OTHERS, **_CASTS}.get(name)) and n_args == 1:
        return known
    # A ufunc takes one argument more, into which it writes: that is no number.
    function = UFUNCS.get(name) or getattr(np, name, None)
    if not isinstance(function, np.ufunc) or function.signature is not None:
        return None
    return function if (function.nin, function.nout) == (n_args, 1) else None
