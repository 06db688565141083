"""The reference evaluator: its results are the meaning of an einsum."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given

from feinsum.errors import InvalidEinsumError
from feinsum.ir import (
    BatchedEinsum,
    array,
    batched_einsum,
    bind_sizes,
    einsum,
    evaluate,
)
from tests.strategies import SIZES, arrays_of, einsums

A, x = array("A", ("N", 4)), array("x", 4)
MATVEC = einsum("ij,j->i", A, x)


def by_definition(
    e: BatchedEinsum, k: int, arrays: dict[str, np.ndarray]
) -> np.ndarray:
    """Row ``k`` as the paper defines it: a sum of products, value by value."""
    sizes = [n if isinstance(n, int) else SIZES[n.name] for n in e.extents.values()]
    result = np.zeros(sizes[: len(e.output)], dtype="c16")
    for values in product(*map(range, sizes)):
        at = dict(zip(e.indices, values, strict=True))
        factors = (
            arrays[operand.name][tuple(at[index] for index in term)]
            for operand, term in zip(e.rows[k], e.inputs, strict=True)
        )
        result[tuple(at[index] for index in e.output)] += np.prod([*factors])
    return result


@given(einsums(n_indices=4, n_terms=3, n_rows=2))
def test_definition(e: BatchedEinsum) -> None:
    """Every row is the sum of products of the definition (booleans: any of all)."""
    arrays = arrays_of(e)
    for k, result in enumerate(evaluate(e, arrays)):
        expected = by_definition(e, k, arrays)
        if e.output_dtypes[k].kind == "b":
            expected = expected != 0
        np.testing.assert_array_equal(result, expected)


@given(einsums(n_indices=4))
def test_numpy(e: BatchedEinsum) -> None:
    """Every row is numpy's einsum of the row's arrays, pair by pair or all at once; it
    has the shape and the dtype that the einsum announces.
    """
    arrays = arrays_of(e)
    shape = tuple(n if isinstance(n, int) else SIZES[n.name] for n in e.output_shape)
    results, optimized = evaluate(e, arrays), evaluate(e, arrays, optimize=True)
    for row, result, other, dtype in zip(
        e.rows, results, optimized, e.output_dtypes, strict=True
    ):
        expected = np.einsum(e.subscripts, *(arrays[operand.name] for operand in row))
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(other, expected)
        assert (result.shape, result.dtype) == (shape, dtype)


def test_more_indices_than_numpy_has() -> None:
    """A chain of 60 matrices has 61 indices; the result is their product."""
    names = [f"i{k}" for k in range(61)]
    terms = ",".join(f"{{{a}}}{{{b}}}" for a, b in pairwise(names))
    operands = [array(f"M{k}", (2, 2), "i8") for k in range(60)]
    e = einsum(f"{terms}->{{{names[0]}}}{{{names[-1]}}}", *operands)
    rng = np.random.default_rng(0)
    matrices = {op.name: np.eye(2, dtype="i8")[rng.permutation(2)] for op in operands}
    (result,) = evaluate(e, matrices)
    np.testing.assert_array_equal(result, reduce(np.matmul, matrices.values()))


def test_results_are_new_arrays() -> None:
    """Changing a result does not change an operand, even of a plain copy."""
    given = np.ones((2, 4))
    (result,) = evaluate(einsum("ij->ji", A), {"A": given})
    assert not np.shares_memory(result, given)


@pytest.mark.parametrize(
    ("change", "message", "rule"),
    [
        ({"x": None}, "array 'x' is missing, expected x[4]:<f8", "shape"),
        ({"x": np.ones(5)}, "axis 0 of array 'x' has extent 5, expected 4", "shape"),
        ({"x": np.ones((4, 1))}, "array 'x' has shape (4, 1), expected x[4]", "shape"),
        ({"x": 1.0}, "array 'x' has shape (), expected x[4]", "shape"),
        ({"x": np.ones(4, "f4")}, "dtype float32, expected float64", "dtype"),
        ({"x": np.ones(4, ">f8")}, "dtype >f8, expected float64", "dtype"),
        ({"A": np.ones((2, 4), int)}, "dtype int64, expected float64", "dtype"),
    ],
)
def test_other_arrays_are_refused(
    change: dict[str, object], message: str, rule: str
) -> None:
    """A missing array, another shape or another dtype is refused by name."""
    arrays = {"A": np.ones((2, 4)), "x": np.ones(4)} | change
    arrays = {name: value for name, value in arrays.items() if value is not None}
    with pytest.raises(InvalidEinsumError) as caught:
        evaluate(MATVEC, arrays)
    assert message in str(caught.value)
    assert caught.value.rules == (rule,)


def test_sizes_are_bound() -> None:
    """Each size parameter gets the extent of the axes that carry it."""
    e = batched_einsum("ij,j->i", [[array("A", ("N", "M")), array("x", "M")]])
    assert bind_sizes(e, {"A": (2, 3), "x": (3,)}) == {"N": 2, "M": 3}


def test_a_size_parameter_has_one_value() -> None:
    """Two values of one size parameter are refused, naming the second place."""
    e = einsum("ij->i", array("A", ("N", "N")))
    with pytest.raises(InvalidEinsumError, match="axis 1 of array 'A' has extent 3"):
        evaluate(e, {"A": np.ones((2, 3))})
