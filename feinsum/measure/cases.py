"""Cases of an einsum: a kernel, arguments, and the results that are right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import loopy as lp
import numpy as np
from pymbolic.primitives import Variable

from feinsum.codegen import contraction_path, generate_loopy
from feinsum.errors import InvalidEinsumError, MeasurementError, TransformError
from feinsum.ir import BatchedEinsum, SizeParam, evaluate, with_extents
from feinsum.measure.arguments import random_arguments
from feinsum.measure.counts import einsum_operations, footprint_bytes, n_terms
from feinsum.measure.intermediates import intermediate_limit_bytes
from feinsum.measure.verification import tolerance_for
from feinsum.raising import LoopNest, identify_as_einsum
from feinsum.records import TransformSpec
from feinsum.transforms import find_transform

__all__ = [
    "Case",
    "functional_case",
    "make_case",
    "pairwise_baseline",
    "posed_case",
    "ragged_cases",
    "ragged_unit",
]

Array = np.ndarray[Any, np.dtype[Any]]
NEVER_LONG = 1 << 62
"""No extent is as long as this, so that none is made a size parameter."""
MANY_TIMES = 8
"""One nest that takes so many times the operations of a path is no baseline."""
RAGGED_EXTENTS = (37, 53, 29, 45, 61, 23)
"""Odd, so that no tile of vectors divides them; no two are alike, so that sizes that
were mixed up are found.
"""
RAGGED_FOOTPRINT_BYTES = 16_000_000
"""Arrays of more take numpy too long, where many sizes come together."""


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
    case = posed_case(einsum, sizes)
    arrays = {op.name: case.arguments[op.name] for op in einsum.operands}
    results = evaluate(einsum, arrays, optimize=True)
    if not all(np.isfinite(result).all() for result in results):
        raise MeasurementError(
            f"the reference result of {einsum.subscripts} is not finite"
        )
    return replace(case, expected=dict(zip(case.nest.outputs, results, strict=True)))


def posed_case(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Case:
    """Random arguments of an einsum, of which nobody knows the results yet."""
    t_unit, nest = _untransformed(einsum)
    arguments = random_arguments(t_unit, sizes, np.random.default_rng(0))
    dtype = min(einsum.output_dtypes, key=lambda d: d.itemsize)
    tolerance = tolerance_for(dtype, n_terms(einsum, sizes))
    return Case(einsum, t_unit, nest, sizes, arguments, {}, tolerance)


@lru_cache(maxsize=4)
def _untransformed(einsum: BatchedEinsum) -> tuple[lp.TranslationUnit, LoopNest]:
    return identify_as_einsum(generate_loopy(einsum), einsum, long_extent=NEVER_LONG)


def pairwise_baseline(case: Case) -> lp.TranslationUnit | None:
    """The untransformed kernel in pairs of operands; None if one nest is the baseline.

    Of many operands one nest may run for days, and nobody would run it.

    Raises:
        MeasurementError: if the limit of intermediates that is set is no number.

    >>> from feinsum.ir import array, einsum
    >>> shapes = {"A": (20, 30), "B": (30, 40), "C": (40, 50)}
    >>> chain = einsum("ij,jk,kl->il", *(array(*item) for item in shapes.items()))
    >>> pairwise_baseline(make_case(chain, {})) is None
    False
    >>> product = einsum("ij,jk->ik", array("A", (20, 30)), array("B", (30, 40)))
    >>> pairwise_baseline(make_case(product, {})) is None
    True
    """
    einsum, sizes = case.einsum, case.sizes
    extents = (
        sizes[x.name] if isinstance(x, SizeParam) else x
        for x in einsum.extents.values()
    )
    n_in_one_nest = prod(extents) * einsum.n_operands * einsum.batch_size
    n_least = sum(einsum_operations(einsum, sizes).values())
    if n_in_one_nest < MANY_TIMES * n_least:
        return None
    limit = intermediate_limit_bytes(einsum, sizes)
    path = contraction_path(einsum, sizes, max_bytes=limit)
    return generate_loopy(einsum, path=path) if len(path) > 1 else None


def functional_case(case: Case) -> Case:
    """The same case with functions for operands: each is an array times a scalar.

    The scalars are 1 and known at run time only, so that results stay the same.
    A recipe of a library has to evaluate such operands before it can call it.

    >>> from feinsum.ir import array, einsum
    >>> case = make_case(einsum("ij,j->i", array("A", (3, 4)), array("x", 4)), {})
    >>> rules = functional_case(case).t_unit.default_entrypoint.substitutions
    >>> print(rules["x_rule"].expression)
    factor_x*x[_0]
    """
    einsum, kernel = case.einsum, case.t_unit.default_entrypoint
    rules, factors = dict(kernel.substitutions), {}
    unique = kernel.get_var_name_generator()
    for op in einsum.operands:
        name = unique(f"factor_{op.name}")
        factors[name] = op.dtype.type(1)
        rule = rules[case.nest.rules[op.name]]
        rules[rule.name] = rule.copy(expression=Variable(name) * rule.expression)
    scalars = [lp.ValueArg(name, value.dtype) for name, value in factors.items()]
    changed = kernel.copy(substitutions=rules, args=[*kernel.args, *scalars])
    t_unit, nest = identify_as_einsum(
        case.t_unit.with_kernel(changed), einsum, long_extent=NEVER_LONG
    )
    arguments = {**case.arguments, **factors}
    return replace(case, t_unit=t_unit, nest=nest, arguments=arguments)


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
