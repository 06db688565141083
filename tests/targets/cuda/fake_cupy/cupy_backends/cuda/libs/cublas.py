"""Products of matrices at addresses, on the processor."""

from __future__ import annotations

import ctypes

import numpy as np

from tests.targets.cuda.blas import multiply

HANDLE = 7


def dgemmStridedBatched(  # noqa: N802
    handle, turn_first, turn_second, m, n, k, one, first, ld_first, step_first, second,
    ld_second, step_second, zero, result, ld_result, step_result, n_products,
):  # fmt: skip
    assert (handle, *_doubles(one, 1), *_doubles(zero, 1)) == (HANDLE, 1, 0)
    call = (turn_first, turn_second, m, n, k, ld_first, step_first, ld_second,
            step_second, ld_result, step_result, n_products)  # fmt: skip
    last = n_products - 1
    multiply(
        call,
        _doubles(first, step_first * last + m * k),
        _doubles(second, step_second * last + n * k),
        _doubles(result, step_result * last + m * n),
    )


def dgemm(
    handle, turn_first, turn_second, m, n, k, one, first, ld_first, second, ld_second,
    zero, result, ld_result,
):  # fmt: skip
    dgemmStridedBatched(
        handle, turn_first, turn_second, m, n, k, one, first, ld_first, 0, second,
        ld_second, 0, zero, result, ld_result, 0, 1,
    )  # fmt: skip


def _doubles(address, n):
    return np.ctypeslib.as_array((ctypes.c_double * n).from_address(address))
