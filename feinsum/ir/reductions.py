"""Reductions over the indices missing from the result of a statement.

A reduction is one of :data:`REDUCTIONS` by name, or an expression over ``a`` and ``b``,
such as ``a + b - a*b``, that is associative and commutative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir.expression_values import evaluate_body

Array = np.ndarray[Any, np.dtype[Any]]

REDUCTIONS: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}
"""Reductions by name, with numpy's semantics: ``max`` and ``min`` propagate NaN."""

BLOCK = 128
"""Number of terms of a sum that are added one after the other."""

N_SAMPLES = 64
"""Number of random arguments for which laws of a reduction are checked."""

TOLERANCE = 1e-9
"""Allowed difference of two orders of three numbers, relative to the larger result."""


def reduce_axes(reduction: str, values: Array, axes: Sequence[int]) -> Array:
    """Reduce ``values`` over ``axes``.

    Raises:
        ProgramError: if the reduction has no neutral element, and an extent is zero.

    >>> table = np.array([[1.0, 2.0], [3.0, 5.0]])
    >>> (reduce_axes("max", table, (1,)).tolist(),
    ...  reduce_axes("a*b", table, (0, 1)).tolist())
    ([2.0, 5.0], 30.0)
    """
    if not axes:
        return values
    # numpy has no maximum of nothing
    if any(values.shape[axis] == 0 for axis in axes) and not _has_neutral(reduction):
        raise ProgramError(
            f"the {reduction} of no values is undefined: a reduced index has extent 0"
        )
    if reduction == "sum":
        return _sum_blocks(values, tuple(axes))
    if (function := REDUCTIONS.get(reduction)) is not None:
        return np.asarray(function.reduce(values, axis=tuple(axes)))
    other_axes = [axis for axis in range(values.ndim) if axis not in set(axes)]
    transposed = values.transpose([*axes, *other_axes])
    return _fold(reduction, transposed.reshape(-1, *transposed.shape[len(axes) :]))


def combine(reduction: str, left: Array, right: Array) -> Array:
    """Combine two partial results."""
    function = REDUCTIONS.get(reduction)
    if function is not None:
        return np.asarray(function(left, right))
    return _evaluate_pair(reduction, left, right)


def find_neutral(reduction: str, dtype: np.dtype[Any]) -> Any:
    """Return the neutral element of a reduction; None if unknown.

    >>> (find_neutral("max", np.dtype("int8")),
    ...  find_neutral("a + b - a*b", np.dtype("f8")))
    (-128, 0)
    """
    if reduction in ("max", "min"):
        sign = -1 if reduction == "max" else 1
        if dtype.kind in "iu":
            limits = np.iinfo(dtype)
            return int(limits.min if sign < 0 else limits.max)
        return sign * np.inf if dtype.kind == "f" else sign > 0
    function = REDUCTIONS.get(reduction)
    if function is not None:
        return function.identity
    samples = np.random.default_rng(1).uniform(-2.0, 2.0, N_SAMPLES)
    # the neutral element of an expression is guessed, and checked on samples
    for guess in (0, 1, -np.inf, np.inf):
        values = _evaluate_pair(reduction, samples, np.full(N_SAMPLES, float(guess)))
        if np.array_equal(values, samples):
            return guess
    return None


def is_truth(reduction: str) -> bool:
    """Return whether the result is a boolean."""
    return reduction in ("any", "all")


@lru_cache(maxsize=64)
def check_reduction(reduction: str) -> None:
    """Check on samples that a reduction is associative and commutative.

    Raises:
        ProgramError: naming numbers for which the order matters.
    """
    if reduction in REDUCTIONS:
        return
    source = np.random.default_rng(0)
    # a fixed seed, so that a program is either always refused or never
    a, b, c = source.uniform(-2.0, 2.0, (3, N_SAMPLES))
    try:
        ab, ba = _evaluate_pair(reduction, a, b), _evaluate_pair(reduction, b, a)
        ab_c = _evaluate_pair(reduction, ab, c)
        a_bc = _evaluate_pair(reduction, a, _evaluate_pair(reduction, b, c))
    except InvalidEinsumError as error:
        raise ProgramError(
            f"reduction {reduction!r} is neither one of {', '.join(REDUCTIONS)} nor an "
            f"expression over a and b: {error}"
        ) from None
    for law, left_result, right_result in (
        ("commutative", ab, ba),
        ("associative", ab_c, a_bc),
    ):
        if not np.allclose(
            left_result, right_result, TOLERANCE, TOLERANCE, equal_nan=True
        ):
            k = int(
                np.argmax(~np.isclose(left_result, right_result, TOLERANCE, TOLERANCE))
            )
            raise ProgramError(
                f"reduction {reduction!r} is not {law}: of {a[k]:.3g}, {b[k]:.3g} and "
                f"{c[k]:.3g} it gives {left_result[k]:.3g} in one order and "
                f"{right_result[k]:.3g} in another; use one that does not depend on "
                "the order"
            )


@lru_cache(maxsize=64)
def check_reduction_dtype(reduction: str, dtype: np.dtype[Any]) -> None:
    """Check that a reduction is defined for a dtype: booleans have no difference.

    Raises:
        ProgramError: if it is not.
    """
    sample = np.ones(1, dtype)
    try:
        combine(reduction, sample, sample)
    except InvalidEinsumError:
        return  # no expression at all, which check_reduction reports
    except (TypeError, ValueError) as error:
        raise ProgramError(
            f"reduction {reduction!r} is not defined for {dtype}: {error}",
            rules=("reduction",),
        ) from None


def _sum_blocks(values: Array, axes: tuple[int, ...]) -> Array:
    """Sum blocks, because numpy adds pairwise only along contiguous axes.

    Rounding errors then grow with the length of a block, not of the axis.
    """
    # in single precision, as numpy adds float16
    if values.dtype == np.float16:
        return _sum_blocks(values.astype(np.float32), axes).astype(np.float16)
    long = max(axes, key=lambda axis: values.shape[axis])
    is_contiguous = values.strides[long] == values.itemsize
    if is_contiguous or values.shape[long] < 2 * BLOCK:
        return np.asarray(np.add.reduce(values, axis=axes))
    moved = np.moveaxis(values, long, 0)
    end = len(moved) // BLOCK * BLOCK
    blocks = moved[:end].reshape(-1, BLOCK, *moved.shape[1:])
    sums = [np.add.reduce(blocks, axis=1)]
    if end < len(moved):
        sums.append(np.add.reduce(moved[end:], axis=0, keepdims=True))
    # the other axes follow in their order
    remaining_axes = (0, *(axis + (axis < long) for axis in axes if axis != long))
    return _sum_blocks(np.concatenate(sums), remaining_axes)


def _has_neutral(reduction: str) -> bool:
    function = REDUCTIONS.get(reduction)
    return function is not None and function.identity is not None


def _fold(reduction: str, values: Array) -> Array:
    """Combine the first half with the second, until one entry is left.

    The rounding error of this tree grows with the logarithm of the length.
    """
    while len(values) > 1:
        half = len(values) // 2
        pairs = _evaluate_pair(reduction, values[:half], values[half : 2 * half])
        values = np.concatenate([pairs, values[2 * half :]])
    return np.array(values[0])


def _evaluate_pair(reduction: str, a: Array, b: Array) -> Array:
    return np.asarray(evaluate_body(reduction, {"a": a, "b": b}))
