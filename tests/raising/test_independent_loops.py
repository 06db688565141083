"""Loops in one set that no constraint relates, as loops in sets of their own."""

from __future__ import annotations

import islpy as isl
import loopy as lp
import pytest

from feinsum import raise_kernel
from tests.loopy_kernels import build_kernel

N_NESTS = 20
"""Of three loops each."""


def kernel_of_nests(n_nests: int, *, is_one_set: bool) -> lp.TranslationUnit:
    nests = range(n_nests)
    loops = [f"e{k}, i{k}, j{k}" for k in nests]
    bounds = [f"0 <= e{k} < n and 0 <= i{k}, j{k} < 4" for k in nests]
    joined = "{[" + ", ".join(loops) + "]: " + " and ".join(bounds) + "}"
    apart = [f"{{[{a}]: {b}}}" for a, b in zip(loops, bounds, strict=True)]
    return build_kernel(
        [joined] if is_one_set else apart,
        [
            f"y{k}[e{k}, i{k}] = sum(j{k}, A[i{k}, j{k}]*x[e{k}, j{k}]) {{id=nest{k}}}"
            for k in nests
        ],
        {"A": "4,4", "x": "n,4", ",".join(f"y{k}" for k in nests): "n,4"},
    )


def test_many_nests_in_one_set_are_those_in_sets_of_their_own():
    """Operations on a set take time that grows with a power of its loops, so no set of
    the raised kernel has the loops of two nests.
    """
    one = raise_kernel(kernel_of_nests(N_NESTS, is_one_set=True))
    many = raise_kernel(kernel_of_nests(N_NESTS, is_one_set=False))
    assert not one.refused
    assert [nest.key for nest in one.raised] == [nest.key for nest in many.raised]
    assert [nest.instructions for nest in one.raised] == [
        nest.instructions for nest in many.raised
    ]
    domains = one.t_unit[one.kernel_name].domains
    assert max(domain.dim(isl.dim_type.set) for domain in domains) <= 3


SETS = {
    "boxes": "[n, m] -> {[e, f, i, j]: 0 <= e < n and 0 <= f < m and 0 <= i, j < 4}",
    "related": "[n] -> {[e, f, i, j]: 0 <= e < n and e <= f < n and 0 <= i, j < 4}",
    "apart": "[n, m] -> {[e, i, f, j]: 0 <= e < n and 0 <= f < m and 0 <= i < 4 "
    "and i <= j < 4}",
    "steps": "[n] -> {[e, f, i, j]: 0 <= e < n and e mod 3 = 0 and 0 <= f < n "
    "and (e + f) mod 2 = 0 and 0 <= i, j < 4}",
    "a condition": "[n, m] -> {[e, f, i, j]: 0 <= e < n and 0 <= f < m and m < n "
    "and 0 <= i, j < 4}",
}


@pytest.mark.parametrize("name", SETS)
def test_no_iteration_is_lost_or_won(name):
    """What loops run over together is what it was, also where some do not run."""
    given = isl.BasicSet(SETS[name])
    t_unit = build_kernel(
        [SETS[name]],
        """
        y[e, i] = 2*x[e, i] {id=a}
        z[f, j] = 2*x[f, j] {id=b}
        """,
        {"x,y,z": "n + m,4"},
    )
    raised = raise_kernel(t_unit)
    kernel = raised.t_unit[raised.kernel_name]
    for loops in ({"e", "i"}, {"f", "j"}, {"e", "f", "i", "j"}):
        new = kernel.get_inames_domain(frozenset(loops))
        assert _only(new, loops).is_equal(_only(given, loops))


def _only(domain: isl.BasicSet, loops: set[str]) -> isl.Set:
    """The set of some loops, in the order of their names, and of all parameters."""
    alone = domain.project_out_except(sorted(loops), [isl.dim_type.set])
    space = isl.BasicSet(f"[m, n] -> {{[{', '.join(sorted(loops))}]}}")
    return isl.align_spaces(alone, space).to_set()
