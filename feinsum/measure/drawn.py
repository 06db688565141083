"""Random values for arrays and scalars of a dtype."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["INTERVAL", "drawn"]

Array = np.ndarray[Any, np.dtype[Any]]

INTERVAL = (0.5, 1.5)
"""Where floating point values are drawn from: roots, logarithms and quotients of these
are finite."""
_INTEGERS = 10


def drawn(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    interval: tuple[float, float] = INTERVAL,
) -> Array:
    """An array, of integers from 1 to 9 where it is one of these.

    Args:
        interval: of floating point values, of real and of imaginary parts.
    """
    match dtype.kind:
        case "c":
            real, imaginary = (rng.uniform(*interval, shape) for _ in range(2))
            return np.asarray(real + 1j * imaginary).astype(dtype)
        case "f":
            return np.asarray(rng.uniform(*interval, shape)).astype(dtype)
        case "b":
            return np.asarray(rng.integers(0, 2, shape)).astype(dtype)
        case _:
            return np.asarray(rng.integers(1, _INTEGERS, shape)).astype(dtype)
