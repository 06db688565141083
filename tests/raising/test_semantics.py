"""What raising says a kernel computes is what the kernel computes."""

from __future__ import annotations

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
from feinsum.raising import single_nest
from tests.raising.test_grammar import kernel

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
]


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
    arguments = random_arguments(unit, {}, np.random.default_rng(0))
    (output,), (scale,) = nest.outputs, nest.scale
    scalars = {k: v for k, v in arguments.items() if np.ndim(v) == 0}
    factor = evaluate_scalar(scale, scalars)
    expected = factor * nest.functional.evaluate(arguments, {})[0]
    assert largest_error(run(unit, arguments, output), expected) < 1e-13
    assert largest_error(run(raised.t_unit, arguments, output), expected) < 1e-13
