"""Random calls with all options of ``numpy.einsum``."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import feinsum
from feinsum.calling import clear_call_cache
from feinsum.errors import FeinsumError
from tests.calling.comparing import NO_FACTS
from tests.calling.random_calls import calls
from tests.strategies import counts

DTYPES = ("f2", "f4", "f8", "g", "c8", "c16", "i1", "u2", "i8", "?", "O", ">f8")
CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")


@st.composite
def options(draw: st.DrawFn, n_operands: int) -> dict[str, Any]:
    """Without those of which numpy makes nothing for a view; see the documentation."""
    found: dict[str, Any] = {}
    if n_operands > 1 and draw(st.booleans()):
        found["dtype"] = draw(st.sampled_from((None, *DTYPES[:-1])))
    if n_operands > 1 and draw(st.booleans()):
        found["casting"] = draw(st.sampled_from(CASTINGS))
    if n_operands > 1 and draw(st.booleans()):
        found["order"] = draw(st.sampled_from(("C", "F", "A", "K", "c", None)))
    return found


@st.composite
def drop_in_calls(draw: st.DrawFn) -> tuple[str, list[Any], dict[str, Any], str | None]:
    """Subscripts, operands, perhaps of wrong shapes, options, and a dtype of out."""
    subscripts, operands = draw(calls())
    operands = [
        draw(st.sampled_from((x, x, x.astype(draw(st.sampled_from(DTYPES))))))
        if x.dtype.kind != "c" else x
        for x in operands
    ]  # fmt: skip
    if draw(st.integers(0, 9)) == 0:
        operands[-1] = operands[-1][None]
    target = draw(st.none() | st.sampled_from(DTYPES))
    return subscripts, operands, draw(options(len(operands))), target


def outcome(function: Any, subscripts: str, operands: Any, named: Any, out: Any) -> Any:
    """What a call gives, or the kind of its error."""
    expected = FeinsumError if function is feinsum.einsum else Exception
    made = None if out is None else np.zeros(*out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = function(subscripts, *operands, **named, out=made)
        except expected as error:
            return TypeError if isinstance(error, TypeError) else ValueError
    assert out is None or result is made
    return result


@counts(25, 1500)
@given(drop_in_calls())
def test_a_first_call_is_that_of_numpy(call):
    """Value, dtype, shape, type, or kind of error; for all options."""
    subscripts, operands, named, target = call
    clear_call_cache()
    out = None
    if target is not None:
        expected = outcome(np.einsum, subscripts, operands, {}, None)
        if isinstance(expected, type):
            return
        out = np.shape(expected), target
        named = {**named, "dtype": None}  # numpy also wants a cast from out to it
    expected = outcome(np.einsum, subscripts, operands, named, out)
    how = {**named, "database": NO_FACTS, "effort": "amortized"}
    found = outcome(feinsum.einsum, subscripts, operands, how, out)
    if isinstance(expected, type):
        assert found is expected
        return
    assert type(found) is type(expected)
    assert np.shape(found) == np.shape(expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype
    assert np.array_equal(found, expected)
