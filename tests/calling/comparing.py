"""Calls that are compared with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from feinsum import call_einsum
from feinsum.records import InMemoryStore

__all__ = ["NO_FACTS", "assert_as_numpy"]

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
