"""Generated kernels compute what the reference evaluator says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings

from feinsum import (
    array,
    batched_einsum,
    canonicalize,
    einsum,
    evaluate,
    generate_loopy,
    raise_kernel,
)
from feinsum.codegen import find_contraction_path
from feinsum.errors import InvalidEinsumError
from feinsum.measure import (
    compile_kernel,
    compute_largest_error,
    draw_arguments,
    open_device,
)
from feinsum.raising import single_nest
from tests.strategies import einsums

J, D = array("J", (3, 3, "N")), array("D", (3, 5, 5))
U, V = array("u", ("N", 5)), array("v", ("N", 5))
S, X, Q = array("s"), array("i", 5), array("A", (5, 5))
EINSUMS = {
    "gradient of two fields": batched_einsum("xre,rij,ej->xei", [[J, D, U], [J, D, V]]),
    "scalar operand, rank-0 output": einsum(",i->", S, X),
    "operand named like its index": einsum("i->i", X),
    "diagonal": einsum("ii->i", Q),
    "one array in two places": einsum("ij,jk->ik", Q, Q),
    "words": einsum("{cell}{dof}, {dof} -> {cell}", array("M", ("N", 5)), X),
    "single precision": einsum("i,i->i", *[array(n, 5, "float32") for n in "ab"]),
    "integers": einsum("ij->i", array("n", (5, 5), "int32")),
    "complex": einsum("ij,j->i", array("z", (5, 5), "complex128"), X),
}


def run(e, t_unit, sizes):
    arguments = draw_arguments(t_unit, sizes, np.random.default_rng(0))
    kernel = compile_kernel(t_unit, open_device()).bind(arguments)
    kernel.poison()
    kernel.run()
    results = kernel.read()
    arrays = {op.name: arguments[op.name] for op in e.operands}
    names = ["out"] if e.batch_size == 1 else [f"out_{k}" for k in range(e.batch_size)]
    return max(
        compute_largest_error(results[name], expected)
        for name, expected in zip(names, evaluate(e, arrays), strict=True)
    )


@pytest.mark.parametrize("e", EINSUMS.values(), ids=EINSUMS)
def test_a_generated_kernel_is_right_on_a_device(e):
    """The untransformed kernel agrees with numpy at a ragged run-time extent."""
    assert run(e, generate_loopy(e), {"N": 7} if e.size_params else {}) < 1e-6


@pytest.mark.parametrize("subscripts", ["ij,jk,kl,lm->im", "ij,jk,kl->", "ij,ij,ij->j"])
def test_a_contraction_path_changes_no_result(subscripts):
    """By way of pairwise intermediates the result is the same."""
    n = subscripts.count(",") + 1
    e = einsum(subscripts, *[array(f"B{k}", (4, 4)) for k in range(n)])
    assert run(e, generate_loopy(e, path=find_contraction_path(e)), {}) < 1e-12


@pytest.mark.parametrize("path", [((0, 1),), ((0, 7), (0, 1)), ((0, 0), (0, 1))])
def test_a_path_that_leaves_no_single_array_is_refused(path):
    """A path must name arrays that are there, each once, and end with one."""
    e = einsum("ij,jk,kl->il", *[array(f"B{k}", (4, 4)) for k in range(3)])
    with pytest.raises(InvalidEinsumError, match="path"):
        generate_loopy(e, path=path)


@settings(max_examples=25)
@given(e=einsums())
def test_raising_inverts_generation(e):
    """What is generated from an einsum is raised to an einsum of the same key.

    Not so where integers meet other dtypes: C multiplies them otherwise than numpy.
    """
    dtypes = {op.dtype for op in e.operands}
    assume(len(dtypes) == 1 or all(dtype.kind in "fc" for dtype in dtypes))
    nest = single_nest(raise_kernel(generate_loopy(e), long_extent=1 << 60))
    assert nest.key == canonicalize(e).key
