"""Cases of an einsum: a kernel, arguments, and the results that are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import loopy as lp
import numpy as np

from feinsum.codegen import generate_loopy
from feinsum.errors import InvalidEinsumError, MeasurementError, TransformError
from feinsum.ir import BatchedEinsum, SizeParam, evaluate, with_extents
from feinsum.measure.arguments import random_arguments
from feinsum.measure.counts import footprint_bytes, n_terms
from feinsum.measure.verification import tolerance_for
from feinsum.raising import LoopNest, identify_as_einsum
from feinsum.records import TransformSpec
from feinsum.transforms import find_transform

__all__ = ["Case", "make_case", "ragged_cases", "ragged_unit"]

Array = np.ndarray[Any, np.dtype[Any]]
NEVER_LONG = 1 << 62
RAGGED_EXTENTS = (37, 53, 29, 45, 61, 23)
RAGGED_FOOTPRINT_BYTES = 16_000_000


@dataclass(frozen=True)
class Case:
    """An untransformed kernel with arguments and the results that are right."""

    einsum: BatchedEinsum
    t_unit: lp.TranslationUnit
    nest: LoopNest
    sizes: Mapping[str, int]
    arguments: Mapping[str, Any]
    expected: Mapping[str, Array]
    tolerance: float


def make_case(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Case:
    """Random arguments of an einsum, and what numpy makes of them.

    Raises:
        MeasurementError: if the results are not finite.
    """
    t_unit, nest = identify_as_einsum(
        generate_loopy(einsum), einsum, long_extent=NEVER_LONG
    )
    arguments = random_arguments(t_unit, sizes, np.random.default_rng(0))
    arrays = {op.name: arguments[op.name] for op in einsum.operands}
    names = nest.outputs
    results = evaluate(einsum, arrays, optimize=True)
    if not all(np.isfinite(result).all() for result in results):
        raise MeasurementError(
            f"the reference result of {einsum.subscripts} is not finite"
        )
    dtype = min(einsum.output_dtypes, key=lambda d: d.itemsize)
    return Case(
        einsum,
        t_unit,
        nest,
        sizes,
        arguments,
        dict(zip(names, results, strict=True)),
        tolerance_for(dtype, n_terms(einsum, sizes)),
    )


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
            f"{spec} cannot be applied where extents are known at run time only: "
            f"{type(error).__name__}: {error}"
        ) from error


def ragged_cases(einsum: BatchedEinsum) -> tuple[BatchedEinsum, list[dict[str, int]]]:
    """An einsum with run-time extents, and sizes that no tile divides.

    An einsum with size parameters is its own variant. Otherwise the free
    indices get parameters; there is no variant where an array ties one of them
    to a contraction index. All arrays of a case take about 16 MB at most.
    """
    if not einsum.size_params:
        einsum = _parametric(einsum)
    names = [x.name for x in einsum.size_params]
    if not names:
        return einsum, []
    ragged = {n: RAGGED_EXTENTS[k % len(RAGGED_EXTENTS)] for k, n in enumerate(names)}
    return einsum, [
        dict.fromkeys(names, 1),
        _affordable(einsum, ragged),
        _affordable(
            einsum, dict.fromkeys(names[:1], 301) | dict.fromkeys(names[1:], 5)
        ),
    ]


def _affordable(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> dict[str, int]:
    """Odd sizes, the larger ones halved until all arrays take few bytes."""
    sizes = dict(sizes)
    while footprint_bytes(einsum, sizes) > RAGGED_FOOTPRINT_BYTES and any(
        size > 3 for size in sizes.values()
    ):
        longest = max(sizes, key=lambda name: sizes[name])
        sizes[longest] = sizes[longest] // 2 | 1
    return sizes


def _parametric(einsum: BatchedEinsum) -> BatchedEinsum:
    params = {i: SizeParam(f"N{k}") for k, i in enumerate(einsum.free_indices)}
    try:
        return with_extents(einsum, {**einsum.extents, **params})
    except InvalidEinsumError:
        return einsum
