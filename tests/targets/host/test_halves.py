"""Conversions between half and single precision are those of numpy, bit by bit."""

import numpy as np
import pytest

from feinsum.targets.host import halves
from feinsum.targets.host.halves import narrow, widen

EVERY_HALF = np.arange(2**16, dtype=np.uint16).view(np.float16)

CORNERS = [
    *[0.0, -0.0, np.inf, -np.inf, np.nan, -1e9, 65519, 65520],
    *[1 + 2**-11, 1 + 3 * 2**-11, 2**-24, 2**-25, 3 * 2**-25, 1e-30],
]
"""Zeros, what is too large, and ties: of normal and of subnormal numbers."""


@pytest.fixture(params=["compiled", "numpy"])
def way(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(halves, "_load_library", lambda: None)


def assert_same_bits(first, second):
    """Equal bits; a NaN is one whatever its bits."""
    assert first.dtype == second.dtype
    assert first.shape == second.shape
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(np.signbit(first), np.signbit(second))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("n", [0, 9, 2**16])
def test_every_half_is_widened_as_numpy_does(n):
    """Subnormal numbers, infinities and both zeros among them."""
    assert_same_bits(widen(EVERY_HALF[-n:]), EVERY_HALF[-n:].astype(np.float32))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("n", [0, 9, 1_000_003])
def test_singles_are_rounded_as_numpy_does(n):
    """Ties to even, into subnormal numbers, to zero and to infinity."""
    bits = np.random.default_rng(n).integers(0x33000000, 0x48000000, n, dtype=np.uint32)
    singles = bits.view(np.float32)
    singles[::2] *= -1
    singles[: len(CORNERS)] = CORNERS[:n]
    with np.errstate(over="ignore"):
        assert_same_bits(narrow(singles), singles.astype(np.float16))


@pytest.mark.usefixtures("way")
def test_strided_and_swapped_arrays_are_widened():
    array = np.random.default_rng(0).random((6, 35)).astype(np.float16)
    for one in (array.T, array[::2, ::-3], array.astype(">f2")):
        result = widen(one)
        assert_same_bits(result, one.astype(np.float32))
        assert result.flags.c_contiguous
