"""What cuBLAS computes, by numpy: stacks of products in Fortran's order."""

from __future__ import annotations

from numpy.lib.stride_tricks import as_strided

__all__ = ["multiply"]


def multiply(call, first, second, result):
    """Of flat arrays; ``call`` has the sizes as the library takes them."""
    turn_first, turn_second, m, n, k, *places, n_products = call
    ld_first, step_first, ld_second, step_second, ld_result, step_result = places
    for s in range(n_products):
        left = _matrix(first[s * step_first :], ld_first, (m, k), turn_first)
        right = _matrix(second[s * step_second :], ld_second, (k, n), turn_second)
        product = left @ right
        _matrix(result[s * step_result :], ld_result, (m, n), 0)[...] = product


def _matrix(flat, ld, shape, turn):
    """A view of the matrix with which an array begins."""
    strides = flat.itemsize, ld * flat.itemsize
    return as_strided(flat, shape, strides[::-1] if turn else strides)
