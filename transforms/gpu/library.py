"""What the libraries of a GPU's vendor take for a product of matrices."""

from __future__ import annotations

from itertools import groupby

from feinsum.ir import BatchedEinsum, IndexList
from feinsum.transforms.cost import Gpu, distinct_bytes, points
from feinsum.transforms.gpu.sides import Sides, sides_of
from feinsum.transforms.gpu_cost import itemsize_of, loads

__all__ = ["library_s"]

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
    n_products = sides.batch.number()
    n_tiles = n_products * -(-m // TILE) * -(-n // TILE) * max(1.0, k / CHUNK)
    share = m / (m + TILE / 4) * n / (n + TILE / 4) * k / (k + TILE / 4)
    share *= PEAK_SHARE * min(1.0, n_tiles / gpu.n_multiprocessors)
    itemsize = itemsize_of(einsum)
    rate = gpu.matrix_multiply_adds[4 if itemsize <= 4 else 8]
    rate *= gpu.n_multiprocessors * gpu.cycles_per_s
    moved = sum(distinct_bytes(einsum)) / (BANDWIDTH_SHARE * gpu.bandwidth_bytes_per_s)
    computed = points(einsum, einsum.indices) / (rate * share)
    return (
        CALL_S
        + max(moved, computed)
        + _copied_bytes(einsum, sides) / (gpu.bandwidth_bytes_per_s)
    )


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
