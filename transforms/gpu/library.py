"""What the libraries of a GPU's vendor take for products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from feinsum.ir import BatchedEinsum, IndexList, Operand
from feinsum.transforms.cost import Gpu, distinct_bytes, points
from feinsum.transforms.gpu.cost import itemsize_of, loads
from feinsum.transforms.gpu.sides import Sides, sides_of

__all__ = ["library_s", "path_s", "product_s"]

CALL_S = 1e-5
"""To find and begin a product."""
PEAK_SHARE = 0.85
"""Of the rate, by large products."""
BANDWIDTH_SHARE = 0.6
"""Of the bandwidth, by products with a short side."""
TILE = 64
"""Sides that are shorter than that leave a part of the multiprocessor idle."""
CHUNK = 512
"""Of a sum; several multiprocessors share longer ones."""


def library_s(einsum: BatchedEinsum, gpu: Gpu) -> float | None:
    """Seconds of a product by cuBLAS or its like; None if the einsum is no product.

    Args:
        einsum: of one row, with known extents.

    >>> from feinsum.ir import array, einsum
    >>> gpu = Gpu(90, 132, 1.7e9, 3e12, 1 << 25, {}, {8: 128.0})
    >>> A, B = (array(name, (4096, 4096)) for name in "AB")
    >>> product = einsum("ij,jk->ik", A, B)
    >>> 0.002 < library_s(product, gpu) < 0.004
    True
    >>> library_s(einsum("i,i->i", array("a", 9), array("b", 9)), gpu) is None
    True
    """
    sides = sides_of(einsum, einsum.extents)
    if sides is None or einsum.batch_size > 1:
        return None
    m, n, k = (flat.number() for flat in (sides.along, sides.across, sides.summed))
    n_products, itemsize = sides.batch.number(), itemsize_of(einsum)
    sizes = n_products, m, n, k
    seconds = product_s(gpu, sizes, itemsize, sum(distinct_bytes(einsum)))
    return seconds + _copied_bytes(einsum, sides) / gpu.bandwidth_bytes_per_s


def product_s(
    gpu: Gpu, sizes: tuple[int, int, int, int], itemsize: int, n_bytes: float
) -> float:
    """Seconds of products of matrices that are in order.

    Args:
        sizes: products, rows, columns, and terms of a sum.
        n_bytes: of all arrays.
    """
    n_products, m, n, k = sizes
    n_tiles = n_products * -(-m // TILE) * -(-n // TILE) * max(1.0, k / CHUNK)
    share = m / (m + TILE / 4) * n / (n + TILE / 4) * k / (k + TILE / 4)
    share *= PEAK_SHARE * min(1.0, n_tiles / gpu.n_multiprocessors)
    rate = gpu.matrix_multiply_adds[4 if itemsize <= 4 else 8]
    rate *= gpu.n_multiprocessors * gpu.cycles_per_s
    moved = n_bytes / (BANDWIDTH_SHARE * gpu.bandwidth_bytes_per_s)
    return CALL_S + max(moved, n_products * m * n * k / (rate * share))


def path_s(einsum: BatchedEinsum, path: Sequence[tuple[int, ...]], gpu: Gpu) -> float:
    """Seconds of a path, its products by a library and what is none at the bandwidth.

    Args:
        einsum: of one row, with known extents.
        path: positions of operands that are contracted; the result goes to the end.

    >>> from feinsum.ir import array, einsum
    >>> gpu = Gpu(90, 132, 1.7e9, 3e12, 1 << 25, {8: 64.0}, {8: 128.0})
    >>> A, B, C = (array(name, (512, 512)) for name in "ABC")
    >>> chain = einsum("ij,jk,kl->il", A, B, C)
    >>> path_s(chain, ((0, 1), (0, 1)), gpu) < path_s(chain, ((0, 2), (0, 1)), gpu)
    True
    """
    terms, seconds = list(einsum.inputs), 0.0
    for step in path:
        chosen = [terms[k] for k in step]
        terms = [term for k, term in enumerate(terms) if k not in step]
        needed = set(einsum.output).union(*terms)
        joint = dict.fromkeys(i for term in chosen for i in term)
        result = tuple(i for i in joint if i in needed) if terms else einsum.output
        seconds += _step_s(einsum, chosen, result, gpu)
        terms.append(result)
    return seconds


def _step_s(
    einsum: BatchedEinsum, inputs: Sequence[IndexList], output: IndexList, gpu: Gpu
) -> float:
    """Of one einsum with the extents of another."""
    dtype = einsum.operands[0].dtype
    row = tuple(
        Operand(f"x{k}", tuple(einsum.extents[i] for i in term), dtype)
        for k, term in enumerate(inputs)
    )
    step = BatchedEinsum(output, tuple(inputs), (row,))
    found = library_s(step, gpu)
    if found is not None:
        return found
    moved = sum(distinct_bytes(step)) / (BANDWIDTH_SHARE * gpu.bandwidth_bytes_per_s)
    rate = gpu.multiply_adds[4 if itemsize_of(step) <= 4 else 8]
    rate *= gpu.n_multiprocessors * gpu.cycles_per_s / 2
    return CALL_S + max(moved, points(step, step.indices) / rate)


def _copied_bytes(einsum: BatchedEinsum, sides: Sides) -> int:
    """What is read and written to bring operands and the result in order."""
    arrays = [*loads(einsum), (einsum.output, itemsize_of(einsum))]
    return sum(
        2 * points(einsum, term) * itemsize
        for term, itemsize in arrays
        if not _is_in_order(term, sides)
    )


def _is_in_order(term: IndexList, sides: Sides) -> bool:
    """Whether an array is a stack of matrices: batch first, sides and sum in one piece
    each, and in the order that the others have.
    """
    kinds = (sides.batch, sides.across, sides.along, sides.summed)
    place = {
        i: (n, k) for n, flat in enumerate(kinds) for k, i in enumerate(flat.indices)
    }
    places = [place[index] for index in term]
    pieces = [kind for kind, _ in groupby(places, key=lambda at: at[0])]
    is_ordered = all(
        [k for kind, k in places if kind == piece]
        == sorted(k for kind, k in places if kind == piece)
        for piece in pieces
    )
    return is_ordered and len(set(pieces)) == len(pieces) and 0 not in pieces[1:]
