"""What an einsum tells about itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from feinsum.errors import InvalidEinsumError
from feinsum.ir import (
    BatchedEinsum,
    SizeParam,
    array,
    batched_einsum,
    einsum,
    evaluate,
    parse_subscripts,
)
from tests.strategies import einsums

A, x, y = array("A", ("N", 4)), array("x", 4, "f4"), array("y", 4, "c16")
E = batched_einsum("ij,j->i", [[A, x], [A, y]])


def test_parts() -> None:
    """Sizes, indices, operands and dtypes of a batch of two rows."""
    assert (E.batch_size, E.n_operands) == (2, 2)
    assert (E.free_indices, E.summation_indices) == (("i",), ("j",))
    assert E.extents == {"i": SizeParam("N"), "j": 4}
    assert E.operands == (A, x, y)
    assert E.size_params == (SizeParam("N"),)
    assert E.output_shape == (SizeParam("N"),)
    assert E.output_dtypes == (np.dtype("f8"), np.dtype("c16"))


def test_accesses_of_an_operand() -> None:
    """The index lists of an array, each once, over all rows and positions."""
    B = array("B", (4, 4))
    e = batched_einsum("ij,jk,ij->ik", [[B, B, B]])
    assert e.operand_indices("B") == (("i", "j"), ("j", "k"))
    assert e.operand_indices("nothing") == ()


@given(einsums())
def test_indices_and_subscripts(e: BatchedEinsum) -> None:
    """Every index of a term is free or summed, never both; free ones come first. The
    subscripts are a notation of the einsum itself.
    """
    used = {index for term in e.inputs for index in term}
    assert set(e.free_indices) | set(e.summation_indices) == used
    assert set(e.free_indices).isdisjoint(e.summation_indices)
    assert e.indices == (*e.free_indices, *e.summation_indices) == tuple(e.extents)
    ranks = [operand.rank for operand in e.rows[0]]
    assert parse_subscripts(e.subscripts, ranks) == (e.inputs, e.output)


@pytest.mark.parametrize("subscripts", ["i,->i", "{row}{col}, {col} -> {row}", "ii->i"])
def test_subscripts_are_short_where_they_can_be(subscripts: str) -> None:
    """Letters are written without spaces, words with them."""
    extents = {1: (4,), 2: (4, 4), 0: ()}
    inputs, _ = parse_subscripts(subscripts)
    operands = [array(f"X{p}", extents[len(term)]) for p, term in enumerate(inputs)]
    assert einsum(subscripts, *operands).subscripts == subscripts


def test_text_for_people() -> None:
    """``str`` shows notation, rows and operands."""
    assert str(E) == ("ij,j->i of (A x; A y) with A[N,4]:<f8, x[4]:<f4, y[4]:<c16")


@pytest.mark.parametrize("rows", [3, [3], None])
def test_rows_that_are_none_are_refused(rows) -> None:
    """What cannot be rows of operands is named."""
    with pytest.raises(InvalidEinsumError, match="rows"):
        batched_einsum("i->i", rows)


def test_axes_of_one_entry_behind_an_ellipsis_are_broadcast() -> None:
    """As numpy does it; the operand has no such axis then. Other extents must agree."""
    one, B = array("A", (1, 7, 3)), array("B", ("n", 7, 3))
    made = einsum("...i,...i->...", one, B)
    assert made.output_shape == (SizeParam("n"), 7)
    assert [op.shape for op in made.operands] == [(7, 3), (SizeParam("n"), 7, 3)]
    values = {"A": np.arange(21.0).reshape(7, 3), "B": np.arange(42.0).reshape(2, 7, 3)}
    expected = np.einsum("...i,...i->...", values["A"][None], values["B"])
    np.testing.assert_allclose(evaluate(made, values)[0], expected)
    both = einsum("...i,...i->...", one, array("C", (1, 7, 3)))
    assert [op.shape for op in both.operands] == [(1, 7, 3), (1, 7, 3)]
    batch = batched_einsum("...i,...i->...", [[one, B], [one, array("C", ("n", 7, 3))]])
    assert batch.inputs[0] == made.inputs[0]
    with pytest.raises(InvalidEinsumError, match="extent"):
        einsum("...i,...i->...", array("A", (2, 3)), array("B", (5, 3)))
    with pytest.raises(InvalidEinsumError, match="extent"):
        einsum("ji,ji->j", array("A", (1, 3)), array("B", (5, 3)))


def test_arrays_of_numbers_are_told_what_computes_with_them():
    """In one line, without their entries."""
    with pytest.raises(InvalidEinsumError, match="To compute with arrays") as caught:
        einsum("ij,j->i", np.ones((300, 4)), np.ones(4))
    assert "of type ndarray and shape (300, 4)" in str(caught.value)
    assert len(str(caught.value)) < 250
    with pytest.raises(InvalidEinsumError, match="'A' is of type str; expected"):
        einsum("i->i", "A")
