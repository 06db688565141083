"""Einsums of two operands as products of stacks of matrices.

Each index of ``bij,jkb->bik`` has one kind::

    stack    b    in both operands and the result
    m        i    in the first operand and the result
    n        k    in the second operand and the result
    summed   j    in both operands, not in the result

If the indices of one kind are contiguous in an array, they are one index of a matrix
there; then BLAS reads or writes the array in place. Otherwise, the array is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, pairwise
from math import log, prod

from feinsum.calling.einsum_call import compute_c_steps
from feinsum.contraction import classify_indices
from feinsum.ir import IndexList
from feinsum.targets.cuda.gemm import ANY, Gemm

TILE = 64
"""Side of the tile of a matrix that a multiprocessor computes."""
ENOUGH = 256
"""Number of tiles that keeps all multiprocessors busy."""
MIN_TERMS = 128
"""Minimum terms in each part of a split sum."""

Steps = Mapping[str, int]
"""The stride of each index, in entries."""


@dataclass(frozen=True)
class Product:
    """A product, and the copies that it needs.

    Attributes:
        orders: for each operand, the order of its indices in the copy; None if it is
            read in place.
        order: the order of the indices that the product writes; None for the result's.
        n_parts: number of parts into which the sum is split. Each gives a matrix; these
            are added afterwards.
    """

    gemm: Gemm
    orders: tuple[IndexList | None, IndexList | None]
    order: IndexList | None
    n_parts: int = 1

    @property
    def is_pointwise(self) -> bool:
        """Whether it adds up nothing, and uses each entry for one result only."""
        _, m, n, k = self.gemm.sizes
        return k == 1 and min(m, n) == 1

    @property
    def n_results(self) -> int:
        """Entries of one matrix of the result."""
        return self.gemm.sizes[1] * self.gemm.sizes[2]


def list_products(
    terms: Sequence[IndexList],
    output: IndexList,
    sizes: Mapping[str, int],
    strides: Sequence[Sequence[int]],
) -> Iterator[Product]:
    """Yield ways to compute an einsum as a product, those with few copies first.

    Args:
        terms: indices of each operand.
        output: indices of the result.
        sizes: extent of each index.
        strides: strides of each operand, in entries; the result will be in C order.

    >>> sizes = {"i": 4, "j": 5, "k": 6}
    >>> terms, strides = [("i", "j"), ("j", "k")], [(5, 1), (6, 1)]
    >>> first = next(list_products(terms, ("i", "k"), sizes, strides))
    >>> first.orders, first.order, first.gemm.sizes, first.gemm.is_swapped
    ((None, None), None, (1, 6, 4, 5), True)
    """
    kinds = list_kinds(terms, output, sizes)
    if kinds is None:
        return
    arrays = [*terms, output]
    steps: list[Steps] = [
        dict(zip(term, of_operand, strict=True))
        for term, of_operand in zip(terms, strides, strict=True)
    ]
    steps.append(_compute_steps(output, sizes))
    # fewest copies first; the third array is the result
    for copied in _list_subsets(3):
        order = _order_kinds(kinds, steps, copied)
        orders = {k: _copy_order(arrays[k], order) for k in copied}
        copies = {k: _compute_steps(term, sizes) for k, term in orders.items()}
        tried = [copies.get(k, steps[k]) for k in range(3)]
        for way in _list_ways(order):
            gemm = _build_gemm(*way, tried, sizes)
            if gemm is None:
                continue
            unsplit = Product(gemm, (orders.get(0), orders.get(1)), orders.get(2))
            yield unsplit
            yield from _split(unsplit)
        for way in _list_ways_by_parts(order):
            gemm = _build_gemm(*way, tried, sizes)
            if gemm is not None and _is_dense(gemm):
                gemm_by_parts = replace(
                    gemm, out=(gemm.sizes[1] * gemm.sizes[2], *gemm.out[1:])
                )
                inputs = orders.get(0), orders.get(1)
                yield Product(gemm_by_parts, inputs, orders.get(2), gemm.sizes[0])


def _copy_order(term: IndexList, order: Sequence[Sequence[str]]) -> IndexList:
    """Order the indices of a copy as the product needs them, the stack first.

    Indices of extent 1 come last, since their position does not matter.
    """
    # the stride of an index with a single value does not matter
    long = [index for kind in order for index in kind if index in term]
    return (*long, *(index for index in term if index not in long))


def _compute_steps(term: IndexList, sizes: Mapping[str, int]) -> Steps:
    return dict(zip(term, compute_c_steps([sizes[i] for i in term]), strict=True))


def list_kinds(
    terms: Sequence[IndexList], output: IndexList, sizes: Mapping[str, int]
) -> list[list[str]] | None:
    """Classify the indices longer than 1: batch, left, right, summed.

    Return None if one is repeated in a term, or summed over one operand alone.
    """
    if len(terms) != 2 or any(len(set(t)) < len(t) for t in (*terms, output)):
        return None
    left, right = terms
    kinds = classify_indices(left, right, output)
    if kinds.batch | kinds.rows | kinds.columns != {*output}:
        return None
    return [[i for i in sizes if i in kind and sizes[i] > 1] for kind in kinds]


def _list_subsets(n: int) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(range(n), k) for k in range(n + 1))


HOLDERS = ((2, 0, 1), (2, 0), (2, 1), (0, 1))
"""The arrays that have each kind of indices. The first of them that is not copied
determines the order of the indices; 2 is the result."""


def _order_kinds(
    kinds: Sequence[Sequence[str]], steps: Sequence[Steps], copied: Sequence[int]
) -> list[list[str]]:
    """Order every kind of index as in an array that is not copied."""

    def order_kind(kind: Sequence[str], holders: Sequence[int]) -> list[str]:
        ruling = next((k for k in holders if k not in copied), holders[0])
        return sorted(kind, key=lambda index: -steps[ruling][index])

    return [order_kind(*pair) for pair in zip(kinds, HOLDERS, strict=True)]


Way = tuple[Sequence[Sequence[str]], Sequence[Sequence[int]]]
"""The kinds of indices, and the arrays that have each."""


def _list_ways(order: Sequence[Sequence[str]]) -> Iterator[Way]:
    """Yield a product unchanged, and then as stacks of smaller products.

    A stack runs over the first indices of one side, and reuses the same matrix of the
    other operand.
    """
    yield order, HOLDERS
    stack, *sides, summed = order
    for k, side in enumerate(sides):
        for n in range(1, len(side) + 1 if not stack else 0):
            remaining_sides = [
                side[n:] if k == other else sides[other] for other in range(2)
            ]
            yield [side[:n], *remaining_sides, summed], ((2, k), *HOLDERS[1:])


def _list_ways_by_parts(order: Sequence[Sequence[str]]) -> Iterator[Way]:
    """Yield stacks over the first summed indices; their results are added up."""
    stack, *sides, summed = order
    for n in range(1, len(summed) if not stack else 0):
        yield [summed[:n], *sides, summed[n:]], ((0, 1), *HOLDERS[1:])


def _split(product: Product) -> Iterator[Product]:
    """Split a sum into parts if its result has too few tiles for the whole GPU."""
    stack, m, n, k = product.gemm.sizes
    n_tiles = -(-m // TILE) * -(-n // TILE)
    n_parts_wanted = ENOUGH // n_tiles
    # a stack requires equal parts
    fit = [d for d in range(2, k // MIN_TERMS + 1) if k % d == 0]
    if stack == 1 and fit and n_parts_wanted > 1 and _is_dense(product.gemm):
        n_parts = min(fit, key=lambda d: abs(log(d / n_parts_wanted)))
        yield replace(product, gemm=product.gemm.split(n_parts), n_parts=n_parts)


def _is_dense(gemm: Gemm) -> bool:
    """Return whether the result is one matrix without gaps."""
    return gemm.out[2] in (ANY, gemm.sizes[1])


def _build_gemm(
    order: Sequence[Sequence[str]],
    holders: Sequence[Sequence[int]],
    steps: Sequence[Steps],
    sizes: Mapping[str, int],
) -> Gemm | None:
    """Return the call of BLAS; None if a matrix has no side of stride 1."""
    strides: list[list[int]] = []
    for number, array in enumerate(steps):
        joint = [
            _merge_strides(kind, array, sizes) if number in having else ANY
            for kind, having in zip(order, holders, strict=True)
        ]
        if None in joint:
            return None
        strides.append([stride for stride in joint if stride is not None])
    counts = [prod(sizes[i] for i in kind) for kind in order]
    b, m, n, k = range(4)
    # cuBLAS writes columns: a result in rows is that of the transposed product
    is_swapped = strides[2][m] not in (1, ANY) or (
        strides[2][n] == 1 and counts[m] == 1
    )
    first, second = (1, 0) if is_swapped else (0, 1)
    rows, columns = (n, m) if is_swapped else (m, n)
    gemm = Gemm(
        (counts[b], counts[rows], counts[columns], counts[k]),
        (strides[first][b], strides[first][rows], strides[first][k]),
        (strides[second][b], strides[second][k], strides[second][columns]),
        (strides[2][b], strides[2][rows], strides[2][columns]),
        is_swapped,
    )
    return gemm if _is_for_blas(gemm) else None


def _merge_strides(
    kind: Sequence[str], steps: Steps, sizes: Mapping[str, int]
) -> int | None:
    """Return the stride of several indices merged into one; None if none exists."""
    # a step of the outer index equals the whole extent of the inner one
    is_one = all(steps[a] == steps[b] * sizes[b] for a, b in pairwise(kind))
    if not is_one or any(steps[index] <= 0 for index in kind):
        return None
    return steps[kind[-1]] if kind else ANY


def _is_for_blas(gemm: Gemm) -> bool:
    """Return whether each matrix has a side of stride 1 and no overlapping columns."""
    _, m, n, k = gemm.sizes
    for strides, rows, columns in (
        (gemm.left, m, k),
        (gemm.right, k, n),
        (gemm.out, m, n),
    ):
        _, down, along = strides
        is_fortran = down in (1, ANY) and (along == ANY or along >= rows)
        is_c = along in (1, ANY) and (down == ANY or down >= columns)
        if not (is_fortran or (is_c and strides is not gemm.out)):
            return False
    return True
