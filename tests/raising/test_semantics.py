"""What raising says a kernel computes is what the kernel computes."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest
from pymbolic import evaluate as evaluate_scalar

from feinsum import array, canonicalize, einsum, raise_kernel
from feinsum.measure import (
    compile_kernel,
    largest_error,
    open_device,
    random_arguments,
)
from feinsum.raising import single_nest
from tests.raising.test_grammar import ARGS, kernel

TEXTS = [
    "out[i] = sum(j, A[i,j]*x[j])",
    "out[i] = alpha*3*sum(j, A[i,j]*x[j])",
    "out[i] = -sum(j, (A[i,j] + A2[i,j])*0.5*x[j])",
    "out[i] = sum(j, (alpha*A[i,j] + beta)*(x[j]*x[j] + 1))",
    "out[i] = y[i]*sum(j, A[i,j]/x[j])",
    "f(p,q) := A[p,q] - beta\ng(p) := f(p,2)\nout[i] = g(i)*sum(j, f(i,j)*x[j])",
    "C[i,k] = 2*sum(j, A[i,j]*B[j,k]*x[j])",
    "C[i,k] = y[i]*B[0,k]",
    "out[i] = 3*sum(j, A[i,j]*x[j])/y[i]",
    "out[i] = sum([j,k], A[i,j]*B[j,k])",
    "out[i] = sum(j, (x[j] if j < 3 else alpha)*A[i,j])",
    "out[i] = sum(j, sqrt(x[j])*A[i,j])",
    "out[i] = sum(j, A[i, (j + 1) % 6]*x[j])",
    "out[i] = sum(j, A[i,j]*x[j]/(j + 2.0))",
]


# almost einsums: each is refused, or what is raised is what it computes
TRAPS = [
    ("out[i] = sum(j, 0.5*A[i,j]*x[j])", "int32"),
    ("out[i] = sum(j, A[i,j]*x[j])/2", "int32"),
    ("out[i] = alpha*sum(j, A[i,j]*x[j])", "int32"),
    ("out[i] = 3*sum(j, A[i,j]*x[j])", "int32"),
    ("out[i] = sum(j, alpha*A[i,j]*x[j])", "float32"),
    ("out[i] = 0.5*sum(j, A[i,j]*x[j])", "float32"),
    ("out[i] = 2*sum(j, A[i,j]*x[j])", "complex128"),
    ("g(p) := A[p,j]\nf(j) := g(j)*1.0\nout[i] = sum(j, f(i)*x[j])", "float64"),
    ("g(p) := A[i,p]\nf(i) := g(i)*1.0\nout[i] = sum(j, f(j)*x[j])", "float64"),
    ("f(p) := max(j, A[p,j])\nout[i] = f(i)", "float64"),
    ("f(p) := sum(j, A[p,j]*x[j])\nout[i] = f(i)", "float64"),
    ("out[i] = sum(j, cast(np.float32, A[i,j])*x[j])", "float64"),
    ("out[i] = sum(j, A[i,j])*sum(j, x[j])", "float64"),
    ("out[i] = y[i]", "float64"),
    ("out[i] = A[i,i]*y[i]", "float64"),
]


@pytest.mark.parametrize(("text", "dtype"), TRAPS)
def test_an_almost_einsum_is_refused_or_right(text, dtype):
    """No kernel is accepted as something that it does not compute."""
    args = [
        arg if isinstance(arg, lp.ValueArg) else arg.copy(dtype=np.dtype(dtype))
        for arg in ARGS
    ]
    unit = kernel(text, args=args)
    raised = raise_kernel(unit)
    for nest in raised.raised:
        assert_agree(unit, raised, nest, 1e-6 if dtype == "float32" else 1e-13)
    assert len(raised.raised) + len(raised.refused) == 1


@pytest.mark.parametrize(
    ("text", "dtype", "rule"),
    [
        (TRAPS[0][0], "int32", "output-dtype"),
        (TRAPS[1][0], "int32", "output-dtype"),
        (TRAPS[2][0], "int32", "output-dtype"),
        (TRAPS[4][0], "float32", "output-dtype"),
        (TRAPS[7][0], "float64", "captured-iname"),
        (TRAPS[8][0], "float64", "captured-iname"),
        (TRAPS[9][0], "float64", "nested-reduction"),
        (TRAPS[10][0], "float64", "nested-reduction"),
    ],
)
def test_what_rounds_or_hides_a_reduction_is_refused(text, dtype, rule):
    """A scale of another dtype, and a reduction inside of a rule, are refused."""
    args = [
        arg if isinstance(arg, lp.ValueArg) else arg.copy(dtype=np.dtype(dtype))
        for arg in ARGS
    ]
    (refused,) = raise_kernel(kernel(text, args=args)).refused
    assert refused.rule == rule


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
    dtypes = {"out": "f8", "y": "f8", "m": "i4", "s": "f4"}
    args = [lp.GlobalArg(n, np.dtype(t), shape=(5,)) for n, t in dtypes.items()]
    args += [lp.GlobalArg("x", np.float64, shape=(6,)), lp.ValueArg("c", np.int32)]
    unit = kernel(text, args=args)
    raised = raise_kernel(unit)
    assert [refused.rule for refused in raised.refused] == rules
    values = {"x": np.full(6, 0.3), "y": np.full(5, 0.7), "c": 100000}
    values |= {"m": np.full(5, 100000, "i4"), "s": np.full(5, 0.1, "f4")}
    names = {arg.name for arg in unit.default_entrypoint.args}
    values = {name: value for name, value in values.items() if name in names}
    expected, found = (run(u, values, "out") for u in (unit, raised.t_unit))
    assert largest_error(found, expected) < 1e-13


def test_a_rule_that_reads_an_iname_depends_on_it():
    """``f(p)`` that reads ``A[p,j]`` is an operand with the indices of both."""
    text = "f(p) := A[p,j]\nout[i] = sum(j, f(i)*x[j])"
    nest = single_nest(raise_kernel(kernel(text)))
    expected = einsum("ij,j->i", array("A", (5, 6)), array("x", 6))
    assert nest.key == canonicalize(expected).key


def run(t_unit, arguments, output):
    bound = compile_kernel(t_unit, open_device()).bind(arguments)
    bound.poison()
    bound.run()
    return bound.read()[output]


@pytest.mark.parametrize("text", TEXTS)
def test_the_raised_einsum_is_what_the_kernel_computes(text):
    """The reference value of the raised einsum, the kernel given and the kernel with
    its operands behind rules agree.
    """
    unit = kernel(text)
    raised = raise_kernel(unit)
    nest = single_nest(raised)
    assert_agree(unit, raised, nest, 1e-13)


def assert_agree(unit, raised, nest, tolerance):
    arguments = random_arguments(unit, {}, np.random.default_rng(0))
    (output,), (scale,) = nest.outputs, nest.scale
    scalars = {k: v for k, v in arguments.items() if np.ndim(v) == 0}
    factor = evaluate_scalar(scale, scalars)
    expected = factor * nest.functional.evaluate(arguments, {})[0]
    assert largest_error(run(unit, arguments, output), expected) < tolerance
    assert largest_error(run(raised.t_unit, arguments, output), expected) < tolerance
