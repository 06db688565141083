"""Calls that are compared with numpy."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import feinsum
from feinsum import call_einsum
from feinsum.errors import FeinsumError
from feinsum.records import InMemoryStore

__all__ = ["NO_FACTS", "assert_as_numpy", "assert_like_numpy", "outcome"]

NO_FACTS = InMemoryStore()


def assert_as_numpy(subscripts: str, *operands: Any, **options: Any) -> None:
    """Shape, dtype and every entry are numpy's; the numbers must be exact ones."""
    expected = np.asarray(np.einsum(subscripts, *operands))
    result = call_einsum(subscripts, *operands, **{"database": NO_FACTS, **options})
    assert isinstance(result, np.ndarray)
    # numpy gives a number, in native byte order, where call_einsum gives a view
    dtype = result.dtype if result.ndim else result.dtype.newbyteorder("=")
    assert (result.shape, dtype) == (expected.shape, expected.dtype)
    assert np.array_equal(result, expected)


def outcome(
    function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any]
) -> Any:
    """What a call gives, or the kind of its error; ours are errors of feinsum."""
    expected = Exception if function is np.einsum else FeinsumError
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*arguments, **options)
        except expected as error:
            return TypeError if isinstance(error, TypeError) else ValueError


def assert_like_numpy(
    *arguments: Any, effort: str | None = "amortized", **options: Any
) -> None:
    """Value, dtype, shape and type, or kind of error: in first calls and in later ones.

    Entries may differ by rounding.
    """
    expected = outcome(np.einsum, arguments, options)
    ours = {"database": NO_FACTS, "effort": effort, **options}
    for _ in range(3):
        found = outcome(feinsum.einsum, arguments, ours)
        if isinstance(expected, type):
            assert found is expected
            continue
        assert type(found) is type(expected)
        assert np.shape(found) == np.shape(expected)
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        if np.asarray(expected).dtype.kind == "O":
            assert np.array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-6)
        if str(options.get("order")).strip("b'") in "fF":
            assert found.flags.f_contiguous
