"""Programs as generators of calls, which receive the result of each call."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import numpy as np

__all__ = ["Array", "Calls", "Einsum", "draw_normal", "draw_uniform", "run_calls"]

Array: TypeAlias = np.ndarray
Calls: TypeAlias = Generator[tuple[str, tuple[Array, ...]], Array, None]
"""Yields subscripts and operands, and receives the result."""
Einsum: TypeAlias = Callable[..., Any]


def run_calls(calls: Calls, compute: Einsum) -> None:
    """Compute all calls of a program.

    >>> def program():
    ...     total = yield "i->", (np.arange(4),)
    ...     print(total)
    >>> run_calls(program(), np.einsum)
    6
    """
    try:
        subscripts, operands = next(calls)
        while True:
            subscripts, operands = calls.send(compute(subscripts, *operands))
    except StopIteration:
        return


def draw_uniform(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str = "float64"
) -> Array:
    """Draw numbers around 1, whose sums of products have no cancellation."""
    real = np.dtype("float64" if dtype == "float64" else "float32")
    values = rng.random(shape, real) + real.type(0.5)
    return values * np.complex64(1 + 0.5j) if dtype == "complex64" else values


def draw_normal(
    rng: np.random.Generator, shape: tuple[int, ...], scale: float = 1.0
) -> Array:
    """Draw normally distributed numbers."""
    values = rng.standard_normal(shape)
    values *= scale
    return values
