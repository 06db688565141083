"""Verification: how far a result is from the expected one, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike

from feinsum.dtypes import get_eps, is_inexact
from feinsum.errors import WrongResultError
from feinsum.words import format_count

Array = np.ndarray[Any, np.dtype[Any]]

PART = 1 << 16
"""Entries to compare at once."""


class Verifiable(Protocol):
    """A verifiable kernel: :class:`feinsum.measure.BoundKernel`, or a stand-in."""

    def poison(self) -> None: ...

    def run(self) -> float: ...

    def read(self) -> Mapping[str, Array]: ...


def verify(
    kernel: Verifiable, expected: Mapping[str, Array], *, tolerance: float
) -> float:
    """Run a kernel once on poisoned outputs, and compare every expected output.

    Args:
        kernel: the kernel to verify.
        expected: the correct array of each output, by name; other outputs are not
            compared.
        tolerance: largest allowed error; see :func:`compute_largest_error`.

    Returns:
        The largest error over all outputs.

    Raises:
        WrongResultError: see :func:`check_result`.
    """
    kernel.poison()
    kernel.run()
    return check_outputs(kernel, expected, tolerance=tolerance)


@contextmanager
def locate_wrong_results(description: str) -> Iterator[None]:
    """Name the case in an error of the body, such as ``at the sizes {'N': 37}``."""
    try:
        yield
    except WrongResultError as error:
        raise WrongResultError(f"{description}: {error}") from None


def check_outputs(
    kernel: Verifiable, expected: Mapping[str, Array], *, tolerance: float
) -> float:
    """Return the largest error over all outputs of a kernel that has run."""
    results = kernel.read()
    if missing := sorted(set(expected) - set(results)):
        raise WrongResultError(
            f"the kernel has no outputs {missing}; it has {sorted(results)}"
        )
    return max(
        (
            check_result(results[name], right, tolerance=tolerance, name=name)
            for name, right in expected.items()
        ),
        default=0.0,
    )


def check_result(
    result: Array, expected: Array, *, tolerance: float, name: str = "result"
) -> float:
    """Compute the error as :func:`compute_largest_error` does, and check the tolerance.

    Raises:
        WrongResultError: naming where the error is largest, the value there and the
            expected one; or that the shapes differ.
    """
    if result.shape != expected.shape:
        raise WrongResultError(
            f"{name} has shape {result.shape}, expected {expected.shape}"
        )
    error = compute_largest_error(result, expected)
    if error <= tolerance:
        return error
    errors = _compute_errors(result, expected, _scale(expected))
    position = tuple(int(k) for k in np.unravel_index(np.argmax(errors), errors.shape))
    n_wrong = int(np.count_nonzero(errors > tolerance))
    raise WrongResultError(
        f"{name}{list(position)} is {result[position]}, expected "
        f"{expected[position]}: error {error:.3g} of the largest result, allowed "
        f"{tolerance:.3g}; "
        f"{n_wrong} of {format_count(errors.size, 'entry')} are wrong"
    )


def compute_largest_error(result: Array, expected: Array) -> float:
    """Return the largest ``abs(result - expected)`` over the largest ``abs(expected)``.

    Infinite if the shapes differ, if NaN, infinity or an integer's poison is
    left in the result, or if the expected result itself is not finite. If all
    expected entries are zero, zero for equality and infinite otherwise.

    >>> compute_largest_error(np.array([1.0, 4.0]), np.array([1.0, 5.0]))
    0.2
    >>> compute_largest_error(np.array([1.0, np.nan]), np.array([1.0, 5.0]))
    inf
    """
    if result.shape != expected.shape:
        return np.inf
    scale, pairs = (
        _scale(expected),
        zip(_split_entries(result), _split_entries(expected), strict=True),
    )
    return max((_find_worst_error(*pair, scale) for pair in pairs), default=0.0)


def compute_tolerance(dtype: DTypeLike, n_terms: int) -> float:
    """Return the largest error that rounding may cause, for sums of ``n_terms`` terms.

    It is ``16 * eps * n_terms``, at most 0.1, and 0 for integers. In any order, a sum
    of n terms is within n*eps of the sum of their magnitudes (Higham, *Accuracy and
    Stability of Numerical Algorithms*, section 4.2). The factor 16 also covers the
    rounding of products, and magnitudes that add up to more than the largest result. A
    missing term causes a far larger error, of about ``1/n_terms``.

    >>> compute_tolerance("float64", 10) < 1e-13, compute_tolerance("int32", 10)
    (True, 0.0)
    """
    kind = np.dtype(dtype)
    if not is_inexact(kind):
        return 0.0
    return min(0.1, 16 * get_eps(kind) * max(1, n_terms))


def get_poison_value(dtype: DTypeLike) -> Any:
    """Return a value that no kernel should leave: NaN, or an extreme integer.

    A boolean has no room for poison; it is True.

    >>> get_poison_value("int8"), get_poison_value("uint8")
    (np.int8(-128), np.uint8(255))
    """
    kind: np.dtype[Any] = np.dtype(dtype)
    if kind.kind == "c":
        return kind.type(complex(np.nan, np.nan))
    if is_inexact(kind):
        return kind.type(np.nan)
    if kind.kind == "b":
        return kind.type(True)
    info = np.iinfo(kind)
    return kind.type(info.min if kind.kind == "i" else info.max)


def _split_entries(array: Array) -> Iterator[Array]:
    """Yield the entries in pieces that fit in the caches."""
    flat = array.reshape(-1)
    return (flat[start : start + PART] for start in range(0, flat.size, PART))


def _scale(expected: Array) -> float:
    """Return the largest finite magnitude."""
    return max(map(_find_largest, _split_entries(expected)), default=0.0)


def _find_largest(part: Array) -> float:
    magnitudes = np.abs(part.astype(np.result_type(part.dtype, np.float64)))
    largest = float(np.max(magnitudes))
    if np.isfinite(largest):
        return largest
    return float(np.max(magnitudes, where=np.isfinite(magnitudes), initial=0))


def _find_worst_error(result: Array, expected: Array, scale: float) -> float:
    """Return the largest of :func:`_compute_errors`; in one step for finite numbers."""
    if scale and {result.dtype.kind, expected.dtype.kind} <= {"f", "c"}:
        wide = np.result_type(result.dtype, expected.dtype, np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            # One pass instead of six: NaN and infinity make the maximum not finite.
            worst = float(np.max(np.abs(result.astype(wide) - expected)))
        if np.isfinite(worst):
            return worst / scale
    return float(np.max(_compute_errors(result, expected, scale)))


def _compute_errors(
    result: Array, expected: Array, scale: float
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Compute the error of each entry, relative to ``scale``."""
    is_bad = ~(np.isfinite(result) & np.isfinite(expected))
    if result.dtype.kind in "iu":
        is_bad |= (result == get_poison_value(result.dtype)) & (result != expected)
    wide = np.result_type(result.dtype, expected.dtype, np.float64)
    right = np.where(is_bad, 0, expected).astype(wide)
    difference = np.abs(np.where(is_bad, 0, result).astype(wide) - right)
    if wide == np.float64 and result.dtype.kind in "iu":
        # integers beyond 2**53 may differ and yet be one float
        difference = np.maximum(difference, (result != expected) & ~is_bad)
    errors = difference / scale if scale else np.where(difference > 0, np.inf, 0.0)
    return np.asarray(np.where(is_bad, np.inf, errors), dtype=np.float64)
