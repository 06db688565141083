"""Each broken rule of a format is one error with one code."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum.errors import FeinsumError, InvalidSparseArrayError
from feinsum.sparse import COO, CSC, CSF, CSR, require_finite, to_csf, to_dense

SHAPE = (2, 3)


def tree(**changes):
    fields = {
        "shape": SHAPE,
        "axes": (0, 1),
        "indices": ([0, 1], [2, 0, 2]),
        "pointers": ([0, 1, 3],),
        "values": [5.0, 6.0, 7.0],
    }
    return CSF(**(fields | changes))


def rows(pointers=(0, 1, 3), indices=(2, 0, 2), values=(5.0, 6.0, 7.0), shape=SHAPE):
    return CSR(shape, np.array(pointers), np.array(indices), np.array(values))


BROKEN = [
    ("shape", lambda: COO((), (), [])),
    ("shape", lambda: COO((2, -1), ([0], [0]), [1.0])),
    ("shape", lambda: COO((2, 2.5), ([0], [0]), [1.0])),
    ("shape", lambda: COO((True,), ([0],), [1.0])),
    ("shape", lambda: COO(3, ([0],), [1.0])),
    ("rank", lambda: COO(SHAPE, ([0],), [1.0])),
    ("rank", lambda: COO(SHAPE, np.zeros((2, 1), int), [1.0])),
    ("rank", lambda: rows(shape=(2, 3, 4))),
    ("rank", lambda: tree(indices=([0, 1],))),
    ("rank", lambda: tree(pointers=())),
    ("length", lambda: COO(SHAPE, ([0, 1], [0]), [1.0, 2.0])),
    ("length", lambda: COO(SHAPE, ([0], [0]), [[1.0]])),
    ("length", lambda: COO(SHAPE, ([[0]], [0]), [1.0])),
    ("length", lambda: rows(values=(5.0, 6.0))),
    ("length", lambda: tree(values=[5.0])),
    ("index-dtype", lambda: COO(SHAPE, ([0.0], [0]), [1.0])),
    ("index-dtype", lambda: COO(SHAPE, (np.array([0], np.uint32), [0]), [1.0])),
    ("index-dtype", lambda: rows(pointers=(0.0, 1.0, 3.0))),
    ("value-dtype", lambda: COO(SHAPE, ([0], [0]), ["x"])),
    ("value-dtype", lambda: tree(values=np.array([object()] * 3))),
    ("index-range", lambda: COO(SHAPE, ([2], [0]), [1.0])),
    ("index-range", lambda: COO(SHAPE, ([0], [-1]), [1.0])),
    ("index-range", lambda: rows(indices=(2, 0, 3))),
    ("index-range", lambda: tree(indices=([0, 2], [2, 0, 2]))),
    ("pointer-length", lambda: rows(pointers=(0, 3))),
    ("pointer-length", lambda: tree(pointers=([0, 1, 2, 3],))),
    ("pointer-start", lambda: rows(pointers=(1, 1, 3))),
    ("pointer-order", lambda: rows(pointers=(0, 4, 3))),
    ("pointer-order", lambda: rows(pointers=(0, -1, 3))),
    ("pointer-end", lambda: rows(pointers=(0, 1, 2))),
    ("pointer-end", lambda: tree(pointers=([0, 1, 4],))),
    ("empty-node", lambda: tree(pointers=([0, 3, 3],))),
    ("unsorted", lambda: rows(indices=(2, 2, 0))),
    ("unsorted", lambda: tree(indices=([1, 0], [2, 0, 2]))),
    ("duplicate", lambda: rows(indices=(2, 2, 2))),
    ("duplicate", lambda: tree(indices=([1, 1], [2, 0, 2]))),
    ("axes", lambda: tree(axes=(0, 0))),
    ("axes", lambda: tree(axes=(0,))),
    ("axes", lambda: to_csf(tree(), axes=(1, 2))),
    ("not-finite", lambda: require_finite(np.array([1.0, np.nan]))),
    ("not-finite", lambda: require_finite(np.array([1.0, np.inf * 1j]))),
]


@pytest.mark.parametrize(("rule", "make"), BROKEN)
def test_a_broken_rule_is_an_error_with_its_code(rule, make):
    """The error names the rule, in its attribute and in its text."""
    with pytest.raises(InvalidSparseArrayError, match=rf"^\[{rule}\] ") as caught:
        make()
    assert caught.value.rule == rule
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, FeinsumError)


def test_the_arrays_from_which_the_broken_ones_are_made_are_in_order():
    """It is the change that breaks the rule."""
    assert tree().profile == (2, 3)
    assert rows().nnz == 3
    assert CSC((3, 2), np.array([0, 1, 3]), np.array([2, 0, 2]), [5.0, 6, 7]).nnz == 3


def test_fibers_may_begin_with_any_index():
    """Only the indices below one node have an order among them."""
    assert rows(pointers=(0, 2, 3), indices=(1, 2, 0)).nnz == 3


def test_a_compressed_row_may_be_empty():
    """Rows have pointers whether they have entries or not."""
    assert rows(pointers=(0, 0, 3), indices=(0, 1, 2)).nnz == 3


def test_a_tree_may_have_no_entry():
    """Its profile is zero at each level."""
    empty = to_csf(COO(SHAPE, (np.zeros(0, int), np.zeros(0, int)), np.zeros(0)))
    assert empty.profile == (0, 0)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_indices_of_both_widths_are_taken(dtype):
    """The width of the indices is a matter of size alone."""
    made = tree(
        indices=(np.array([0, 1], dtype), np.array([2, 0, 2], dtype)),
        pointers=(np.array([0, 1, 3], dtype),),
    )
    assert made.indices[0].dtype == dtype


def test_new_values_keep_the_pattern():
    """They are in the order of the entries, whichever axes the levels have."""
    made = tree(axes=(1, 0), shape=(3, 2))
    other = made.with_values([1, 2, 3])
    assert to_dense(other).tolist() == [[0, 2], [0, 0], [1, 3]]
    transposed = made.with_values(made.values, axes=(0, 1))
    assert transposed.shape == SHAPE
    assert (to_dense(transposed) == to_dense(made).T).all()
    with pytest.raises(InvalidSparseArrayError, match="2 values for 3 entries"):
        made.with_values([1.0, 2.0])
