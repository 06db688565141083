"""Calls without a kernel of their own, in steps of one or two arrays.

Calls are computed so until a kernel pays off; those of dtypes or sizes that no kernel
has, and large networks, for which a compiler takes minutes, always.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from feinsum.calling.reading.dtypes import DType, fits_kernels
from feinsum.calling.reading.terms import Terms
from feinsum.contraction import (
    PlannedStep,
    Step,
    find_steps,
    plan_steps,
    run_plan,
    run_steps,
)
from feinsum.contraction.by_numpy import MAX_LETTERS, einsum_by_numpy
from feinsum.contraction.direct import compute
from feinsum.errors import InvalidEinsumError, InvalidTypeError
from feinsum.options import INTERMEDIATE_VARIABLE
from feinsum.result_memory import CHECKED_BYTES, check_room
from feinsum.subscripts import IndexList
from feinsum.words import counted

if TYPE_CHECKING:
    from feinsum.calling.reading import Reading
    from feinsum.paths import Path

Arrays = Sequence[Any]


@dataclass(eq=False)
class StepsCall:
    """A call that is computed in steps of one or two arrays, of known strides.

    Attributes:
        dtype: of the steps; None if numpy multiplies all operands at once, in the order
            in which they stand, as matters for objects.
        result_dtype: of the result.
        path: the contraction order.
        result_bytes: of the result, 0 for a view.
        subscripts: of the call, if the extension may answer it; it lays out products
            better than the steps do.
    """

    terms: Terms
    dtype: DType | None
    result_dtype: DType
    path: Path | None
    result_bytes: int
    subscripts: str | None = None
    _plan: Sequence[PlannedStep] = ()
    _is_direct: bool = False

    kernel = None
    """No call of this kind has one."""

    @property
    def settled(self) -> StepsCall:
        """Itself: there is nothing to build."""
        return self

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of the result."""
        return tuple(self.terms.extents[index] for index in self.terms.output)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """What is computed, one after the other."""
        assert self.path is not None
        return _steps(self.terms.inputs, self.terms.output, self.path)

    def run(self, arrays: Arrays, out: Any = None) -> Any:
        """The result of :meth:`PreparedCall.run`.

        Raises:
            MeasurementError: if the result does not fit into memory.
        """
        if self.subscripts is not None and out is None:
            result = compute(self.subscripts, tuple(arrays), True)
            if result is not NotImplemented:
                return np.asarray(result)  # of a number, too
            self.subscripts = None
        if self._is_direct and out is None:
            return run_plan(self._plan, arrays)
        if self.result_bytes >= CHECKED_BYTES:
            check_room(self.result_bytes, "a result")
        shaped = [
            self._operand(array, term)
            for array, term in zip(arrays, self.terms.inputs, strict=True)
        ]
        if self.dtype is None:
            result = einsum_by_numpy(self.terms.inputs, self.terms.output, shaped)
        else:
            if not self._plan:
                self._plan = plan_steps(self.steps, shaped)
                # operands are as they were given, and the result as it is computed
                self._is_direct = (
                    self.result_bytes < CHECKED_BYTES
                    and self.dtype == self.result_dtype
                    and all(x is y for x, y in zip(shaped, arrays, strict=True))
                )
            result = run_plan(self._plan, shaped)
            if result.dtype != self.result_dtype:
                result = result.astype(self.result_dtype)
        if out is None:
            return result
        if out.shape != result.shape:
            raise InvalidEinsumError(
                f"out has shape {out.shape}, the result has {result.shape}",
                rules=("shape",),
            )
        out[...] = result
        return out

    def _operand(self, array: Any, term: IndexList) -> Any:
        """Without axes that are broadcast, in the dtype of the steps."""
        if self.dtype is not None and array.dtype != self.dtype:
            array = np.asarray(array, self.dtype)
        if array.ndim == len(term):
            return array
        return array.reshape([self.terms.extents[index] for index in term])


