"""Calls without a kernel of their own, in steps of one or two arrays.

Every call is computed like this until a kernel pays off. Some calls never get a kernel:
those whose dtypes or sizes kernels do not support, and large networks, for which a
compiler takes minutes::

    ab,bc,cd->ad   =   bc,cd->bd   then   ab,bd->ad

A kernel is an improvement, never a condition: without a compiler, a home, room on disk
or a healthy database, a call still has a result. If a kernel cannot be built or fails,
numpy computes the call instead, and the process warns once, with the reason.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from feinsum.calling.operands import DType, fits_kernels
from feinsum.calling.terms import Terms
from feinsum.contraction import (
    PlannedStep,
    Step,
    find_steps,
    plan_steps,
    run_plan,
    run_steps,
)
from feinsum.contraction.by_numpy import MAX_LETTERS, evaluate_by_numpy
from feinsum.contraction.direct import compute
from feinsum.errors import (
    FeinsumError,
    FeinsumWarning,
    InvalidEinsumError,
    InvalidOptionError,
    InvalidTypeError,
    MeasurementError,
)
from feinsum.memory import get_remembered
from feinsum.options import INTERMEDIATE_VARIABLE
from feinsum.result_memory import CHECKED_BYTES, check_free_memory
from feinsum.subscripts import IndexList
from feinsum.words import format_count

if TYPE_CHECKING:
    from feinsum.calling.einsum_call import EinsumCall
    from feinsum.contraction.paths import Path


T = TypeVar("T")
Arrays = Sequence[Any]


@dataclass(eq=False)
class NumpyStepsCall:
    """A call that is computed in steps of one or two arrays, of known strides.

    Attributes:
        dtype: dtype of the steps. None if numpy multiplies all operands at once, in the
            given order, which matters for objects.
        result_dtype: dtype of the result.
        path: the contraction order.
        result_bytes: size of the result; 0 for a view.
        subscripts: subscripts of the call, if the extension may compute it; it lays out
            products better than the steps do.
    """

    terms: Terms
    dtype: DType | None
    result_dtype: DType
    path: Path | None
    result_bytes: int
    subscripts: str | None = None
    _plan: Sequence[PlannedStep] = ()
    _is_direct: bool = False

    # `explain` and users read these attributes of every kind of call
    kernel = None
    """No call of this kind has one."""
    recipe = ""
    """Nor a recipe."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return tuple(self.terms.extents[index] for index in self.terms.output)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        """The steps, in the order in which they are computed."""
        assert self.path is not None
        return _steps(self.terms.inputs, self.terms.output, self.path)

    def run(self, arrays: Arrays, out: Any = None) -> Any:
        """Return the result of :meth:`PreparedCall.run`.

        Raises:
            MeasurementError: if the result does not fit into memory.
        """
        # the extension reorders the steps, so that products stay in the cache
        if self.subscripts is not None:
            result = compute(self.subscripts, tuple(arrays), True, out)
            if result is not NotImplemented:
                return np.asarray(result)  # a sum over all indices gives a scalar
            # whether it can compute a call depends on the forms of the arrays alone, if
            # no operand lies in the memory for the result
            if out is None:
                self.subscripts = None
        if self._is_direct and out is None:
            return run_plan(self._plan, arrays)
        # the system overcommits: allocation would succeed, and a later write crash
        if self.result_bytes >= CHECKED_BYTES:
            check_free_memory(self.result_bytes, "a result")
        shaped = [
            self._prepare_operand(array, term)
            for array, term in zip(arrays, self.terms.inputs, strict=True)
        ]
        if self.dtype is None:
            result = evaluate_by_numpy(self.terms.inputs, self.terms.output, shaped)
        else:
            if not self._plan:
                self._plan = plan_steps(self.steps, shaped)
                # direct calls need neither casts nor reshapes, of operands or result
                self._is_direct = (
                    self.result_bytes < CHECKED_BYTES
                    and self.dtype == self.result_dtype
                    and all(x is y for x, y in zip(shaped, arrays, strict=True))
                )
            result = run_plan(self._plan, shaped)
            # half precision is rounded once, at the end
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

    def _prepare_operand(self, array: Any, term: IndexList) -> Any:
        """Drop axes that are broadcast, and cast to the dtype of the steps."""
        if self.dtype is not None and array.dtype != self.dtype:
            array = np.asarray(array, self.dtype)
        if array.ndim == len(term):
            return array
        return array.reshape([self.terms.extents[index] for index in term])


def build_steps_call(
    terms: Terms,
    dtypes: Sequence[DType],
    max_entries: int | None = None,
    path: Path | None = None,
) -> NumpyStepsCall:
    """Build a call in steps, by default along the best path that a search finds.

    Intermediates have at most ``max_entries`` entries.

    Raises:
        InvalidEinsumError: if more indices are longer than 1 than numpy has letters,
            and numpy computes the call in one step.
        InvalidTypeError: if numpy cannot multiply entries of the dtypes.
    """
    is_view = len(dtypes) == 1 and set(terms.inputs[0]) == {*terms.output}
    if not is_view:
        _check_dtypes(dtypes)
    # a view keeps the byte order of its operand
    common = dtypes[0] if is_view else np.result_type(*dtypes)
    native = common if is_view else common.newbyteorder("=")
    # products of objects need not be associative, so that there is no path
    if any(dtype.hasobject for dtype in dtypes):
        path = None
    elif path is None:
        path = _find_path(terms, max_entries)
        if len(path[0]) > 2:
            path = None  # within the limit, all operands have to be multiplied at once
    if path is None or len(path) < 2:
        _check_indices(terms)
    # half precision is added up in single precision, and rounded once
    is_half = native == np.float16 and len(dtypes) > 1
    dtype = None if path is None else np.dtype(np.float32) if is_half else native
    n_entries = prod(terms.extents[index] for index in terms.output)
    result_bytes = 0 if is_view else n_entries * native.itemsize
    return NumpyStepsCall(terms, dtype, native, path, result_bytes)


def _find_path(terms: Terms, max_entries: int | None) -> Path:
    """Find a contraction order, with one search for all extents of similar size."""
    if len(terms.inputs) < 3:
        return (tuple(range(len(terms.inputs))),)
    # a program that varies a batch size then searches once
    rounded = tuple((i, _round_extent(n)) for i, n in terms.extents.items())
    return _search_path(terms.inputs, terms.output, rounded, max_entries)


def _round_extent(extent: int) -> int:
    """Round up to a power of two above 16; the best order seldom depends on less."""
    return extent if extent <= 16 else 1 << (extent - 1).bit_length()


@lru_cache(4096)
def _search_path(
    inputs: tuple[IndexList, ...],
    output: IndexList,
    extents: tuple[tuple[str, int], ...],
    max_entries: int | None,
) -> Path:
    from feinsum.contraction.paths import find_path  # loads opt_einsum

    return find_path(inputs, output, dict(extents), max_entries=max_entries)


def build_numpy_call(
    terms: Terms, dtypes: Sequence[DType], *, may_predict: bool
) -> NumpyStepsCall | None:
    """Build the call in steps if no kernel can compute it; else return None.

    The rules of a predicted kernel are stricter than those of one that is looked up.

    Raises:
        InvalidEinsumError, InvalidTypeError: as :func:`build_steps_call`.
    """
    shapes = [
        tuple(terms.extents[index] for index in term)
        for term in (*terms.inputs, terms.output)
    ]
    has_limit = bool(os.environ.get(INTERMEDIATE_VARIABLE))
    # generated code has a loop for each index
    is_large = may_predict and len(terms.extents) > MAX_LETTERS and not has_limit
    if fits_kernels(dtypes, shapes) and not is_large:
        return None
    return build_steps_call(terms, dtypes)


def evaluate_in_steps(
    inputs: Sequence[IndexList],
    output: IndexList,
    arrays: Arrays,
    path: Path | None,
) -> Any:
    """Evaluate an einsum along a path, or all at once, as an array even of rank 0."""
    if path is None:
        return evaluate_by_numpy(inputs, output, arrays)
    return run_steps(_steps(tuple(inputs), output, path), arrays)


_steps = lru_cache(4096)(find_steps)


def _check_indices(terms: Terms) -> None:
    # axes of extent 1 are dropped before numpy names the others
    n_long = sum(n != 1 for n in terms.extents.values())
    if n_long > MAX_LETTERS:
        raise InvalidEinsumError(
            f"there are {n_long} indices that are longer than 1, for "
            f"{format_count(len(terms.inputs), 'operand')}; numpy, which computes such "
            f"calls, has {MAX_LETTERS}: compute it in steps",
            rules=("subscripts",),
        )


def _check_dtypes(dtypes: Sequence[DType]) -> None:
    for position, dtype in enumerate(dtypes):
        if dtype.kind not in "?biufcO":
            raise InvalidTypeError(
                f"operand {position} has dtype {dtype}, whose entries cannot be "
                "multiplied: convert them to numbers",
                rules=("dtype",),
            )


@dataclass(frozen=True, eq=False)
class FallbackCall:
    """A call that numpy evaluates each time, because no kernel could be built.

    Attributes:
        error: the reason; None if the process is ending, which is not reported.
    """

    parsed: EinsumCall
    error: Exception | None

    recipe = ""
    """It has no kernel."""

    def run(self, arrays: Arrays, out: Any = None) -> Any:
        """Return the result of :meth:`PreparedCall.run`."""
        return answer_by_numpy(self.parsed, arrays, out, self.error)


def answer_by_numpy(
    parsed: EinsumCall, arrays: Arrays, out: Any, error: Exception | None
) -> Any:
    """Compute a call of host arrays with numpy, after its kernel failed.

    Raises:
        Exception: any error of numpy, or the given one if it is about the call itself.
    """

    def evaluate() -> Any:
        einsum = parsed.einsum
        position = {x.name: x.position for x in parsed.arguments}
        operands = [arrays[position[operand.name]] for operand in einsum.rows[0]]
        extents = einsum.extents_at(parsed.sizes)
        terms = Terms(einsum.inputs, einsum.output, extents)
        return build_steps_call(terms, [x.dtype for x in operands]).run(operands)

    result = evaluate_instead(evaluate, error)
    if out is None:
        return result
    out[...] = result
    return out


def evaluate_instead(evaluate: Callable[[], T], error: Exception | None) -> T:
    """Evaluate in another way what a failed kernel should have computed, and warn.

    Without an error there is no warning.

    Raises:
        Exception: any error of ``evaluate``, or the given one if it is about the call
            itself.
    """
    if error is not None and is_for_caller(error):
        raise error
    result = evaluate()
    if error is not None:
        report_fallback(error)
    return result


def is_for_caller(error: Exception) -> bool:
    """Return whether an error is about the call itself, so that numpy would fail too.

    A bare MeasurementError means that there is no memory, or that the limit of
    intermediates is not a number. A warning gets here only if a filter turned it into
    an error, which the caller wants to see.
    """
    is_invalid = isinstance(error, InvalidEinsumError | InvalidOptionError | Warning)
    return is_invalid or type(error) is MeasurementError


class Reported(list[str]):
    """The reason that this process has given in a warning, if any."""


def report_fallback(error: Exception) -> None:
    """Warn that numpy computes calls, once per process; log all later reasons."""
    name = "" if isinstance(error, FeinsumError) else f"{type(error).__name__}: "
    cause = f"{name}{error}"
    import logging  # takes as long to load as a hundred calls

    logging.getLogger(__name__).info("numpy answers a call: %s", cause, exc_info=error)
    # one warning: a program may make millions of calls
    if reported := get_remembered(Reported):
        return
    reported.append(cause)
    warnings.warn(
        f"numpy answers calls of einsum here, because no kernel can be built or run: "
        f"{cause}; 'feinsum doctor' says what to do",
        FeinsumWarning,
        stacklevel=find_caller_level(),
    )


def find_caller_level() -> int:
    """Count the frames up to the first one outside of feinsum, for ``stacklevel``."""
    frame, level = inspect.currentframe(), 0
    # the warning then names a line of the user, at whatever depth it arises
    while frame and f"{frame.f_globals.get('__name__')}.".startswith("feinsum."):
        frame, level = frame.f_back, level + 1
    return level
