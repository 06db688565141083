"""What raising says a kernel computes is what it does in C, on odd numbers, too."""

from __future__ import annotations

import itertools
import re

import loopy as lp
import numpy as np
import pytest
from pymbolic import evaluate as evaluate_scalar
from pymbolic import var

from feinsum import raise_kernel
from feinsum.ir import UFUNCS
from feinsum.measure import (
    compile_kernel,
    compute_largest_error,
    draw_arguments,
    open_device,
)
from feinsum.targets.host import HostCTarget
from tests.raising.forms import kernel_of
from tests.transforms.support import LOOPY_WARNINGS

pytestmark = LOOPY_WARNINGS

DOUBLES = dict.fromkeys(("alpha", "beta"), np.float64)

TRAPS = [
    ("out[i] = sum(j, A[i,j]*x[j])/2", "int32", "output-dtype"),
    ("out[i] = alpha*sum(j, A[i,j]*x[j])", "int32", "output-dtype"),
    ("out[i] = 3*sum(j, A[i,j]*x[j])", "int32", None),
    ("out[i] = 2*sum(j, A[i,j]*x[j])", "complex128", None),
    (
        "g(p) := A[p,j]\nf(j) := g(j)*1.0\nout[i] = sum(j, f(i)*x[j])",
        "float64",
        "captured-iname",
    ),
    (
        "g(p) := A[i,p]\nf(i) := g(i)*1.0\nout[i] = sum(j, f(j)*x[j])",
        "float64",
        "captured-iname",
    ),
    ("f(p) := sum(j, A[p,j]*x[j])\nout[i] = f(i)", "float64", "nested-reduction"),
    ("out[i] = sum(j, cast(np.float32, A[i,j])*x[j])", "float64", "operand-function"),
    ("out[i] = A[i,i]*y[i]", "float64", None),
]
"""By its dtype, the rule by which an almost einsum is refused."""


@pytest.mark.parametrize(("text", "dtype", "rule"), TRAPS)
def test_an_almost_einsum_is_refused_or_right(text, dtype, rule):
    """No kernel is accepted as something that it does not compute."""
    unit = kernel_of(text, dtype=np.dtype(dtype), dtypes=DOUBLES)
    raised = raise_kernel(unit)
    assert [refused.rule for refused in raised.refused] == ([rule] if rule else [])
    for nest in raised.raised:
        assert_agree(unit, raised, nest, 1e-6 if dtype == "float32" else 1e-13)


NARROW = [
    ("out[i] = sum(j, y[i]*x[j]*c*c)", ["output-dtype"]),
    ("out[i] = sum(j, y[i]*x[j]*m[i]*m[i])", ["output-dtype"]),
    ("out[i] = sum(j, y[i]*x[j]*m[i]*100000)", ["output-dtype"]),
    ("out[i] = sum(j, s[i]*y[i]*x[j]*s[i])", []),
    ("out[i] = sum(j, y[i]*x[j])/s[i]", ["output-dtype"]),
    ("out[i] = sum(j, y[i]*x[j]*100000*100000)", []),
    ("out[i] = sum(j, y[i]*x[j]*s[i])", []),
]


@pytest.mark.parametrize(("text", "rules"), NARROW)
def test_factors_that_c_wraps_or_rounds_among_themselves(text, rules):
    """In the order of the user they do not; in that of a batch or a recipe they may."""
    extra = [lp.GlobalArg("m", np.int32, shape=(5,)), lp.ValueArg("c", np.int32)]
    extra.append(lp.GlobalArg("s", np.float32, shape=(5,)))
    names = {*re.findall(r"\w+", text)}
    unit = kernel_of(text, extra=[arg for arg in extra if arg.name in names])
    raised = raise_kernel(unit)
    assert [refused.rule for refused in raised.refused] == rules
    values = {"x": np.full(6, 0.3), "y": np.full(5, 0.7), "c": 100000}
    values |= {"m": np.full(5, 100000, "i4"), "s": np.full(5, 0.1, "f4")}
    values = {name: value for name, value in values.items() if name in names}
    expected, found = (run(u, values, "out") for u in (unit, raised.t_unit))
    assert compute_largest_error(found, expected) < 1e-13


def run(t_unit, arguments, output):
    bound = compile_kernel(t_unit, open_device()).bind(arguments)
    bound.poison()
    bound.run()
    return bound.read()[output]


def assert_agree(unit, raised, nest, tolerance):
    arguments = draw_arguments(unit, {}, np.random.default_rng(0))
    (output,), (scale,) = nest.outputs, nest.scale
    scalars = {k: v for k, v in arguments.items() if np.ndim(v) == 0}
    factor = evaluate_scalar(scale, scalars)
    expected = factor * nest.functional.evaluate(arguments, {})[0]
    assert compute_largest_error(run(unit, arguments, output), expected) < tolerance
    assert (
        compute_largest_error(run(raised.t_unit, arguments, output), expected)
        < tolerance
    )


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
