"""Calls that numpy computes, every time.

They are those of dtypes or sizes that no kernel has, and large networks, for which a
compiler takes minutes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from feinsum.calling.reading import Reading
from feinsum.calling.reading.einsum import DType, fits_kernels
from feinsum.calling.reading.terms import Shape, Terms, read_terms
from feinsum.contraction import find_steps, run_steps
from feinsum.contraction.by_numpy import MAX_LETTERS, einsum_by_numpy
from feinsum.errors import InvalidEinsumError, InvalidTypeError
from feinsum.ir import IndexList
from feinsum.paths import Path, find_path
from feinsum.variables import INTERMEDIATE_VARIABLE
from feinsum.words import counted

__all__ = [
    "NumpyCall",
    "einsum_in_steps",
    "evaluate_by_numpy",
    "extents_of",
    "find_numpy_path",
    "numpy_call",
]

Arrays = Sequence[Any]


@dataclass(frozen=True, eq=False)
class NumpyCall:
    """A call that numpy computes.

    Attributes:
        dtype: of the steps of a path.
        path: the contraction order; None to multiply from left to right, as matters for
            objects.
        result_bytes: of the result, 0 for a view.
    """

    terms: Terms
    dtype: DType
    path: Path | None
    result_bytes: int

    kernel = None
    """No call of this kind has one."""

    @property
    def settled(self) -> NumpyCall:
        """Itself: there is nothing to build."""
        return self

    def run(self, arrays: Arrays, out: Any = None) -> Any:
        """The result of :meth:`PreparedCall.run`.

        Raises:
            MeasurementError: if the result does not fit into memory.
        """
        from feinsum.targets.host.results import check_room  # loads Loopy, for a second

        check_room(self.result_bytes, "a result")
        terms = self.terms
        if self.path is not None:
            arrays = [np.asarray(array, self.dtype) for array in arrays]
        shaped = [
            array.reshape([terms.extents[index] for index in term])
            for array, term in zip(arrays, terms.inputs, strict=True)
        ]
        result = einsum_in_steps(terms.inputs, terms.output, shaped, self.path)
        if out is None:
            return result
        if out.shape != result.shape:
            raise InvalidEinsumError(
                f"out has shape {out.shape}, the result has {result.shape}",
                rules=("shape",),
            )
        out[...] = result
        return out


def numpy_call(
    subscripts: str, given: Sequence[tuple[Shape, DType]], *, may_predict: bool
) -> NumpyCall | None:
    """The call, if numpy is to compute it; None if kernels can.

    Args:
        given: shape and dtype of each operand.
        may_predict: whether the kernel would be predicted, and not only looked up.

    Raises:
        InvalidEinsumError: if subscripts and shapes do not match, or more indices are
            longer than 1 than numpy has letters.
        InvalidTypeError: if numpy cannot multiply entries of the dtypes, either.
    """
    terms = read_terms(subscripts, [shape for shape, _ in given])
    shapes = [
        tuple(terms.extents[index] for index in term)
        for term in (*terms.inputs, terms.output)
    ]
    dtypes = [dtype for _, dtype in given]
    has_limit = bool(os.environ.get(INTERMEDIATE_VARIABLE))
    is_large = may_predict and len(terms.extents) > MAX_LETTERS and not has_limit
    if fits_kernels(dtypes, shapes) and not is_large:
        return None
    is_view = len(given) == 1 and set(terms.inputs[0]) == {*terms.output}
    if not is_view:
        _check_dtypes(dtypes)
    is_ordered = any(dtype.hasobject for dtype in dtypes)
    path = None
    if len(given) > 2 and not is_ordered:
        path = find_path(terms.inputs, terms.output, dict(terms.extents))
    else:
        _check_indices(terms)
    common = dtypes[0] if is_view else np.result_type(*dtypes)
    result_bytes = 0 if is_view else prod(shapes[-1]) * common.itemsize
    return NumpyCall(terms, common, path, result_bytes)


def evaluate_by_numpy(reading: Reading, arrays: Arrays, path: Path | None) -> Any:
    """The result of a call that a kernel could compute, too.

    Args:
        path: None only for a view, or for at most as many indices that are longer than
            1 as numpy has letters.
    """
    given = {
        feed.name: np.asarray(arrays[feed.position], reading.dtype).reshape(feed.shape)
        for feed in reading.feeds
    }
    (row,) = reading.einsum.rows
    operands = [given[operand.name] for operand in row]
    return einsum_in_steps(reading.einsum.inputs, reading.einsum.output, operands, path)


def find_numpy_path(reading: Reading) -> Path | None:
    """The contraction order for numpy; None for a view of a single operand."""
    einsum = reading.einsum
    if len(einsum.inputs) == 1 and {*einsum.inputs[0]} == {*einsum.output}:
        return None
    return find_path(einsum.inputs, einsum.output, extents_of(reading))


def extents_of(reading: Reading) -> dict[str, int]:
    """The extent of each index, as a number."""
    return {
        index: n if isinstance(n, int) else reading.sizes[n.name]
        for index, n in reading.einsum.extents.items()
    }


def einsum_in_steps(
    inputs: Sequence[IndexList],
    output: IndexList,
    arrays: Arrays,
    path: Path | None,
) -> Any:
    """An einsum along a path, as an array, even of rank 0.

    Args:
        arrays: of one dtype, if there is a path.
        path: None to multiply all at once, in the order in which they stand.
    """
    if path is None:
        return einsum_by_numpy(inputs, output, arrays)
    return run_steps(_steps(tuple(inputs), output, path), arrays)


_steps = lru_cache(4096)(find_steps)


def _check_indices(terms: Terms) -> None:
    n_long = sum(n != 1 for n in terms.extents.values())
    if n_long > MAX_LETTERS:
        raise InvalidEinsumError(
            f"there are {n_long} indices that are longer than 1, for "
            f"{counted(len(terms.inputs), 'operand')}; numpy, which computes such "
            f"calls, has {MAX_LETTERS}: compute it in steps",
            rules=("subscripts",),
        )


def _check_dtypes(dtypes: Sequence[DType]) -> None:
    wrong = [dtype for dtype in dtypes if dtype.kind not in "?biufcO"]
    if wrong:
        raise InvalidTypeError(
            f"operands of dtype {_names(dtypes)} have entries that cannot be "
            "multiplied: convert them to numbers",
            rules=("dtype",),
        )


def _names(dtypes: Sequence[DType]) -> str:
    return ", ".join(map(str, dict.fromkeys(dtypes)))
