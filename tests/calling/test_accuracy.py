"""The first and all later calls keep the documented bounds of rounding errors."""

import numpy as np
import pytest

import feinsum
from feinsum.records import InMemoryStore

FACTS = InMemoryStore()
LONG = 300_007
"""A prime, which no recipe cuts into equal parts."""
WIDE = {"e": "f8", "f": "f8", "d": "g", "F": "D", "D": "G"}


def exact(text, operands):
    """The sum in a wider dtype, and that of the absolute values of its terms."""
    wide = [x.astype(WIDE[x.dtype.char]) for x in operands]
    return np.einsum(text, *wide), np.einsum(text, *map(abs, wide))


@pytest.mark.parametrize(
    ("text", "shapes", "dtype"),
    [("i->", [(LONG,)], "f4"), ("i,i->", [(LONG,)] * 2, "c8"),
     ("ij->i", [(2, LONG)], "f4"), ("ij,i->j", [(LONG, 3), (LONG,)], "f4")],
)  # fmt: skip
def test_kernels_add_long_single_precision_sums_in_double_precision(
    text, shapes, dtype
):
    """Of equal terms, whose errors have one sign; with every way to choose a kernel."""
    operands = [np.full(shape, 0.1, dtype) for shape in shapes]
    right, size = exact(text, operands)
    for effort in ("estimate", "recorded"):
        result = feinsum.einsum(text, *operands, database=FACTS, effort=effort)
        assert np.all(np.abs(result - right) <= 4 * np.finfo("f4").eps * size)


EINSUMS = [
    ("ij,jk->ik", (40, 300), (300, 30)),
    ("i,ij,j->", (700,), (700, 9), (9,)),
    ("ij,ik->kj", (999, 7), (999, 5)),
    ("ij,ij->j", (501, 8), (501, 8)),
]
CASES = [(0, "f"), (1, "d"), (1, "F"), (2, "e"), (2, "d"), (3, "f"), (3, "D")]


def entries(rng, shape, dtype):
    """Of both signs and many magnitudes, which cancel, with zeros of either sign."""
    span = 3 if dtype == "e" else 12
    values = rng.standard_normal(shape) * 2.0 ** rng.integers(-span, span, shape)
    values[rng.random(shape) < 0.1] = 0.0
    values[rng.random(shape) < 0.1] = -0.0
    if dtype in "FD":
        values = values * np.exp(1j * rng.random(shape))
    return values.astype(dtype)


@pytest.mark.parametrize(("number", "dtype"), CASES)
def test_errors_of_every_call_are_bounded(number, dtype):
    """By (n + k) u times the sum of the absolute values of the terms; NaN and infinity
    reach the results that they reach in numpy.
    """
    text, *shapes = EINSUMS[number]
    rng = np.random.default_rng(number)
    operands = [entries(rng, shape, dtype) for shape in shapes]
    n_terms = np.prod([max(shape) for shape in shapes]) if number == 1 else 999
    unit = np.finfo("f4" if dtype in "ef" else dtype).eps * (2 if dtype in "FD" else 1)
    for call in range(1, 11):
        if call == 10:
            operands[0].flat[0], operands[0].flat[-1] = np.nan, np.inf
        result = np.asarray(feinsum.einsum(text, *operands, database=FACTS))
        with np.errstate(all="ignore"):
            right, size = exact(text, operands)
        is_finite = np.isfinite(right)
        np.testing.assert_array_equal(np.isfinite(result), is_finite)
        bound = (n_terms + 3) * unit * size[is_finite]
        if dtype == "e":
            bound = bound + np.finfo("e").eps * np.abs(right[is_finite]) + 1e-7
        error = np.abs(result[is_finite] - right[is_finite])
        assert np.all(error <= bound)
