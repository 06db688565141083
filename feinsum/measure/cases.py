"""Test cases of an einsum: a kernel, arguments, and the correct results.

For large results, a few entries are checked at a fraction of the full cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import loopy as lp
import numpy as np

from feinsum.errors import MeasurementError, TransformError, WrongResultError
from feinsum.ir import BatchedEinsum
from feinsum.measure.reference import count_terms, make_reference
from feinsum.measure.verification import compute_tolerance
from feinsum.raising import LoopNest
from feinsum.records import TransformSpec
from feinsum.transforms import find_transform

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Case:
    """An untransformed kernel with arguments and the correct results."""

    einsum: BatchedEinsum
    t_unit: lp.TranslationUnit
    nest: LoopNest
    sizes: Mapping[str, int]
    arguments: Mapping[str, Any]
    expected: Mapping[str, Array]
    tolerance: float


def make_case(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Case:
    """Draw random arguments of an einsum, and compute numpy's results for them.

    Raises:
        MeasurementError: if the results are not finite.
    """
    case = pose_case(einsum, sizes)
    results = make_reference(einsum).results(case.arguments)
    if not all(np.isfinite(result).all() for result in results):
        raise MeasurementError(
            f"the reference result of {einsum.subscripts} is not finite"
        )
    return replace(case, expected=dict(zip(case.nest.outputs, results, strict=True)))


def pose_case(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Case:
    """Draw random arguments of an einsum, without computing results."""
    arguments = make_reference(einsum).arguments(sizes)
    return replace(make_bare_case(einsum, sizes), arguments=arguments)


def make_bare_case(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Case:
    """Make a case without arguments: the kernel of an einsum and its tolerance."""
    reference = make_reference(einsum)
    t_unit, nest = reference.kernel()
    # one tolerance for all rows: that of the least precise
    dtype = min(einsum.output_dtypes, key=lambda d: d.itemsize)
    tolerance = compute_tolerance(dtype, reference.n_terms(sizes))
    return Case(einsum, t_unit, nest, sizes, {}, {}, tolerance)


def make_ragged_unit(spec: TransformSpec, case: Case) -> lp.TranslationUnit:
    """Apply a recipe whose space may not fit an einsum of run-time extents.

    Raises:
        TransformError: if it cannot be applied.
    """
    apply = find_transform(spec.name, spec.version).apply
    try:
        return apply(case.t_unit, case.nest, spec.parameters)
    except TransformError:
        raise
    except Exception as error:  # Loopy raises errors of many kinds
        raise TransformError(
            f"{spec} cannot be applied to run-time extents: "
            f"{type(error).__name__}: {error}"
        ) from error


def make_ragged_cases(
    einsum: BatchedEinsum,
) -> tuple[BatchedEinsum, list[dict[str, int]]]:
    """Return an einsum with run-time extents, and sizes that no tile divides."""
    # A tile of 16 rows that reads beyond the end is correct for all multiples of 16.
    variant, sizes = make_reference(einsum).ragged()
    return variant.einsum, sizes


N_SAMPLES = 24
"""Number of drawn entries; if one in ten is wrong, they reveal it nine times in ten."""

BOX_ENTRIES = 1 << 22
"""Entries of each operand that are compared at a time."""

PERIOD = 65_521
"""A prime, so that no axis of an array begins with the same entries twice."""


def make_patterned(shape: Sequence[int], dtype: np.dtype[Any], seed: int) -> Array:
    """Make an array of irregular entries as fast as memory is written.

    >>> make_patterned((2, 2), np.dtype("i4"), 0).dtype
    dtype('int32')
    """
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape, dtype=np.int64))
    if dtype.kind in "iu":
        block = rng.integers(1, 8, min(size, PERIOD)).astype(dtype)
    else:
        block = (rng.random(min(size, PERIOD)) + 0.5).astype(dtype)
        if dtype.kind == "c":
            block = block * (1 + 0.5j)
    # Repeating a block is as fast as writing memory; drawing every entry is not.
    return np.resize(block, shape).astype(dtype, copy=False)


def check_samples(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    arrays: Mapping[str, Array],
    result: Array,
    seed: int = 0,
) -> None:
    """Compare the first, the last and some random entries of a result with numpy.

    An error is relative to the sum of the magnitudes of the terms of an entry. Entries
    for which numpy's own result is not finite prove nothing and are skipped.

    Args:
        einsum: an einsum of one row.
        sizes: the values of its size parameters.
        arrays: the operands by name.
        result: the result to check.
        seed: of the random entries.

    Raises:
        WrongResultError: if one is wrong, saying where.
    """
    dtype = einsum.output_dtypes[0]
    tolerance = compute_tolerance(dtype, count_terms(einsum, sizes))
    for position in _draw_positions(result.shape, seed):
        right, magnitude = _compute_entry(einsum, arrays, position)
        # Where numpy overflows, a kernel with another order of sums need not.
        if not np.isfinite(magnitude):
            continue
        entry = result[position]
        # not "greater than": NaN has to fail
        if not abs(entry - right) <= tolerance * magnitude:
            raise WrongResultError(
                f"entry {list(position)} of the result is {entry}, expected {right}"
            )


def _draw_positions(shape: Sequence[int], seed: int) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    corners = [tuple(0 for _ in shape), tuple(n - 1 for n in shape)]
    n_drawn = N_SAMPLES + len(shape)
    drawn = [
        [int(k) for k in position]
        for position in zip(*(rng.integers(0, n, n_drawn) for n in shape), strict=True)
    ]
    for axis, extent in enumerate(shape):  # the end of each axis: remainders of tiles
        drawn[axis][axis] = extent - 1
    return list(dict.fromkeys([*corners, *map(tuple, drawn)]))


def _compute_entry(
    einsum: BatchedEinsum, arrays: Mapping[str, Array], position: tuple[int, ...]
) -> tuple[Any, float]:
    """Compute an entry, and its sum of magnitudes, in at least double precision."""
    fixed = dict(zip(einsum.output, position, strict=True))
    letters = {index: k for k, index in enumerate(einsum.summation_indices)}
    slices = [
        arrays[operand.name][tuple(fixed.get(i, slice(None)) for i in term)]
        for operand, term in zip(einsum.rows[0], einsum.inputs, strict=True)
    ]
    terms = [tuple(i for i in term if i in letters) for term in einsum.inputs]
    ranges = {
        index: range(extent)
        for slice_, term in zip(slices, terms, strict=True)
        for index, extent in zip(term, slice_.shape, strict=True)
    }
    result, magnitude = einsum.output_dtypes[0].type(0), 0.0
    # Copies in double precision of a whole operand may not fit the memory.
    for box in _split_box(ranges, terms):
        exact: list[Any] = []
        sizes: list[Any] = []
        for slice_, term, operand in zip(slices, terms, einsum.rows[0], strict=True):
            cut = slice_[tuple(slice(box[i].start, box[i].stop) for i in term)]
            wide = np.asarray(cut, _widen(operand.dtype))
            axes = [letters[i] for i in term]
            exact += [wide, axes]
            sizes += [np.abs(wide).astype(np.float64), axes]
        with np.errstate(all="ignore"):
            result = result + np.einsum(*exact, (), optimize=True)
            magnitude += float(np.einsum(*sizes, (), optimize=True))
    with np.errstate(all="ignore"):
        return einsum.output_dtypes[0].type(result), magnitude


_Box: TypeAlias = dict[str, range]


def _split_box(box: _Box, terms: Sequence[Sequence[str]]) -> Iterator[_Box]:
    """Split a box into boxes in which no operand has many entries to copy.

    A broadcast array of few entries can have a shape of billions.
    """
    sizes = [prod(len(box[i]) for i in term) for term in terms]
    if max(sizes) <= BOX_ENTRIES:
        yield box
        return
    longest = max(terms[sizes.index(max(sizes))], key=lambda i: len(box[i]))
    middle = len(box[longest]) // 2
    for half in (box[longest][:middle], box[longest][middle:]):
        yield from _split_box({**box, longest: half}, terms)


def _widen(dtype: np.dtype[Any]) -> np.dtype[Any]:
    # sums of integers wrap in their own dtype, as those of kernels do
    return dtype if dtype.kind in "iu" else np.result_type(dtype, np.float64)
