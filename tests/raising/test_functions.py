"""Functions in raised operands mean what they do in C, on odd numbers, too."""

from __future__ import annotations

import itertools

import loopy as lp
import numpy as np
import pytest
from pymbolic import var

from feinsum import raise_kernel
from feinsum.ir import UFUNCS
from feinsum.measure import compile_kernel, open_device
from feinsum.targets.host import HostCTarget
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

IN_C = {name: ufunc for name, ufunc in UFUNCS.items() if name != "copysign"}
"""Loopy writes the other one in OpenCL only."""
EITHER_ZERO = {"max", "min", "fmax", "fmin"}
"""Of zeros of both signs, C may take either."""


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_mean_what_they_do_in_c(dtype):
    """NaN, infinities, zeros of both signs and subnormal numbers, in all pairs."""
    tiny = np.finfo(dtype).smallest_subnormal
    odd = [np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, 0.5, -2.5, 3.0]
    x, y = np.array([*itertools.product(odd, odd)], dtype).T.copy()
    arrays = {"x": x, "y": y}
    unit = _calls(len(x), dtype)
    found = _on_host(unit, arrays)
    raised = raise_kernel(unit)
    assert not raised.refused
    rows = {
        insn: (nest, k)
        for nest in raised.raised
        for k, insn in enumerate(nest.nest.instructions)
    }
    for k, name in enumerate(IN_C):
        nest, row = rows[f"f{k}"]
        with np.errstate(all="ignore"):
            expected = nest.functional.evaluate(arrays, {})[row]
        _assert_same(found[k], expected, name)


def _assert_same(found, expected, name):
    eps = np.finfo(expected.dtype).eps
    tiny = np.finfo(expected.dtype).smallest_subnormal
    np.testing.assert_allclose(found, expected, 4 * eps, 2 * tiny, err_msg=name)
    is_number = ~np.isnan(expected)
    if name not in EITHER_ZERO:
        np.testing.assert_array_equal(
            np.signbit(found)[is_number], np.signbit(expected)[is_number], name
        )


def _calls(n, dtype):
    """A kernel that calls every function with one or two arguments."""
    i, out = var("i"), var("out")
    arguments = var("x")[i], var("y")[i]
    calls = [
        lp.Assignment(out[k, i], var(name)(*arguments[: function.nin]), id=f"f{k}")
        for k, (name, function) in enumerate(IN_C.items())
    ]
    return lp.make_kernel(
        f"{{[i]: 0<=i<{n}}}",
        calls,
        [
            lp.GlobalArg("x,y", dtype, shape=n),
            lp.GlobalArg("out", dtype, shape=(len(calls), n)),
        ],
        lang_version=(2018, 2),
        target=HostCTarget(),
    )


def _on_host(unit, arrays):
    bound = compile_kernel(unit, open_device("host")).bind(arrays)
    bound.poison()
    bound.run()
    return bound.read()["out"]
