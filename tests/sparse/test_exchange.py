"""Arrays of other packages come in and go out, with what they mean."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import pytest
from hypothesis import given

from feinsum.errors import FeinsumError, InvalidSparseArrayError
from feinsum.sparse import (
    COO,
    from_object,
    is_sparse,
    random_uniform,
    to_csc,
    to_csr,
    to_dense,
    to_pydata,
    to_scipy,
)
from tests.sparse.arrays import coordinates, dense_of

scipy_sparse = pytest.importorskip("scipy.sparse")
FORMATS = ["coo", "csr", "csc", "lil", "dok", "dia", "bsr"]


def test_every_format_of_scipy_is_read():
    """As arrays and as matrices."""
    dense = to_dense(random_uniform((6, 8), 11, seed=3))
    for kind, name in product(("csr_array", "csr_matrix"), FORMATS):
        value = getattr(scipy_sparse, kind)(dense).asformat(name)
        assert is_sparse(value)
        assert np.array_equal(to_dense(from_object(value)), dense)


@given(coordinates(dtypes=(np.float64, np.complex128)))
def test_scipy_gives_back_what_it_was_given(entries):
    """Of any order; duplicates and stored zeros included."""
    if not all(entries.shape):
        return
    value = to_scipy(entries)
    assert np.array_equal(value.toarray(), dense_of(entries))
    assert np.array_equal(to_dense(from_object(value)), dense_of(entries))
    assert from_object(value).nnz == entries.nnz


def test_matrices_stay_compressed_in_scipy():
    """By rows or by columns."""
    tree = random_uniform((6, 8), 11, seed=3)
    assert to_scipy(to_csr(tree)).format == "csr"
    assert to_scipy(to_csc(tree)).format == "csc"
    for matrix in (to_csr(tree), to_csc(tree)):
        assert np.array_equal(to_scipy(matrix).toarray(), to_dense(tree))


@pytest.mark.parametrize("value", [np.eye(2), [1, 2], None, 3.0, "ij", {"nnz": 1}])
def test_what_is_not_sparse_is_refused_by_name(value):
    """With what is understood, and where dense arrays go."""
    assert not is_sparse(value)
    with pytest.raises(InvalidSparseArrayError, match="from_dense") as caught:
        from_object(value)
    assert caught.value.rule == "unknown-format"


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "sparse", None)
    with pytest.raises(FeinsumError, match="pip install sparse"):
        to_pydata(COO((2,), ([0],), [1.0]))


class TestPydata:
    """With pydata's package, where it is installed."""

    sparse = None

    @pytest.fixture(autouse=True)
    def installed(self):
        self.sparse = pytest.importorskip("sparse")

    def test_it_gives_back_what_it_was_given(self):
        """As coordinates, of any order."""
        tree = random_uniform((4, 5, 6), 20, seed=4)
        value = to_pydata(tree)
        assert is_sparse(value)
        assert np.array_equal(value.todense(), to_dense(tree))
        assert np.array_equal(to_dense(from_object(value)), to_dense(tree))

    def test_its_other_formats_are_read(self):
        """Compressed ones and dictionaries."""
        tree = random_uniform((4, 5, 6), 20, seed=4)
        for kind in (self.sparse.GCXS, self.sparse.DOK):
            value = kind.from_numpy(to_dense(tree))
            assert np.array_equal(to_dense(from_object(value)), to_dense(tree))

    @pytest.mark.parametrize("fill", [1.0, np.nan])
    def test_what_is_not_stored_has_to_count_as_zero(self, fill):
        """Another fill value is refused by name."""
        value = self.sparse.full((3, 3), fill)
        with pytest.raises(InvalidSparseArrayError) as caught:
            from_object(value)
        assert caught.value.rule == "fill-value"
