"""Sparse arrays that the tests draw."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from feinsum.sparse import COO

__all__ = ["coordinates", "dense_of"]


@st.composite
def coordinates(draw, orders=(1, 4), dtypes=(np.float64, np.complex64, np.int32)):
    """Coordinates with duplicates, empty slices and integers as values."""
    order = draw(st.integers(*orders))
    shape = tuple(draw(st.integers(0 if order > 1 else 1, 6)) for _ in range(order))
    nnz = draw(st.integers(0, 12)) if all(shape) else 0
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    index = draw(st.sampled_from([np.int32, np.int64]))
    columns = tuple(rng.integers(0, n, nnz).astype(index) for n in shape)
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    return COO(shape, columns, rng.integers(-9, 9, nnz).astype(dtype))


def dense_of(entries):
    """The dense array, entry by entry: what every format has to mean."""
    dense = np.zeros(entries.shape, entries.values.dtype)
    for *at, value in zip(*entries.indices, entries.values, strict=True):
        dense[tuple(at)] += value
    return dense
