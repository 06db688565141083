"""The meaning of a workload and its work, defined once for all code.

Cases, ragged sizes, baselines, rooflines and counts are those of a :class:`Reference`.
A new kind of einsum is one class here, with an entry in :data:`REFERENCES`.

The count of an einsum is that of the cheapest way to evaluate each row separately. A
Gop/s rate refers to this count, even if the kernel does more:

1. An index that occurs in one operand only and not in the output is summed over
   that operand alone: ``I - O`` additions, with I entries before and O after.
   A diagonal (an index twice in one term) selects entries and costs nothing.
2. The operands are contracted pairwise. A step over I index tuples with O results
   is I multiplications and ``I - O`` additions; an index is summed as soon as
   nothing else carries it. The order is one with the fewest operations, found by
   exhaustion, for up to eight operands; above, that of opt_einsum's ``greedy``.

A multiplication or an addition of complex numbers is one operation of a complex
dtype. Nothing is shared between rows. The dtype of a step is numpy's result type
of all operands that enter it.

For a sparse operand, only stored entries count: a step runs over the nodes of the tree,
down to the deepest level that it contains from the root, with two operations each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Literal, TypeAlias

import loopy as lp
import numpy as np

from feinsum.codegen import find_contraction_path, generate_loopy
from feinsum.contraction.paths import find_contraction_steps
from feinsum.errors import InvalidEinsumError, MeasurementError
from feinsum.ir import (
    BatchedEinsum,
    Extent,
    SizeParam,
    Workload,
    WorkloadLike,
    as_workload,
    evaluate,
    get_nodes,
    list_profile_names,
    require_dense,
    with_extents,
)
from feinsum.measure.arguments import draw_arguments
from feinsum.measure.intermediates import get_intermediate_limit_bytes
from feinsum.nests import Operations, build_network, get_sizes, list_paths
from feinsum.raising import LoopNest, identify_as_einsum
from feinsum.records.capability import count_products

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Sizes: TypeAlias = Mapping[str, int]

EinsumKind: TypeAlias = Literal["dense", "sparse"]

NEVER_LONG = 1 << 62
"""Longer than any extent, so that no extent becomes a size parameter."""

MANY_TIMES = 8
"""Ratio of the operations of one nest to a path's above which it is not a baseline."""

RAGGED_EXTENTS = (37, 53, 29, 45, 61, 23)
"""Odd, so that no tile of vectors divides them, and distinct, so that mixed-up sizes
are found.
"""


