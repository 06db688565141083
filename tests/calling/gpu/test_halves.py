"""Calls of halves on a GPU: kernels read and write them without casts of arrays, and
round once.
"""

from __future__ import annotations

import numpy as np
import pytest

from feinsum.calling.gpu import building
from feinsum.calling.gpu.flat import FlatCall, flatten_call
from feinsum.calling.gpu.prepared import KernelCall
from feinsum.dtypes import FLOAT16, get_eps
from feinsum.ir.dtypes import BFLOAT16
from tests.calling.gpu.test_call import call, place_of, without_timing
from tests.targets.cuda.stand_in import needs_nvrtc, stand_in
from tests.transforms.support import LOOPY_WARNINGS

__all__ = ["stand_in", "without_timing"]

pytestmark = [needs_nvrtc, LOOPY_WARNINGS]

DTYPES = [dtype for dtype in (FLOAT16, BFLOAT16) if dtype is not None]
CALLS = [
    ("tij,tjk->tik", [(2, 33, 24), (2, 24, 40)], DTYPES[-1]),
    ("bshd,bthd->bhst", [(2, 17, 3, 16), (2, 24, 3, 16)], FLOAT16),
    ("ij->j", [(300, 4)], DTYPES[-1]),
    ("ij,ij->ij", [(20, 30), (20, 30)], DTYPES[-1]),
    ("ij,ij->j", [(90, 7), (90, 7)], FLOAT16),
]


def draw(shapes, dtype):
    rng = np.random.default_rng(0)
    return [rng.uniform(0.5, 1, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize(("subscripts", "shapes", "dtype"), CALLS, ids=str)
def test_kernels_need_no_casts_and_round_once(stand_in, subscripts, shapes, dtype):
    """Every family that is predicted to be among the fastest reads and writes halves,
    and its result is the exact one rounded once.
    """
    arrays = draw(shapes, dtype)
    parsed, site = place_of(subscripts, *arrays)
    expected = np.einsum(subscripts, *(x.astype(np.float32) for x in arrays))
    names = set()
    for contender in building.list_kernel_contenders(parsed, site):
        kernel = contender.make()
        assert isinstance(kernel, KernelCall)
        names.add(kernel.kernel.spec.name)
        flat = flatten_call(kernel, site.opened, arrays)
        assert isinstance(flat, FlatCall)
        result = flat(arrays, None)
        assert result.dtype == dtype
        # half a unit in the last place, and what the order of a long sum costs
        assert np.allclose(
            result.astype(np.float32), expected, rtol=0.51 * get_eps(dtype), atol=1e-4
        )
    assert ("gpu_mma" in names) == (len(subscripts) > 10)


def test_a_call_of_halves_is_that_of_singles_rounded(stand_in):
    """By a library or the kernel that is predicted to be the fastest."""
    for dtype in DTYPES:
        arrays = draw([(9, 40), (40, 70)], dtype)
        expected = arrays[0].astype(np.float32) @ arrays[1].astype(np.float32)
        result = call("ij,jk->ik", *arrays)
        assert result.dtype == dtype
        assert np.allclose(
            result.astype(np.float32), expected, rtol=0.51 * get_eps(dtype)
        )
