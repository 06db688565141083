"""The minimum memory and time of a tuning, checked before anything is started.

The workload may come from elsewhere, such as the misses of a service. A workload that
does not fit is refused by name; a tuning that has started cannot exceed its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from feinsum.contraction.paths import find_contraction_steps
from feinsum.errors import MeasurementError
from feinsum.free_memory import get_free_memory_bytes
from feinsum.ir import BatchedEinsum
from feinsum.measure import count_footprint_bytes, count_operations
from feinsum.measure.reference import MANY_TIMES
from feinsum.records.capability import count_products
from feinsum.tuning.problem import TuningProblem
from feinsum.words import format_sizes

MIN_LIMIT_BYTES = 2**30
SHARE = 0.75
"""Share of the free memory that the process of the trials may take."""
COPIES = 5
"""Copies of all arrays: for numpy, the untransformed kernel and the recipe."""
MAX_SECONDS = 300.0
"""Maximum seconds of one run of the reference and of the untransformed kernel."""
OPERATIONS_PER_S = 4e9
"""Operations per second: more than an untransformed kernel reaches."""


@dataclass(frozen=True)
class Requirements:
    """The minimum needs of a tuning.

    Attributes:
        n_bytes: bytes of memory.
        seconds: time until the first recipe is tried.
    """

    n_bytes: int
    seconds: float


def estimate_requirements(problem: TuningProblem) -> Requirements:
    """Estimate the needs of a tuning without making any array.

    >>> chain = "a b, b c -> a c | A0[N0,4]:<f8 A1[4,4]:<f8 | A0 A1"
    >>> estimate_requirements(TuningProblem(chain, {"N0": 1000})).n_bytes
    384640
    """
    einsum, sizes = problem.einsum, problem.sizes
    if einsum.sparse_position is not None:
        return _estimate_sparse(einsum, sizes)
    arrays = COPIES * count_footprint_bytes(einsum, sizes)
    return Requirements(
        arrays + _estimate_product_bytes(einsum, sizes),
        _count_untransformed(einsum, sizes) / OPERATIONS_PER_S,
    )


def _estimate_sparse(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Requirements:
    """Estimate a tree, dense operands, results and one loop over all indices."""
    n_operations = count_products(einsum, einsum.indices, sizes) * einsum.n_operands
    n_bytes = COPIES * count_footprint_bytes(einsum, sizes)
    return Requirements(n_bytes, n_operations / OPERATIONS_PER_S)


def check_requirements(problem: TuningProblem) -> None:
    """Refuse a tuning that cannot be done here.

    Raises:
        MeasurementError: naming what it needs and what is available.
    """
    need, limit = estimate_requirements(problem), get_memory_limit_bytes()
    sizes = format_sizes(problem.sizes) or "its extents"
    task = f"tuning {problem.workload_text:.300} at {sizes}"
    if need.n_bytes > limit:
        raise MeasurementError(
            f"{task} takes at least {need.n_bytes / 1e9:.3g} GB of memory; expected at "
            f"most {limit / 1e9:.3g} GB, {SHARE:.0%} of the free memory: tune it at "
            "smaller sizes"
        )
    if need.seconds > MAX_SECONDS:
        raise MeasurementError(
            f"{task} takes at least {need.seconds:.3g} s until the first recipe is "
            f"tried; expected at most {MAX_SECONDS:g} s: tune it at smaller sizes"
        )


def get_memory_limit_bytes() -> int:
    """Return the memory limit of the trial process."""
    # A small limit would fail in imports and compilers rather than in trials.
    return max(MIN_LIMIT_BYTES, int(SHARE * get_free_memory_bytes()))


def _estimate_product_bytes(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> int:
    """Estimate the bytes of the two largest intermediates of the reference result."""
    extents = einsum.extents_at(sizes)
    steps = find_contraction_steps(einsum.inputs, einsum.output, tuple(extents.items()))
    itemsize = max(dtype.itemsize for dtype in einsum.output_dtypes)
    sizes_bytes = []
    for step in steps:
        inside = {i for p in step.operands for i in einsum.inputs[p]}
        outside = set(einsum.output).union(
            *(term for p, term in enumerate(einsum.inputs) if p not in step.operands)
        )
        sizes_bytes.append(prod(extents[i] for i in inside & outside) * itemsize)
    # Two at a time: the operand and the result of a step.
    return sum(sorted(sizes_bytes)[-2:])


def _count_untransformed(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> int:
    """Count the operations of the untransformed kernel, in one nest or pairwise."""
    n_least = sum(count_operations(einsum, sizes).values())
    n_points = prod(einsum.extents_at(sizes).values())
    in_one_nest = n_points * einsum.n_operands * einsum.batch_size
    return in_one_nest if in_one_nest < MANY_TIMES * n_least else n_least
