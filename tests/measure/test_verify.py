"""Verification: what counts as an error, and how it is told."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum.errors import WrongResultError
from feinsum.measure import (
    check_result,
    compute_largest_error,
    compute_tolerance,
    verify,
)
from feinsum.measure.verification import get_poison_value


class FakeKernel:
    def __init__(self, **results):
        self.results = results
        self.calls = []

    def poison(self):
        self.calls.append("poison")

    def run(self):
        self.calls.append("run")
        return 1.0

    def read(self):
        self.calls.append("read")
        return self.results


def test_error_is_relative_to_the_largest_expected_entry():
    """The error is max|result - expected| / max|expected|."""
    assert compute_largest_error(np.array([1.0, -8.0]), np.array([2.0, -8.0])) == 1 / 8
    assert compute_largest_error(np.array([3 + 4j]), np.array([0 + 4j])) == 3 / 4


def test_equal_arrays_have_no_error():
    """Equal arrays have error zero, also if empty, zero, or without axes."""
    for array in (np.zeros(3), np.array(5.0), np.ones((0, 4)), np.arange(3)):
        assert compute_largest_error(array, array.copy()) == 0.0


@pytest.mark.parametrize(
    ("bad", "dtype"), [(np.nan, "f4"), (np.inf, "f8"), (-np.inf, "c8"), (np.nan, "c16")]
)
def test_what_is_not_finite_is_infinitely_wrong(bad, dtype):
    """One NaN or infinity, in the result or in the reference, gives inf."""
    good, wrong = np.ones((2, 2), dtype), np.ones((2, 2), dtype)
    wrong[1, 0] = bad
    assert compute_largest_error(wrong, good) == np.inf
    assert compute_largest_error(good, wrong) == np.inf
    assert compute_largest_error(wrong, wrong) == np.inf


@pytest.mark.parametrize("dtype", ["i1", "i8", "u8", "f8", "c8"])
def test_poison_is_infinitely_wrong(dtype):
    """The poison of any numeric dtype, where it is not expected, gives inf."""
    good = np.ones(4, dtype)
    wrong = good.copy()
    wrong[2] = get_poison_value(dtype)
    assert compute_largest_error(wrong, good) == np.inf


def test_large_integers_differ():
    """Integers that are one float differ all the same."""
    expected = np.array([2**62])
    assert compute_largest_error(expected + 1, expected) > 0


def test_wrong_where_zero_is_expected():
    """A nonzero result where everything should be zero is infinitely wrong."""
    assert compute_largest_error(np.array([1e-300]), np.zeros(1)) == np.inf


def test_shapes_differ():
    """Another shape is infinitely wrong, and the message tells both shapes."""
    assert compute_largest_error(np.ones(3), np.ones((3, 1))) == np.inf
    with pytest.raises(WrongResultError, match=r"shape \(3,\), expected \(3, 1\)"):
        check_result(np.ones(3), np.ones((3, 1)), tolerance=1.0)


def test_message_says_where():
    """The message gives index, value, expected value and number of wrong entries."""
    expected = np.ones((2, 3))
    result = expected.copy()
    result[0, 1], result[1, 2] = 1.25, 3.0
    with pytest.raises(WrongResultError) as caught:
        check_result(result, expected, tolerance=1e-3, name="out")
    message = str(caught.value)
    assert "out[1, 2] is 3.0, expected 1.0" in message
    assert "2 of 6 entries" in message


def test_within_tolerance_gives_the_error():
    """An error within the tolerance is returned."""
    assert check_result(np.array([1.5]), np.array([1.0]), tolerance=0.5) == 0.5


def test_tolerance_grows_with_the_terms():
    """Tolerances grow with the number of terms, stay at most 0.1, and are smaller
    than the loss of one term wherever they are not at that bound.
    """
    for dtype in ("f4", "f8", "c8", "c16"):
        values = [compute_tolerance(dtype, n) for n in (0, 1, 10, 10**3, 10**12)]
        assert values == sorted(values)
        assert values[0] > 0
        assert values[-1] <= 0.1
    assert compute_tolerance("f8", 10**4) < 1e-4
    assert compute_tolerance("i4", 10**6) == 0.0


def test_tolerance_admits_rounding():
    """A sum of float32 in another order is within the tolerance."""
    rng = np.random.default_rng(1)
    terms = rng.normal(size=(50, 1000)).astype("f4")
    forward = np.cumsum(terms, axis=1, dtype="f4")[:, -1]
    exact = terms.astype("f8").sum(axis=1)
    assert compute_largest_error(forward, exact) < compute_tolerance("f4", 1000)


def test_verify_poisons_runs_and_reads():
    """Verification poisons, runs once, then reads; it gives the largest error."""
    kernel = FakeKernel(a=np.array([1.0]), b=np.array([4.0]))
    expected = {"a": np.array([1.0]), "b": np.array([5.0])}
    assert verify(kernel, expected, tolerance=0.5) == pytest.approx(0.2)
    assert kernel.calls == ["poison", "run", "read"]


def test_verify_misses_an_output():
    """An expected output that the kernel does not have is a wrong result."""
    with pytest.raises(WrongResultError, match="no outputs"):
        verify(FakeKernel(a=np.ones(1)), {"z": np.ones(1)}, tolerance=1.0)
