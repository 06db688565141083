"""Loops that begin elsewhere than at 0: they are raised, retrieved and right."""

from __future__ import annotations

import loopy as lp
import pytest

from feinsum import raise_kernel, retrieve
from feinsum.targets.host import HostCTarget
from tests.loopy_kernels import build_kernel
from tests.retrieval.test_whole_kernels import assert_same_results, facts_for

pytestmark = pytest.mark.filterwarnings("ignore::feinsum.FeinsumWarning")

SIZES = {"start": 3, "end": 40, "n": 40}
PRODUCT = "u[e, i] = sum(j, A[i, j]*x[e, j])"


def kernel_of(domains, statement: str, *sizes: str) -> lp.TranslationUnit:
    """Over arrays of ``sizes[-1]`` rows; A is a matrix of 4."""
    n = sizes[-1]
    shapes = {"A": "4,4", "x": f"{n},4", "w": n, "u": f"{n},4", "v": n}
    return build_kernel(
        domains,
        statement,
        {name: shape for name, shape in shapes.items() if f"{name}[" in statement},
        assumptions=f"{sizes[0]} >= 0",
        target=HostCTarget(),
    )


SHIFTED = {
    "an interior": (
        "[n] -> {[e, i, j]: 1 <= e < n - 1 and 0 <= i, j < 4}",
        PRODUCT,
        "n",
    ),
    "neighbours": (
        "[n] -> {[e]: 1 <= e < n - 1}",
        "v[e] = w[e - 1]*x[e + 1, 2]",
        "n",
    ),
    "a part of a sum": (
        "[n] -> {[e, i, j]: 0 <= e < n and 0 <= i < 4 and 1 <= j < 4}",
        PRODUCT,
        "n",
    ),
    "both bounds are arguments": (
        ["[start, end] -> {[e]: start <= e < end}", "{[i, j]: 0 <= i, j < 4}"],
        PRODUCT,
        "start",
        "end",
    ),
    "from below 0": (
        "[n] -> {[e, i, j]: -2 <= e < n - 2 and 0 <= i, j < 4}",
        "u[e + 2, i] = sum(j, A[i, j]*x[e + 2, j])",
        "n",
    ),
    "a multiple of a parameter": (
        "[start, n] -> {[e, i, j]: 2*start <= e < n and 1 <= i < 4 and 0 <= j < 4}",
        PRODUCT,
        "start",
        "n",
    ),
}


@pytest.mark.parametrize("name", SHIFTED)
def test_shifted_loops_are_raised_and_right(name):
    """The result writes what the given kernel writes, and nothing else."""
    domains, statement, *sizes = SHIFTED[name]
    t_unit = kernel_of(domains, statement, *sizes)
    raised = raise_kernel(t_unit)
    assert not raised.refused
    result = retrieve(t_unit, database=facts_for(t_unit), verify=False)
    assert result is not t_unit
    assert_same_results(t_unit, result, {name: SIZES[name] for name in sizes})


def test_extents_of_different_sizes_have_different_names():
    """``n - 2`` and ``n + 2`` in one kernel."""
    t_unit = build_kernel(
        ["[n] -> {[e]: 0 <= e < n - 2}", "[n] -> {[f]: 0 <= f < n + 2}"],
        "v[e] = 2*w[e] {id=a}\n u[f] = 3*x[f] {id=b}",
        {"v,w,u,x": "n + 2"},
        target=HostCTarget(),
    )
    found = {nest.nest.sizes[x.name] for nest in raise_kernel(t_unit).raised
             for x in nest.einsum.size_params}  # fmt: skip
    assert found == {"(n - 2)", "(n + 2)"}
    result = retrieve(t_unit, database=facts_for(t_unit), verify=False)
    assert_same_results(t_unit, result, {"n": 37})
