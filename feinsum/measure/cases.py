"""Test cases of an einsum: a kernel, arguments, and the correct results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import loopy as lp
import numpy as np

from feinsum.errors import MeasurementError, TransformError
from feinsum.ir import BatchedEinsum
from feinsum.measure.reference import reference_of
from feinsum.measure.verification import tolerance_for
from feinsum.raising import LoopNest
from feinsum.records import TransformSpec
from feinsum.transforms import find_transform

__all__ = [
    "Case",
    "bare_case",
    "make_case",
    "pairwise_baseline",
    "posed_case",
    "ragged_cases",
    "ragged_unit",
]

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
    """Random arguments of an einsum, and numpy's results for them.

    Raises:
        MeasurementError: if the results are not finite.
    """
    case = posed_case(einsum, sizes)
    results = reference_of(einsum).results(case.arguments)
    if not all(np.isfinite(result).all() for result in results):
        raise MeasurementError(
            f"the reference result of {einsum.subscripts} is not finite"
        )
    return replace(case, expected=dict(zip(case.nest.outputs, results, strict=True)))


def posed_case(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Case:
    """Random arguments of an einsum, without results."""
    arguments = reference_of(einsum).arguments(sizes)
    return replace(bare_case(einsum, sizes), arguments=arguments)


def bare_case(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Case:
    """The kernel of an einsum and its tolerance, for arguments from elsewhere."""
    reference = reference_of(einsum)
    t_unit, nest = reference.kernel()
    # one tolerance for all rows: that of the least precise
    dtype = min(einsum.output_dtypes, key=lambda d: d.itemsize)
    tolerance = tolerance_for(dtype, reference.n_terms(sizes))
    return Case(einsum, t_unit, nest, sizes, {}, {}, tolerance)


def pairwise_baseline(case: Case) -> lp.TranslationUnit | None:
    """The kernel to compare with; None if it is the untransformed one.

    With many operands, one nest may run for days, and nobody would run it.

    Raises:
        MeasurementError: if the configured limit on intermediates is not a number.
    """
    return reference_of(case.einsum).baseline(case.sizes)


def ragged_unit(spec: TransformSpec, case: Case) -> lp.TranslationUnit:
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


def ragged_cases(einsum: BatchedEinsum) -> tuple[BatchedEinsum, list[dict[str, int]]]:
    """An einsum with run-time extents, and sizes that no tile divides."""
    variant, sizes = reference_of(einsum).ragged()
    return variant.einsum, sizes
