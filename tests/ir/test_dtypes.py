"""Halves as operands: float16, and bfloat16 where ml_dtypes is installed."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from feinsum import array, canonicalize, einsum, evaluate
from feinsum.dtypes import FLOAT16, get_eps
from feinsum.errors import InvalidTypeError
from feinsum.ir import from_text, to_text
from feinsum.ir.dtypes import BFLOAT16
from feinsum.measure import compute_tolerance

DTYPES = [dtype for dtype in (FLOAT16, BFLOAT16) if dtype is not None]

needs_bfloat16 = pytest.mark.skipif(
    BFLOAT16 is None, reason="ml_dtypes is not installed"
)


def product(dtype):
    return einsum(
        "ik,kj->ij", array("A", ("n", 900), dtype), array("B", (900, 7), dtype)
    )


@needs_bfloat16
def test_a_bfloat16_has_a_text_of_its_own():
    """It is read again, and no other dtype has it."""
    e = product(BFLOAT16)
    assert "A[n,900]:bfloat16" in to_text(e)
    assert from_text(to_text(e)) == e
    assert e.output_dtypes == (BFLOAT16,)
    texts = {canonicalize(product(dtype)).text for dtype in DTYPES}
    assert len(texts) == len(DTYPES)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_are_rounded_once(dtype):
    """Sums of halves in halves would lose two digits."""
    rng = np.random.default_rng(0)
    shapes = {"A": (5, 900), "B": (900, 7)}
    arrays = {name: rng.random(shape).astype(dtype) for name, shape in shapes.items()}
    (result,) = evaluate(product(dtype), arrays)
    exact = np.einsum("ik,kj->ij", *(x.astype(np.float64) for x in arrays.values()))
    assert result.dtype == dtype
    assert np.allclose(result.astype(float), exact, rtol=0.51 * get_eps(dtype))
    assert compute_tolerance(dtype, 1) == min(0.1, 16 * get_eps(dtype))


@needs_bfloat16
def test_the_host_computes_no_bfloat16():
    """It says so; numpy's einsum does not either."""
    ones = np.ones((2, 2), BFLOAT16)
    with pytest.raises(InvalidTypeError, match="dtype bfloat16"):
        einsum("ij,jk->ik", ones, ones)


def test_without_ml_dtypes_there_is_one_type():
    """Numpy takes None, the missing type, for float64."""
    text = """
import sys; sys.modules["ml_dtypes"] = None
import numpy as np
from feinsum import dtypes, ir
kinds = [np.dtype(name) for name in ("f2", "f4", "f8", "c16", "i4", "?")]
print([*map(dtypes.is_half, kinds)].index(True), sum(map(dtypes.is_half, kinds)))
print(dtypes.get_eps(np.dtype("f8")) < 1e-15, dtypes.format_dtype(np.dtype("f8")))
"""
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["0", "1", "True", "<f8"]
