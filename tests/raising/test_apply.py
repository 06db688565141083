"""Recipes of every family, on kernels of every form, compute what the kernels do."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest

from feinsum import raise_kernel
from feinsum.measure import compile_kernel, draw_arguments, open_device
from feinsum.raising import single_nest
from feinsum.transforms import apply_spec, find_applicable_transforms
from tests.loopy_kernels import build_kernel
from tests.portions import spread
from tests.raising import almost
from tests.raising.interpreter import run
from tests.transforms.support import LOOPY_WARNINGS, sampled

pytestmark = LOOPY_WARNINGS

DG = "[n] -> {[s,r,e,d,q]: 0<=s<3 and 0<=r<2 and 0<=e<n and 0<=d<4 and 0<=q<4}"
SPLIT = [
    "{ : }",
    "[n] -> {[e,c]: 0<=e<n and c=0}",
    "{[d,b]: 0<=d<4 and b=0}",
    "{[q]: 0<=q<4}",
]
BOX = "[n] -> {[i,j,k]: 0<=i<n and 0<=j<7 and 0<=k<19}"
FORMS = {
    "accumulation": (
        DG,
        "G[s,e,d] = G[s,e,d] + sum([r,q], J[s,r,e,0]*D[r,d,q]*u[e,q])",
    ),
    "shift by arrays": (DG, "v[e,d] = y[e]*u[e,d] - 2*sum(q, D[1,d,q]*u[map[e],q])"),
    "numbers in the output": (DG, "G[1,e,d] = 1 + alpha*sum(q, D[0,d,q]*u[e,q])"),
    "axes of one entry": (SPLIT, "W[e,d,c] = sum([q,b], D[0,d,q]*u[e,q])/y[e]"),
    "choice and guard": (
        DG,
        "G[s,e,d] = sum(q, (D[s,d,q] if s < 2 else D[0,d,q])*(u[e,q-1] if q else 0))",
    ),
    "reshape": (DG, "v[e,d] = v[e,d] - sum(q, D[0,d,q]*flat[4*e + q])"),
    "flat by a size": (DG, "flat[n*d + e] = 2*sum(q, D[0,d,q]*u[e,q])"),
    "tagged": (DG, "v$here[e,d] = sum(q, D$there[0,d,q]*u[e,q])*x[0]"),
    "product": (BOX, "C[i,k] = C[i,k] + 2*sum(j, A[i,j]*B[j,k])"),
    "shifted product": (BOX, "C[i,k] = y[i]*B[0,k] + sum(j, (A[i,j] + 1)*B[j,k])"),
    "pointwise": (BOX, "y[i] = y[i] + alpha*x[i]*A[i,2]"),
    "row sums": (BOX, "y[i] = 2*(x[i] - sum(j, A[i,j]))"),
}
SHAPES = {
    "G": "3,n,4", "J": "3,2,n,1", "D": "2,4,4", "u": "n,4", "v": "n,4", "W": "n,4,1",
    "flat": "4*n", "x": "n", "y": "n", "A": "n,7", "B": "7,19", "C": "n,19",
}  # fmt: skip


def kernel(domain, text):
    named = {
        n: shape for n, shape in SHAPES.items() if f"{n}[" in text or f"{n}$" in text
    }
    more = [lp.GlobalArg("map", np.int32, shape="n")] * ("map" in text)
    more += [lp.ValueArg("alpha", np.float64)] * ("alpha" in text)
    unit = build_kernel(domain, text, named, *more)
    return lp.assume(lp.remove_unused_inames(unit), "n >= 1")


def results(compiled, arguments):
    bound = compiled.bind(arguments)
    bound.poison()
    bound.run()
    return bound.read()


@pytest.mark.parametrize("name", spread(FORMS, 3))
def test_recipes_compute_what_the_kernel_does(name):
    """The first recipe of every family that fits, at extents that no tile divides."""
    unit = kernel(*FORMS[name])
    raised = raise_kernel(unit)
    nest = single_nest(raised)
    transforms = find_applicable_transforms(nest.form.einsum)
    assert transforms
    before = compile_kernel(unit, open_device())
    for transform in transforms:
        (spec,) = sampled(nest.form.einsum, transform, 0)
        applied = apply_spec(spec, raised.t_unit, nest.canonical_nest)
        after = compile_kernel(applied, open_device())
        for n in (1, 37):
            arguments = draw_arguments(unit, {"n": n}, np.random.default_rng(n))
            found = results(after, arguments)
            for output, expected in results(before, arguments).items():
                np.testing.assert_allclose(found[output], expected, 1e-12, 1e-12)


SAMPLE = [
    "out[i] = 3*sum(j, A[map[i],j]*x[perm[j]]) - y[i]",
    "out[i] = sum(j, (A[i,j-1] if j > 0 else alpha)*fmin(x[j], 0.5))/(y[i] + 3)",
    "C[i,k] = C[i,k] + sum(j, x[(j + 1) % 4]*flat[4*i + j]*B[j,k])",
    "out[i] = sum(j, x[(i - 2) % 4]*A[(i - 1)//3 + 1, j]*x[j]**2)",
    "out[i] = y[i]*max(j, A[i,j])",
    "T[1,i] = sum(j, sum(k, B[j,k]*w[k]*f(i,j)*g(j)*j))",
    "out[i] = sum(j, A[i,j])\nz[i] = out[i] + 1",
]


@pytest.mark.parametrize("text", spread(SAMPLE, 4))
def test_the_interpreter_agrees_with_the_device(text):
    """What the tests take for the meaning of a kernel is what PoCL computes."""
    unit = almost.build(almost.BOXES[0], almost.RULES + text)
    unit = lp.remove_unused_inames(unit)
    arrays = almost.arguments()
    names = set(unit.default_entrypoint.arg_dict) & set(arrays)
    read = {a.name for a in lp.preprocess_kernel(unit).default_entrypoint.args}
    given = {name: arrays[name] for name in names & read}
    bound = compile_kernel(unit, open_device()).bind(given)
    bound.run()
    expected = run(unit, arrays)
    for name, value in bound.read().items():
        np.testing.assert_allclose(value, expected[name], 1e-12, 1e-12)
