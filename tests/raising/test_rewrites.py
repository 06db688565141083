"""A refusal has the line of the user's kernel, and what to write instead."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest

from feinsum import raise_kernel

LOOPS = "[n] -> {[e, i, j]: 0 <= e < n and 0 <= i, j < 4}"
CELLS = "[start, end] -> {[e, i, j]: start <= e < end and 0 <= i, j < 4}"
EVERY_OTHER = "[n] -> {[e]: 0 <= e < n and e mod 2 = 0}"


def kernel_of(domain: str, statements: str) -> lp.TranslationUnit:
    shapes = {"A": (4, 4), "x": (100, 4), "u": (100, 4), "t": (100, 4), "y": 100}
    arrays = [
        lp.GlobalArg(name, np.float64, shape=shape)
        for name, shape in shapes.items()
        if f"{name}[" in statements
    ]
    if "map[" in statements:
        arrays.append(lp.GlobalArg("map", np.int32, shape=(100, 4)))
    sizes = [lp.ValueArg(n, np.int32) for n in ("n", "start", "end") if n in domain]
    return lp.make_kernel(domain, statements, [*arrays, *sizes], lang_version=(2018, 2))


@pytest.mark.parametrize(
    ("rule", "domain", "line", "instead"),
    [
        (
            "assignee",
            CELLS,
            "y[map[e, i]] = y[map[e, i]] + reduce(sum, [j], A[i, j]*x[e, j])",
            (CELLS, "t[e, i] = sum(j, A[i, j]*x[e, j])"),
        ),
        (
            "extent",
            EVERY_OTHER,
            "u[e, 0] = y[e]*x[e, 1]",
            ("[n] -> {[e]: 0 <= e < n}", "u[2*e, 0] = y[2*e]*x[2*e, 1]"),
        ),
        (
            "domain",
            "[n] -> {[e, i, j]: 0 <= e < n and 0 <= i < 4 and 0 <= j <= i}",
            "u[e, i] = reduce(sum, [j], A[i, j]*x[e, j])",
            (LOOPS, "u[e, i] = sum(j, A[i, j]*x[e, j])"),
        ),
        (
            "product-of-sums",
            LOOPS,
            "y[e] = reduce(sum, [i], x[e, i])*reduce(sum, [j], u[e, j])",
            ("[n] -> {[e, i]: 0 <= e < n and 0 <= i < 4}", "y[e] = sum(i, x[e, i])"),
        ),
    ],
)
def test_a_refusal_names_the_line_and_a_rewrite_that_works(rule, domain, line, instead):
    """Whatever raising has made of the kernel: shifted loops, or other instructions."""
    (refused,) = raise_kernel(
        kernel_of(domain, line.replace("reduce(sum, ", "sum("))
    ).refused
    assert refused.rule == rule
    assert f"The line: {line}. Instead, " in refused.reason
    raised = raise_kernel(kernel_of(*instead))
    assert raised.raised
    assert not raised.refused
