"""Vectors of GNU C compute what numpy does, lane by lane."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from feinsum.errors import BuildError
from feinsum.measure import compile_kernel, open_device
from tests.cpus import HOST
from tests.targets.host.kernels import results, source_of, vectorized

pytestmark = pytest.mark.filterwarnings(  # what Loopy says when it unrolls lanes
    "ignore:This function is deprecated:DeprecationWarning:loopy"
)

DTYPES = (np.int32, np.int64, np.float32, np.float64)
COMPLEX = (np.complex64, np.complex128)
REAL_VECTORS = [(np.int32, 2), (np.float32, 8), (np.float64, 4), (np.int64, 16)]
VECTORS = [*REAL_VECTORS, (np.complex64, 16), (np.complex128, 2)]
"""Every dtype and every width, in pairs."""
N = 5


def values(dtype, n_lanes):
    """Small integers of both signs, whose sums and products no dtype rounds."""
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 10, (N, n_lanes)).astype(dtype)
    return {"x": x, "a": dtype(-3), "b": rng.integers(-9, 10, n_lanes).astype(dtype)}


def assert_numpys(expression, in_numpy, dtype, n_lanes, **given):
    """The result is numpy's to the last bit, with the same signs of zeros."""
    arguments = {**values(dtype, n_lanes), **given}
    found = results(vectorized(expression, dtype, n_lanes), n=N, **arguments)["y"]
    expected = in_numpy(arguments["x"], arguments["a"], arguments["b"])
    expected = np.broadcast_to(expected, found.shape).astype(dtype)
    np.testing.assert_array_equal(found, expected)
    for part in (np.real, np.imag):
        np.testing.assert_array_equal(
            np.signbit(part(found)), np.signbit(part(expected))
        )


def arithmetic():
    """Sums and products of a vector with others, an array, a scalar and a number."""
    leaves = st.sampled_from(["z[k]", "z[k]", "a", "b[k]", "2"])

    def combined(parts):
        pairs = st.tuples(parts, st.sampled_from("+-*"), parts)
        return pairs.map(lambda pair: f"({' '.join(pair)})")

    return st.recursive(leaves, combined, max_leaves=5).map(lambda e: f"z[k] + {e}")


@pytest.mark.parametrize(("dtype", "n_lanes"), VECTORS)
@hypothesis.settings(max_examples=4)
@hypothesis.given(expression=arithmetic())
def test_arithmetic_is_that_of_each_lane(dtype, n_lanes, expression):
    """Of every width and dtype, whichever operands are vectors."""
    code = compile(expression.replace("[k]", ""), expression, "eval")

    def in_numpy(z, a, b):
        return eval(code, {"z": z, "a": a, "b": b})

    assert_numpys(expression, in_numpy, dtype, n_lanes)


@pytest.mark.parametrize(("dtype", "n_lanes"), REAL_VECTORS)
def test_lanes_that_are_alike_are_one_statement(dtype, n_lanes):
    """Of vectors as long as the loop, which is gone."""
    code = source_of(vectorized("z[k]*z[k] + a", dtype, n_lanes))
    assert "w = z * z + a;" in code
    assert f"vector_size({n_lanes * np.dtype(dtype).itemsize})" in code


@pytest.mark.parametrize(("dtype", "n_lanes"), REAL_VECTORS)
def test_a_scalar_becomes_a_vector_of_itself(dtype, n_lanes):
    """Which keeps the signs of zeros; what is no number does too."""
    assert_numpys("a", lambda z, a, b: a, dtype, n_lanes, a=dtype(7))
    for value in (-0.0, np.inf, -np.inf, np.nan) if dtype is np.float64 else ():
        assert_numpys("a", lambda z, a, b: a, dtype, n_lanes, a=dtype(value))


LANES = {
    "z[k] if z[k] > 0 else a": lambda z, a, b: np.where(z > 0, z, a),
    "z[k]*z[1]": lambda z, a, b: z * z[:, 1:2],
    "z[k] + k": lambda z, a, b: z + np.arange(len(b)),
    "z[k]*b[k]": lambda z, a, b: z * b,
    "z[k]*n": lambda z, a, b: z * N,
}


@pytest.mark.parametrize(
    ("dtype", "n_lanes"), [(np.int32, 16), (np.float64, 2), (np.complex64, 2)]
)
@pytest.mark.parametrize("expression", LANES)
def test_what_c_does_not_do_with_vectors_is_done_for_each_lane(
    dtype, n_lanes, expression
):
    """Choices, one lane for all, the number of a lane, arrays, other dtypes."""
    if dtype in DTYPES or ">" not in expression:  # complex numbers have no order
        assert_numpys(expression, LANES[expression], dtype, n_lanes)


@pytest.mark.parametrize(("dtype", "n_lanes"), [(np.float32, 16), (np.float64, 2)])
def test_functions_are_called_for_each_lane(dtype, n_lanes):
    """There are none of vectors in C; those of scalars are called once."""
    x = values(dtype, n_lanes)["x"] ** 2  # whose roots are not rounded
    assert_numpys(
        "z[k] + sqrt(z[k])*fabs(a)",
        lambda z, a, b: z + np.sqrt(z) * abs(a),
        *(dtype, n_lanes),
        x=x,
    )


@pytest.mark.parametrize("n_lanes", [5, 32])
def test_vectors_that_there_are_not_are_refused_by_name(n_lanes):
    """Those of lanes whose number OpenCL does not know."""
    why = f"not support vectors of {n_lanes} lanes of .*float64"
    with pytest.raises(BuildError, match=why):
        compile_kernel(vectorized("z[k]", np.float64, n_lanes), open_device(HOST))
