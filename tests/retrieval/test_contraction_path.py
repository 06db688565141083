"""Kernels of three operands and more: tuned, retrieved and right."""

from __future__ import annotations

import numpy as np
import pytest

from feinsum import retrieve
from feinsum.measure import compile_kernel, open_device
from feinsum.raising import raise_kernel
from feinsum.transforms import list_configurations
from feinsum.transforms.library import CONTRACTION_PATH
from tests.retrieval.facts import fact
from tests.retrieval.support import given
from tests.transforms.support import LOOPY_WARNINGS
from tests.transforms.test_contraction_path import KERNEL, USES, in_numpy, user_kernel

pytestmark = LOOPY_WARNINGS


@pytest.mark.filterwarnings("ignore:1 of 2 einsums")
def test_retrieval_takes_a_kernel_apart():
    """The chain gets its device kernels, and what reads its result comes after."""
    t_unit = user_kernel(KERNEL + USES)
    chain = raise_kernel(t_unit).raised[0].form.einsum
    spec = next(list_configurations(CONTRACTION_PATH, chain))
    result = retrieve(t_unit, database=given(fact(chain, spec)))
    compiled = compile_kernel(result, open_device())
    assert compiled.built.n_launches == 3
    rng = np.random.default_rng(0)
    for n in (1, 37, 130):
        shapes = {"A": (n, 20), "B": (20, 24), "E": (20, 24), "C": (24, n), "W0": n}
        arguments = {name: rng.random(shape) for name, shape in shapes.items()}
        results = {"W": np.zeros((n, n)), "z": np.zeros(n)}
        kernel = compiled.bind({**arguments, **results, "n": n})
        kernel.poison()
        kernel.run()
        W = in_numpy(arguments)
        for name, right in (("W", W), ("z", 2 * W[:, 0])):
            np.testing.assert_allclose(kernel.read()[name], right, rtol=1e-12)