def steps_call(
    terms: Terms,
    dtypes: Sequence[DType],
    max_entries: int | None = None,
    path: Path | None = None,
) -> StepsCall:
    """The call in steps.

    Args:
        max_entries: of an intermediate.
        path: the order; by default, one is searched.

    Raises:
        InvalidEinsumError: if more indices are longer than 1 than numpy has letters,
            and numpy computes the call in one step.
        InvalidTypeError: if numpy cannot multiply entries of the dtypes.
    """
    is_view = len(dtypes) == 1 and set(terms.inputs[0]) == {*terms.output}
    if not is_view:
        _check_dtypes(dtypes)
    common = dtypes[0] if is_view else np.result_type(*dtypes)
    native = common if is_view else common.newbyteorder("=")
    if any(dtype.hasobject for dtype in dtypes):
        path = None
    elif path is None:
        path = _path(terms, max_entries)
        if len(path[0]) > 2:
            path = None  # no order keeps to the limit, but all at once
    if path is None or len(path) < 2:
        _check_indices(terms)
    # half precision is added up in single precision, and rounded once
    is_half = native == np.float16 and len(dtypes) > 1
    dtype = None if path is None else np.dtype(np.float32) if is_half else native
    n_entries = prod(terms.extents[index] for index in terms.output)
    result_bytes = 0 if is_view else n_entries * native.itemsize
    return StepsCall(terms, dtype, native, path, result_bytes)


def _path(terms: Terms, max_entries: int | None) -> Path:
    """A contraction order; that of extents of about the same size is searched once."""
    if len(terms.inputs) < 3:
        return (tuple(range(len(terms.inputs))),)
    rounded = tuple((i, _rounded(n)) for i, n in terms.extents.items())
    return _found_path(terms.inputs, terms.output, rounded, max_entries)


def _rounded(extent: int) -> int:
    """To a power of two above 16, where half as many change no order much."""
    return extent if extent <= 16 else 1 << (extent - 1).bit_length()


@lru_cache(4096)
def _found_path(
    inputs: tuple[IndexList, ...],
    output: IndexList,
    extents: tuple[tuple[str, int], ...],
    max_entries: int | None,
) -> Path:
    from feinsum.paths import find_path  # loads opt_einsum

    return find_path(inputs, output, dict(extents), max_entries=max_entries)


def numpy_call(
    terms: Terms, dtypes: Sequence[DType], *, may_predict: bool
) -> StepsCall | None:
    """The call in steps, if no kernel can compute it.

    Args:
        may_predict: whether the kernel would be predicted, and not only looked up.

    Raises:
        InvalidEinsumError, InvalidTypeError: as :func:`steps_call`.
    """
    shapes = [
        tuple(terms.extents[index] for index in term)
        for term in (*terms.inputs, terms.output)
    ]
    has_limit = bool(os.environ.get(INTERMEDIATE_VARIABLE))
    is_large = may_predict and len(terms.extents) > MAX_LETTERS and not has_limit
    if fits_kernels(dtypes, shapes) and not is_large:
        return None
    return steps_call(terms, dtypes)


def evaluate_by_numpy(reading: Reading, arrays: Arrays, path: Path | None) -> Any:
    """The result of a call that a kernel could compute, too.

    Args:
        path: None only for a view, or for at most as many indices that are longer than
            1 as numpy has letters.
    """
    # half precision is added up in single precision, and rounded once
    is_half = reading.dtype == np.float16 and path is not None and len(arrays) > 1
    dtype = reading.work_dtype if is_half else reading.dtype
    given = {
        feed.name: np.asarray(arrays[feed.position], dtype).reshape(feed.shape)
        for feed in reading.feeds
    }
    (row,) = reading.einsum.rows
    operands = [given[operand.name] for operand in row]
    terms, output = reading.einsum.inputs, reading.einsum.output
    result = einsum_in_steps(terms, output, operands, path)
    return result.astype(np.float16) if is_half else result


def find_numpy_path(reading: Reading) -> Path | None:
    """The contraction order for numpy; None for a view of a single operand."""
    einsum = reading.einsum
    if len(einsum.inputs) == 1 and {*einsum.inputs[0]} == {*einsum.output}:
        return None
    from feinsum.paths import find_path

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
