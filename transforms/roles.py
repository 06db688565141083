"""The roles that the indices of an einsum can play, such as those in a matrix product.

Of two operands, ``bik,bkj->bij`` is a stack of products of matrices, each the sum over
k of a column of A times a row of B::

              j: columns
             +-----------+
    k:       |           |
    summed   |   B[b]    |            b: batch, a product for each of its values
             +-----------+
    +------+ +-----------+
    |      | |           |
    | A[b] | |  out[b]   | i: rows
    |      | |           |
    +------+ +-----------+

Each letter can stand for several indices. The right operand is the one that has the
columns. With more operands, some are multiplied into the left matrix before the product
is taken, and others into its result afterwards. For ``xre,rij,ej->xei`` with D on the
right and u on the left, J is late::

    sums[r,e,i] = sum(j, u[e,j]*D[r,i,j])         # rows e, columns r and i, summed j
    out[x,e,i]  = sum(r, J[x,r,e]*sums[r,e,i])    # postponed r, outer x

Source: Springer and Bientinesi 2018 (GETT), section 2.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import prod

import numpy as np

from feinsum.contraction import classify_indices
from feinsum.ir import BatchedEinsum, Extent, IndexList, SizeParam
from feinsum.transforms import heuristics as cpu

RUN_TIME_EXTENT = 4096
"""The extent that cost models assume for a size parameter."""


def get_typical_extent(extent: Extent) -> int:
    """Return an extent, or the assumed one of a size parameter."""
    return RUN_TIME_EXTENT if isinstance(extent, SizeParam) else extent


def is_long(extent: Extent) -> bool:
    """Return whether an index is worth splitting into blocks for a grid."""
    return get_typical_extent(extent) >= 64


def count_points(einsum: BatchedEinsum, indices: Iterable[str]) -> int:
    """Count the index tuples; size parameters count as long extents."""
    return prod(get_typical_extent(einsum.extents[index]) for index in indices)


def compute_reuse(einsum: BatchedEinsum) -> float:
    """Return the number of loop iterations per array entry.

    >>> from feinsum import array, einsum
    >>> product = einsum("ik,kj->ij", array("A", (60, 60)), array("B", (60, 60)))
    >>> compute_reuse(product)
    20.0
    """
    terms = (*einsum.inputs, einsum.output)
    entries = sum(count_points(einsum, term) for term in terms)
    return count_points(einsum, einsum.indices) / entries


def find_carriers(einsum: BatchedEinsum, index: str) -> tuple[int, ...]:
    """Return the operand positions whose term has ``index``."""
    return tuple(p for p, term in enumerate(einsum.inputs) if index in term)


def find_element_indices(einsum: BatchedEinsum) -> tuple[str, ...]:
    """Return the long output indices, such as elements; other extents must be known.

    There are none if an operand repeats an index: a tile of a diagonal would repeat an
    axis.

    >>> from feinsum import array, einsum
    >>> find_element_indices(einsum("ij,ej->ei", array("D", (4, 4)),
    ...     array("u", ("N", 4))))
    ('e',)
    """
    if has_diagonal(einsum):
        return ()
    unknown = {i for i, n in einsum.extents.items() if isinstance(n, SizeParam)}
    return tuple(
        index
        for index in einsum.output
        if is_long(einsum.extents[index]) and unknown <= {index}
    )


def fit_lanes(extent: Extent, lanes: int) -> int:
    """Halve ``lanes`` until the index fills a vector.

    >>> fit_lanes(5, 8), fit_lanes(SizeParam("N"), 8)
    (4, 8)
    """
    while isinstance(extent, int) and lanes > extent:
        lanes //= 2
    return lanes


def has_real_dtype(einsum: BatchedEinsum) -> bool:
    """Return whether all operands have the same native floating-point dtype."""
    dtypes = {operand.dtype for operand in einsum.operands}
    return len(dtypes) == 1 and dtypes <= {np.dtype(np.float64), np.dtype(np.float32)}


def has_blas_dtype(einsum: BatchedEinsum) -> bool:
    """Return whether all operands have the same dtype, one that BLAS multiplies."""
    dtypes = {operand.dtype for operand in einsum.operands}
    return len(dtypes) == 1 and dtypes <= set(map(np.dtype, ("f4", "f8", "c8", "c16")))


@dataclass(frozen=True)
class MatrixRoles:
    """The operands on each side of a matrix product, and the roles of the indices.

    Attributes:
        right: the position of the operand that has the columns.
        left: positions whose product is the left matrix.
        late: positions that are multiplied to the sums.
        batch: output indices that both sides have.
        rows: output indices that the left side alone has; none if it is a vector.
        columns: output indices that the right side alone has; none if it is a vector.
        summed: indices of both sides that the product sums over.
        folded: indices that are summed while the left side is multiplied.
        postponed: indices of late operands that are summed after the product.
        outer: output indices that late operands alone have.
        unmatched: summed indices that the right side alone has.
    """

    right: int
    left: tuple[int, ...]
    late: tuple[int, ...]
    batch: IndexList
    rows: IndexList
    columns: IndexList
    summed: IndexList
    folded: IndexList
    postponed: IndexList
    outer: IndexList
    unmatched: IndexList

    def n_operations(self, einsum: BatchedEinsum) -> int:
        """Count the multiplications and additions of a row of the einsum."""
        indices = (*self.columns, *self.rows, *self.batch, *self.postponed)
        n_left = count_points(
            einsum, (*self.rows, *self.summed, *self.batch, *self.folded)
        )
        n_late = count_points(einsum, (*einsum.output, *self.postponed))
        return (
            2 * count_points(einsum, (*indices, *self.summed))
            + (len(self.left) + bool(self.folded) - 1) * n_left
            + 2 * len(self.late) * n_late
        )


def classify(
    einsum: BatchedEinsum, right: int, left: Sequence[int], order: Sequence[str]
) -> MatrixRoles:
    """Return the roles of all indices, given the operands on each side.

    Args:
        einsum: the einsum.
        right: position of the right operand.
        left: positions of the operands on the left; all others are late.
        order: all indices, in the order in which those of one role are listed.

    >>> from feinsum.ir import array, einsum
    >>> product = einsum("bik,bkj->bij", array("A", (2, 4, 5)), array("B", (2, 5, 6)))
    >>> roles = classify(product, 1, (0,), "bijk")
    >>> roles.batch, roles.rows, roles.columns, roles.summed
    (('b',), ('i',), ('j',), ('k',))
    """
    late = tuple(k for k in range(einsum.n_operands) if k != right and k not in {*left})
    output = set(einsum.output)
    on_left = {i for k in left for i in einsum.inputs[k]}
    on_late = {i for k in late for i in einsum.inputs[k]}
    kinds = classify_indices(on_left, einsum.inputs[right], output)

    def ordered(indices: Container[str]) -> IndexList:
        return tuple(i for i in order if i in indices)

    return MatrixRoles(
        right,
        tuple(left),
        late,
        batch=ordered(kinds.batch),
        rows=ordered(kinds.rows & output),
        columns=ordered(kinds.columns & output),
        summed=ordered(kinds.summed - on_late),
        folded=ordered(kinds.rows - on_late - output),
        postponed=ordered(on_late - output),
        outer=ordered((on_late & output) - on_left - {*einsum.inputs[right]}),
        unmatched=ordered(kinds.columns - on_late - output),
    )


def has_diagonal(einsum: BatchedEinsum) -> bool:
    """Return whether an operand has an index twice: no axis of a matrix can be both."""
    return any(len(set(term)) < len(term) for term in einsum.inputs)


@lru_cache(maxsize=256)
def find_packed_roles(
    einsum: BatchedEinsum, vector: str, register_index: str
) -> MatrixRoles | None:
    """Return the cheapest roles with the two given indices on different sides.

    Args:
        einsum: the einsum.
        vector: one of the columns.
        register_index: one of the rows.

    Returns:
        None if there are no such roles.
    """
    right = find_carriers(einsum, vector)
    if len(right) != 1 or has_diagonal(einsum):
        return None
    candidates = [
        roles
        for roles in _list_packable_roles(einsum, right[0])
        if vector in roles.columns and register_index in roles.rows
    ]
    return min(candidates, key=lambda r: r.n_operations(einsum), default=None)


def _list_packable_roles(einsum: BatchedEinsum, right: int) -> Iterator[MatrixRoles]:
    """Yield the roles for every choice of left operands that gives a matrix product."""
    remaining = [k for k in range(einsum.n_operands) if k != right]
    # In reverse order, the last indices of each role come first: callers take the first
    # of equal costs, which then is the one nearest to the last axis of the output.
    order = einsum.indices[::-1]
    for n in range(1, len(remaining) + 1):
        for left in combinations(remaining, n):
            roles = classify(einsum, right, left, order)
            on_left = {i for k in left for i in einsum.inputs[k]}
            is_shared = on_left.intersection(roles.postponed, einsum.inputs[right])
            if not roles.summed or roles.unmatched or is_shared:
                continue
            if (
                count_points(einsum, (*roles.folded, *roles.postponed))
                <= cpu.MAX_UNROLLED
            ):
                yield roles
