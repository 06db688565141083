"""``numpy.einsum`` for any number of indices, with an array as its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from feinsum.subscripts import IndexList

MAX_LETTERS = 52
"""Number of index letters that numpy accepts."""

Arrays = Sequence[Any]


def evaluate_by_numpy(
    inputs: Sequence[IndexList],
    output: IndexList,
    arrays: Arrays,
    *,
    is_blas: bool = False,
    out: Any = None,
) -> Any:
    """Evaluate an einsum of all operands at once, as an array, even of rank 0.

    With ``is_blas``, numpy may call BLAS for products of matrices; it takes some
    microseconds to find out if it can. ``out`` is for more than one operand.

    The result is in C order, unless it is a view of a single operand, or ``out``.
    As in ``numpy.einsum`` without a path, there is no warning of overflow.

    >>> evaluate_by_numpy([("i",), ("i",)], (), [np.arange(3), np.arange(3)])
    array(5)
    """
    # numpy 2.4 corrupts memory for some empty products of longdouble
    if len(arrays) > 1 and any(array.size == 0 for array in arrays):
        return _make_zeros(inputs, output, arrays, out)
    if len({index for term in inputs for index in term}) > MAX_LETTERS:
        return _without_ones(inputs, output, arrays)
    number: dict[str, int] = {}
    arguments: list[Any] = []
    for array, term in zip(arrays, inputs, strict=True):
        arguments += [array, [number.setdefault(index, len(number)) for index in term]]
    path = ["einsum_path", tuple(range(len(arrays)))]
    optimize: Any = path if is_blas else False
    is_view = len(inputs) == 1 and {*output} == {*inputs[0]}
    with np.errstate(all="ignore"):
        result = np.einsum(
            *arguments, [number[i] for i in output], optimize=optimize, out=out
        )
    if not isinstance(result, np.ndarray):
        return _as_array(result, arrays)
    # not einsum's order="C", which makes numpy read operands in that order: slowly
    return result if is_view else np.asarray(result, order="C")


def compute_shape(
    inputs: Sequence[IndexList],
    output: IndexList,
    shapes: Sequence[tuple[int, ...]],
) -> tuple[int, ...]:
    """Return the shape of a result, whose operands may have axes of extent 1.

    >>> compute_shape([("i", "j"), ("j",)], ("j", "i"), [(2, 1), (3,)])
    (3, 2)
    """
    extents: dict[str, int] = {}
    for term, shape in zip(inputs, shapes, strict=True):
        for index, n in zip(term, shape, strict=True):
            if n != 1 or index not in extents:
                extents[index] = n
    return tuple(extents[index] for index in output)


def _make_zeros(
    inputs: Sequence[IndexList], output: IndexList, arrays: Arrays, out: Any
) -> Any:
    """Return the result of a sum without terms, or one without entries."""
    shape = compute_shape(inputs, output, [array.shape for array in arrays])
    zeros = np.zeros(shape, np.result_type(*arrays))
    if out is None:
        return zeros
    out[...] = zeros
    return out


def _without_ones(
    inputs: Sequence[IndexList], output: IndexList, arrays: Arrays
) -> Any:
    """Evaluate an einsum without its axes of extent 1, which need no letters."""
    terms, squeezed = [], []
    for term, array in zip(inputs, arrays, strict=True):
        terms.append(tuple(i for i, n in zip(term, array.shape, strict=True) if n != 1))
        squeezed.append(array.reshape([n for n in array.shape if n != 1]))
    long = {index for term in terms for index in term}
    result = evaluate_by_numpy(terms, tuple(i for i in output if i in long), squeezed)
    extents = iter(result.shape)
    return result.reshape([next(extents) if i in long else 1 for i in output])


def _as_array(value: Any, arrays: Arrays) -> Any:
    """Convert a number, which numpy returns instead of an array of rank 0."""
    result = np.empty((), np.result_type(*(array.dtype for array in arrays)))
    result[()] = value
    return result
