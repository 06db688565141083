"""What the libraries of a GPU's vendor take for products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from feinsum.transforms.cost import Gpu

__all__ = ["copied_s", "product_s", "streamed_s"]

CALL_S = 6e-6
"""To find and begin a product or a kernel."""
PEAK_SHARE = 0.85
"""Of the rate, by large products."""
BANDWIDTH_SHARE = 0.6
"""Of the bandwidth, by products with a short side."""
COPY_SHARE = 0.6
"""Of the bandwidth, by copies with axes in another order."""
TILE = 64
"""Sides that are shorter than that leave a part of the multiprocessor idle."""
CHUNK = 1024
"""Of a sum; several multiprocessors share longer ones."""


def product_s(sizes: Sequence[int], n_bytes: float, itemsize: int, gpu: Gpu) -> float:
    """Seconds of a stack of matrix products by cuBLAS or its like.

    Args:
        sizes: of the stack, the rows, the columns and the sum.
        n_bytes: of all arrays.

    >>> gpu = Gpu(90, 132, 1.7e9, 3e12, 1 << 25, {}, {8: 128.0})
    >>> 0.002 < product_s((1, 4096, 4096, 4096), 3 * 8 * 4096**2, 8, gpu) < 0.004
    True
    """
    n_products, m, n, k = sizes
    n_tiles = n_products * -(-m // TILE) * -(-n // TILE) * max(1.0, k / CHUNK)
    share = m / (m + TILE / 4) * n / (n + TILE / 4) * k / (k + TILE / 4)
    share *= PEAK_SHARE * min(1.0, n_tiles / gpu.n_multiprocessors)
    rate = gpu.matrix_multiply_adds[4 if itemsize <= 4 else 8]
    rate *= gpu.n_multiprocessors * gpu.cycles_per_s
    moved = n_bytes / (BANDWIDTH_SHARE * gpu.bandwidth_bytes_per_s)
    return CALL_S + max(moved, prod(sizes) / (rate * share))


def streamed_s(n_points: float, n_bytes: float, itemsize: int, gpu: Gpu) -> float:
    """Seconds of an einsum that is no product, by a kernel that reads everything once.

    >>> gpu = Gpu(90, 132, 1.7e9, 3e12, 1 << 25, {8: 64.0}, {})
    >>> streamed_s(1e6, 8e6, 8, gpu) < streamed_s(1e6, 8e7, 8, gpu)
    True
    """
    rate = gpu.multiply_adds[4 if itemsize <= 4 else 8]
    rate *= gpu.n_multiprocessors * gpu.cycles_per_s / 2
    moved = n_bytes / (BANDWIDTH_SHARE * gpu.bandwidth_bytes_per_s)
    return CALL_S + max(moved, n_points / rate)


def copied_s(n_bytes: float, gpu: Gpu) -> float:
    """Seconds of a copy of so many bytes with its axes in another order."""
    return CALL_S + 2 * n_bytes / (COPY_SHARE * gpu.bandwidth_bytes_per_s)
