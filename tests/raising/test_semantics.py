"""What raising says a kernel computes is what the kernel computes."""

from __future__ import annotations

import re

import loopy as lp
import numpy as np
import pytest
from pymbolic import evaluate as evaluate_scalar

from feinsum import raise_kernel
from feinsum.measure import (
    compile_kernel,
    largest_error,
    open_device,
    random_arguments,
)
from tests.raising.forms import kernel_of

DOUBLES = dict.fromkeys(("alpha", "beta"), np.float64)

TRAPS = [
    ("out[i] = sum(j, 0.5*A[i,j]*x[j])", "int32", "output-dtype"),
    ("out[i] = sum(j, A[i,j]*x[j])/2", "int32", "output-dtype"),
    ("out[i] = alpha*sum(j, A[i,j]*x[j])", "int32", "output-dtype"),
    ("out[i] = 3*sum(j, A[i,j]*x[j])", "int32", None),
    ("out[i] = sum(j, alpha*A[i,j]*x[j])", "float32", "output-dtype"),
    ("out[i] = 0.5*sum(j, A[i,j]*x[j])", "float32", None),
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
    ("f(p) := max(j, A[p,j])\nout[i] = f(i)", "float64", "nested-reduction"),
    ("f(p) := sum(j, A[p,j]*x[j])\nout[i] = f(i)", "float64", "nested-reduction"),
    ("out[i] = sum(j, cast(np.float32, A[i,j])*x[j])", "float64", "operand-function"),
    ("out[i] = sum(j, A[i,j])*sum(j, x[j])", "float64", "product-of-sums"),
    ("out[i] = y[i]", "float64", None),
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
    ("out[i] = sum(j, y[i]*x[j])/s[0]", ["output-dtype"]),
    ("out[i] = sum(j, y[i]*x[j]*100000*100000)", []),
    ("out[i] = -sum(j, y[i]*x[j]*m[i])", []),
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
    assert largest_error(found, expected) < 1e-13


def run(t_unit, arguments, output):
    bound = compile_kernel(t_unit, open_device()).bind(arguments)
    bound.poison()
    bound.run()
    return bound.read()[output]


def assert_agree(unit, raised, nest, tolerance):
    arguments = random_arguments(unit, {}, np.random.default_rng(0))
    (output,), (scale,) = nest.outputs, nest.scale
    scalars = {k: v for k, v in arguments.items() if np.ndim(v) == 0}
    factor = evaluate_scalar(scale, scalars)
    expected = factor * nest.functional.evaluate(arguments, {})[0]
    assert largest_error(run(unit, arguments, output), expected) < tolerance
    assert largest_error(run(raised.t_unit, arguments, output), expected) < tolerance
