"""Reductions of statements: neutral elements, and partial results."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum.errors import ProgramError
from feinsum.ir import array
from feinsum.ir.reductions import REDUCTIONS, combine, find_neutral, reduce_axes
from feinsum.programs import program

EXPRESSION = "a + b - a*b"


@pytest.mark.parametrize("dtype", ["f8", "f4", "i4", "u1", "?"])
@pytest.mark.parametrize("reduction", [*REDUCTIONS, EXPRESSION])
def test_neutral_elements_change_nothing(reduction, dtype):
    """On either side, for any value."""
    if (reduction, dtype) == (EXPRESSION, "?"):
        pytest.skip("booleans have no difference")
    values = np.array([0, 1, 3, 250]).astype(dtype)
    if reduction in ("any", "all"):
        values = values.astype(bool)
    neutral = np.full(4, find_neutral(reduction, np.dtype(dtype))).astype(values.dtype)
    assert (combine(reduction, values, neutral) == values).all()
    assert (combine(reduction, neutral, values) == values).all()


def test_reductions_that_a_dtype_lacks_are_refused():
    """When the statement is added, with the reduction and the dtype."""
    p = program()
    with pytest.raises(ProgramError, match="not defined for bool") as caught:
        p.reduce(EXPRESSION, array("X", (3,), "?"), 0)
    assert caught.value.rules == ("body",)
    p.reduce(EXPRESSION, array("Y", (3,), "f8"), 0)


@pytest.mark.parametrize("reduction", [*REDUCTIONS, EXPRESSION])
def test_partial_results_combine_to_the_result(reduction):
    """However the axis is divided."""
    values = np.random.default_rng(0).integers(0, 2, (7, 3)).astype(float)
    whole = reduce_axes(reduction, values, (0,))
    for k in range(1, 7):
        parts = [reduce_axes(reduction, x, (0,)) for x in (values[:k], values[k:])]
        assert (combine(reduction, *parts) == whole).all()