@dataclass(frozen=True)
class Reference:
    """The meaning of an einsum, and its work, for arrays that store every entry.

    Sizes are values of the size parameters, all of them.
    """

    einsum: BatchedEinsum

    @classmethod
    def of(cls, workload: Workload) -> Reference:
        return cls(require_dense(workload.einsum))

    def kernel(self) -> tuple[lp.TranslationUnit, LoopNest]:
        """Return the untransformed kernel, in the names of the einsum, and its nest."""
        return _generate_untransformed(self.einsum)

    def arguments(self, sizes: Sizes) -> dict[str, Any]:
        """Draw random arguments of :meth:`kernel`, always the same."""
        t_unit, _ = self.kernel()
        return draw_arguments(t_unit, sizes, np.random.default_rng(0))

    def results(self, arguments: Mapping[str, Any]) -> tuple[Array, ...]:
        """Compute the results for arguments: one array for each row."""
        arrays = {op.name: arguments[op.name] for op in self.einsum.operands}
        return evaluate(self.einsum, arrays, optimize=True)

    def ragged(self) -> tuple[Reference, list[dict[str, int]]]:
        """Return a reference with run-time extents, and sizes that no tile divides.

        An einsum with size parameters is its own variant. Otherwise the free indices
        get parameters; there is no variant where an array ties one of them to a
        contraction index. All arrays take about 16 MB at most.
        """
        einsum = self.einsum
        if not einsum.size_params:
            einsum = _parametrize(einsum)
        names = [x.name for x in einsum.size_params]
        if not names:
            return Reference(einsum), []
        odd = {n: RAGGED_EXTENTS[k % len(RAGGED_EXTENTS)] for k, n in enumerate(names)}
        # One long axis: loops that run once elsewhere are entered several times.
        one_long = dict.fromkeys(names[:1], 301) | dict.fromkeys(names[1:], 5)
        return Reference(einsum), [
            dict.fromkeys(names, 1),
            _shrink(einsum, odd),
            _shrink(einsum, one_long),
        ]

    def baseline(self, sizes: Sizes) -> lp.TranslationUnit | None:
        """Return the kernel to compare with; None if it is the untransformed one.

        It contracts pairs of operands where one nest would run for days.

        >>> from feinsum.ir import array, einsum
        >>> shapes = {"A": (20, 30), "B": (30, 40), "C": (40, 50)}
        >>> chain = einsum("ij,jk,kl->il", *(array(*item) for item in shapes.items()))
        >>> Reference(chain).baseline({}) is None
        False
        >>> product = einsum("ij,jk->ik", array("A", (20, 30)), array("B", (30, 40)))
        >>> Reference(product).baseline({}) is None
        True
        """
        einsum = self.einsum
        n_points = prod(einsum.extents_at(sizes).values())
        n_in_one_nest = n_points * einsum.n_operands * einsum.batch_size
        n_least = sum(self.operations(sizes).values())
        # A nest that does many times the work of a path is no realistic baseline.
        if n_in_one_nest < MANY_TIMES * n_least:
            return None
        limit = get_intermediate_limit_bytes(einsum, sizes)
        path = find_contraction_path(einsum, sizes, max_bytes=limit)
        return generate_loopy(einsum, path=path) if len(path) > 1 else None

    def operations(self, sizes: Sizes) -> dict[str, int]:
        """Count additions and multiplications by dtype; see the module."""
        einsum = self.einsum
        extents = tuple(
            (i, _evaluate_extent(extent, sizes)) for i, extent in einsum.extents.items()
        )
        steps = find_contraction_steps(einsum.inputs, einsum.output, extents)
        counts: Counter[str] = Counter()
        for row in einsum.rows:
            for step in steps:
                dtype = np.result_type(*(row[p].dtype for p in step.operands))
                counts[dtype.str] += step.n_operations
        return {dtype: count for dtype, count in counts.items() if count}

    def footprint_bytes(self, sizes: Sizes) -> int:
        """Count the bytes of every distinct operand and of every result, each once.

        A tree has its values and, with 4 bytes each, its indices and pointers.
        """
        einsum = self.einsum
        nodes = get_nodes(einsum, sizes)
        operands = sum(
            nodes[-1] * operand.dtype.itemsize
            # indices and pointers: n nodes have n + 1; the last one is neglected
            + 4 * (sum(nodes) + sum(nodes[:-1]))
            if operand.storage and nodes
            else _count_entries(operand.shape, sizes) * operand.dtype.itemsize
            for operand in einsum.operands
        )
        # "csf=": the result has the pattern of the operand, so only values are stored
        gives_pattern = any(operand.storage == "csf=" for operand in einsum.operands)
        n_result = (
            nodes[-1]
            if gives_pattern and nodes
            else _count_entries(einsum.output_shape, sizes)
        )
        itemsizes = sum(dtype.itemsize for dtype in einsum.output_dtypes)
        return operands + n_result * itemsizes

    def n_terms(self, sizes: Sizes) -> int:
        """Return the maximum number of products summed for one entry of a result."""
        einsum = self.einsum
        return _count_entries(
            (einsum.extents[i] for i in einsum.summation_indices), sizes
        )


