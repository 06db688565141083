"""Kernels for GPUs of which nothing is recorded."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest

import feinsum
from feinsum.codegen import generate_loopy
from feinsum.measure import compile_kernel, open_device
from feinsum.records import InMemoryStore
from tests.targets.cuda.stand_in import needs_nvrtc, stand_in
from tests.transforms.support import LOOPY_WARNINGS

__all__ = ["stand_in"]

pytestmark = [needs_nvrtc, LOOPY_WARNINGS]

CASES = {
    "gpu_operator": ("xre,rij,ej->xei", [(3, 3, 600), (3, 10, 10), (600, 10)]),
    "gpu_rows": ("ij->i", [(40, 9000)]),
}


@pytest.mark.parametrize("family", CASES)
def test_a_prediction_is_retrieved(stand_in, family):
    """For Loopy's own target; results are numpy's."""
    subscripts, shapes = CASES[family]
    arrays = [feinsum.array(n, s) for n, s in zip("abc", shapes, strict=False)]
    unit = generate_loopy(feinsum.einsum(subscripts, *arrays))
    unit = unit.copy(target=lp.CudaTarget())
    options = {"device": "cuda", "database": InMemoryStore(), "effort": "estimate"}
    found = feinsum.retrieve(unit, verify=False, **options)
    assert family in str(feinsum.explain(unit, **options))
    values = {a.name: np.random.default_rng(0).random(a.shape) for a in arrays}
    opened = open_device("cuda")
    bound = compile_kernel(opened.prepare(found), opened).bind(values)
    bound.run()
    (result,) = bound.read().values()
    assert np.allclose(result, np.einsum(subscripts, *values.values()))
