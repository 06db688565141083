"""The calls of a program, which get the result of one before they make the next."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Array", "Calls", "Einsum", "normal", "run", "uniform"]

Array: TypeAlias = np.ndarray
Calls: TypeAlias = Generator[tuple[str, tuple[Array, ...]], Array, None]
"""Yields subscripts and operands; the result is sent back."""
Einsum: TypeAlias = Callable[..., Any]


def run(calls: Calls, compute: Einsum) -> None:
    """Compute every call of a program.

    >>> def program():
    ...     total = yield "i->", (np.arange(4),)
    ...     print(total)
    >>> run(program(), np.einsum)
    6
    """
    try:
        subscripts, operands = next(calls)
        while True:
            subscripts, operands = calls.send(compute(subscripts, *operands))
    except StopIteration:
        return


def uniform(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float64"
) -> Array:
    """Numbers around 1: sums of their products have no cancellation."""
    real = np.dtype("float64" if dtype == "float64" else "float32")
    values = rng.random(shape, real) + real.type(0.5)
    return values * np.complex64(1 + 0.5j) if dtype == "complex64" else values


def normal(
    rng: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0
) -> Array:
    values = rng.standard_normal(shape)
    values *= scale
    return values