@dataclass(frozen=True)
class SparseReference(Reference):
    """The reference for an einsum with a tree; its kernels come from recipes.

    Cases of it are in :mod:`feinsum.measure.sparse_cases`.
    """

    @classmethod
    def of(cls, workload: Workload) -> SparseReference:
        return cls(workload.einsum)

    def operations(self, sizes: Sizes) -> dict[str, int]:
        """Count the operations of the cheapest path for the profile of the tree."""
        self._require_profile(sizes)
        einsum, profile = self.einsum, get_sizes(self.einsum, sizes)
        if einsum.n_operands == 1:
            least = float(einsum.batch_size * profile.nodes[-1])
        else:
            network = build_network(einsum)
            cost = Operations(network, profile)
            least = min(cost.least(path) for path in list_paths(network))
        return {einsum.output_dtypes[0].str: round(least)}

    def footprint_bytes(self, sizes: Sizes) -> int:
        self._require_profile(sizes)
        return super().footprint_bytes(sizes)

    def _require_profile(self, sizes: Sizes) -> None:
        if missing := [n for n in list_profile_names(self.einsum) if n not in sizes]:
            raise MeasurementError(
                f"the sizes {missing} have no value: the numbers of nodes at the "
                f"levels of the sparse operand of {self.einsum.subscripts}"
            )

    def n_terms(self, sizes: Sizes) -> int:
        return count_products(self.einsum, self.einsum.summation_indices, sizes)


REFERENCES: dict[EinsumKind, Callable[[Workload], Reference]] = {
    "dense": Reference.of,
    "sparse": SparseReference.of,
}
"""References by kind of einsum; other kinds are neither tuned nor verified."""


def make_reference(subject: WorkloadLike) -> Reference:
    """Return the reference of an einsum, or of a workload with its profile.

    Raises:
        InvalidEinsumError: if there is none, naming the operand.
    """
    workload = as_workload(subject)
    kind: EinsumKind = "sparse"
    if workload.einsum.sparse_position is None:
        kind = "dense"
    return REFERENCES.get(kind, Reference.of)(workload)


def count_operations(subject: WorkloadLike, sizes: Sizes) -> dict[str, int]:
    """Count the additions and multiplications exactly, by dtype.

    Args:
        subject: an einsum or a workload.
        sizes: the value of every size parameter.

    Returns:
        For each numpy dtype text (``<f8``) the sum over all rows; for the convention
        see :mod:`feinsum.measure.reference`.

    >>> from feinsum.ir import array, einsum
    >>> e = einsum("ij,jk->ik", array("A", ("M", 3)), array("B", (3, 4)))
    >>> count_operations(e, {"M": 2})
    {'<f8': 40}
    """
    return make_reference(subject).operations(sizes)


def count_footprint_bytes(subject: WorkloadLike, sizes: Sizes) -> int:
    """Count the bytes of every distinct operand and of every result, each once."""
    return make_reference(subject).footprint_bytes(sizes)


def count_terms(subject: WorkloadLike, sizes: Sizes) -> int:
    """Count the products that are summed for one entry of a result."""
    return make_reference(subject).n_terms(sizes)


@lru_cache(maxsize=4)
def _generate_untransformed(
    einsum: BatchedEinsum,
) -> tuple[lp.TranslationUnit, LoopNest]:
    return identify_as_einsum(generate_loopy(einsum), einsum, long_extent=NEVER_LONG)


def _shrink(einsum: BatchedEinsum, sizes: Sizes) -> dict[str, int]:
    """Reduce sizes to odd ones by halving the largest until arrays are small."""
    sizes = dict(sizes)
    # numpy takes too long for more bytes at many sizes
    while Reference(einsum).footprint_bytes(sizes) > 16e6 and max(sizes.values()) > 3:
        longest = max(sizes, key=lambda name: sizes[name])
        sizes[longest] = sizes[longest] // 2 | 1  # stays odd
    return sizes


def _parametrize(einsum: BatchedEinsum) -> BatchedEinsum:
    params = {i: SizeParam(f"N{k}") for k, i in enumerate(einsum.free_indices)}
    try:
        return with_extents(einsum, {**einsum.extents, **params})
    except InvalidEinsumError:
        return einsum


def _evaluate_extent(extent: Extent, sizes: Mapping[str, int]) -> int:
    if not isinstance(extent, SizeParam):
        return extent
    if extent.name not in sizes:
        raise MeasurementError(
            f"the size {extent.name!r} has no value; given are {dict(sizes)}"
        )
    return sizes[extent.name]


def _count_entries(shape: Iterable[Extent], sizes: Mapping[str, int]) -> int:
    return prod(_evaluate_extent(extent, sizes) for extent in shape)
