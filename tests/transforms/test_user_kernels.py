"""Kernels that people write: scale factors, functions as operands, any names."""

from __future__ import annotations

import loopy as lp
import numpy as np
import pytest

from feinsum.transforms import find_applicable_transforms
from tests.portions import spread
from tests.transforms.support import LOOPY_WARNINGS, sampled, written

pytestmark = LOOPY_WARNINGS

SIZES = (1, 37, 301)


def kernel(domain, text, shapes, *, n="N", args=()):
    """A kernel over double arrays of these shapes; the size parameter is ``n``."""
    arrays = [lp.GlobalArg(name, np.float64, shape=s) for name, s in shapes.items()]
    sizes = [lp.ValueArg(n, np.int32)] if n else []
    return lp.make_kernel(
        domain, text, [*arrays, *args, *sizes], lang_version=(2018, 2), name="user"
    )


ALPHA = lp.ValueArg("alpha", np.float64)

SCALED = {
    "mass": (
        kernel(
            "{[e,i,j]: 0<=e<N and 0<=i,j<4}",
            "out[e,i] = 2*alpha*sum(j, M[i,j]*J[e]*u[e,j])",
            {"M": "4,4", "J": "N", "u,out": "N,4"},
            args=[ALPHA],
        ),
        lambda a: {
            "out": 2 * a["alpha"] * np.einsum("ij,e,ej->ei", a["M"], a["J"], a["u"])
        },
    ),
    "product": (
        kernel(
            "{[i,j,k]: 0<=i,k<N and 0<=j<7}",
            "out[i,k] = 2*alpha*sum(j, A[i,j]*B[j,k])",
            {"A": "N,7", "B": "7,N", "out": "N,N"},
            args=[ALPHA],
        ),
        lambda a: {"out": 2 * a["alpha"] * (a["A"] @ a["B"])},
    ),
    "each row its own": (
        kernel(
            "{[e,i,j]: 0<=e<N and 0<=i,j<4}",
            """
            out[e,i] = -3*sum(j, M[i,j]*u[e,j])
            two[e,i] = alpha*sum(j, M[i,j]*v[e,j])
            """,
            {"M": "4,4", "u,v,out,two": "N,4"},
            args=[ALPHA],
        ),
        lambda a: {
            "out": -3 * a["u"] @ a["M"].T,
            "two": a["alpha"] * a["v"] @ a["M"].T,
        },
    ),
    "without a sum": (
        kernel(
            "{[e]: 0<=e<N}",
            "out[e] = alpha*(x[e]*y[e])",
            {"x,y,out": "N"},
            args=[ALPHA],
        ),
        lambda a: {"out": a["alpha"] * a["x"] * a["y"]},
    ),
}

FUNCTIONAL = {
    "affine combination in a product": (
        kernel(
            "{[i,j,k]: 0<=i,k<N and 0<=j<7}",
            """
            f(p, q) := alpha*A[p,q] + 1
            out[i,k] = sum(j, f(i,j)*(B[j,k] - C[j,k]))
            """,
            {"A": "N,7", "B,C": "7,N", "out": "N,N"},
            args=[ALPHA],
        ),
        lambda a: {"out": (a["alpha"] * a["A"] + 1) @ (a["B"] - a["C"])},
    ),
    "roots, shifts and a strided read": (
        kernel(
            "{[e,i,j]: 0<=e<N and 0<=i,j<4}",
            "out[e,i] = sum(j, sqrt(M[i,j])*u[2*e, 3-j])",
            {"M": "4,4", "u": "2*N,4", "out": "N,4"},
        ),
        lambda a: {"out": a["u"][::2, ::-1] @ np.sqrt(a["M"]).T},
    ),
    "output through strides": (
        kernel(
            "{[e,i,j]: 0<=e<N and 0<=i,j<4}",
            "out[i,e] = sum(j, M[i,j]*exp(u[e,j]))",
            {"M": "4,4", "u": "N,4", "out": "4,N"},
        ),
        lambda a: {"out": (np.exp(a["u"]) @ a["M"].T).T},
    ),
}

CLASHES = {
    "inames like those of blocks, a domain for each": (
        kernel(
            [
                "[N] -> {[e_outer]: 0<=e_outer<N}",
                "{[e_inner]: 0<=e_inner<4}",
                "{[j]: 0<=j<4}",
            ],
            "out[e_outer,e_inner] = sum(j, M[e_inner,j]*J[e_outer]*u[e_outer,j])",
            {"M": "4,4", "J": "N", "u,out": "N,4"},
        ),
        lambda a: {"out": a["J"][:, None] * (a["u"] @ a["M"].T)},
    ),
    "inames like those of later steps": (
        kernel(
            "{[e, e_outer, j_sum, j, f_remainder]: 0<=e<N and 0<=j,e_outer<4"
            " and 0<=j_sum,f_remainder<3}",
            "out[j_sum,e,e_outer] = sum([f_remainder, j], J[j_sum,f_remainder,e]"
            "*D[f_remainder,e_outer,j]*u[e,j])",
            {"J": "3,3,N", "D": "3,4,4", "u": "N,4", "out": "3,N,4"},
        ),
        lambda a: {
            "out": np.einsum("xre,rij,ej->xei", a["J"], a["D"], a["u"], optimize=True)
        },
    ),
    "arguments like tiles and accumulators": (
        kernel(
            "{[e,i,j]: 0<=e<N and 0<=i,j<4}",
            "row_acc[e,i] = sum(j, A0_tile[i,j]*A_0_tile[e]*e_inner[e,j]) {id=row}",
            {"A0_tile": "4,4", "A_0_tile": "N", "e_inner,row_acc": "N,4"},
        ),
        lambda a: {"row_acc": a["A_0_tile"][:, None] * (a["e_inner"] @ a["A0_tile"].T)},
    ),
    "size parameter like an iname": (
        kernel(
            "[e_outer] -> {[e,i,j]: 0<=e<e_outer and 0<=i,j<4}",
            "out[e,i] = sum(j, M[i,j]*u[e,j])",
            {"M": "4,4", "u,out": "e_outer,4"},
            n="e_outer",
        ),
        lambda a: {"out": a["u"] @ a["M"].T},
    ),
    "rules like generated ones": (
        kernel(
            "{[i,j,k]: 0<=i,k<N and 0<=j<7}",
            """
            A_0_by_loops(p, q) := A_0[p,q]
            A_0_rule(_k, _j) := B[_k,_j]
            out[i,k] = sum(j, A_0_by_loops(i,j)*A_0_rule(j,k))
            """,
            {"A_0": "N,7", "B": "7,N", "out": "N,N"},
        ),
        lambda a: {"out": a["A_0"] @ a["B"]},
    ),
    "instructions like steps": (
        kernel(
            "{[e,i,j]: 0<=e<N and 0<=i,j<4}",
            """
            out[e,i] = sum(j, M[i,j]*u[e,j]) {id=row}
            two[e,i] = sum(j, M[i,j]*v[e,j]) {id=row_update}
            tri[e,i] = sum(j, M[i,j]*w[e,j]) {id=row_remainder}
            """,
            {"M": "4,4", "u,v,w,out,two,tri": "N,4"},
        ),
        lambda a: {
            out: a[name] @ a["M"].T
            for out, name in zip(("out", "two", "tri"), "uvw", strict=True)
        },
    ),
    "an iname like the argument of a rule": (
        kernel(
            "{[i,j,k,_j_inner,_k_inner]: 0<=i<N and 0<=k<17 and 0<=j<7"
            " and 0<=_j_inner,_k_inner<3}",
            "out[_k_inner,_j_inner,i,k] = sum(j, A[_k_inner,i,j]*B[_j_inner,j,k])",
            {"A": "3,N,7", "B": "3,7,17", "out": "3,3,N,17"},
        ),
        lambda a: {"out": np.einsum("aij,bjk->abik", a["A"], a["B"])},
    ),
}


ALL = {**SCALED, **FUNCTIONAL, **CLASHES}


TURNS = [
    (name, turn, 2)
    for k, name in enumerate([*SCALED, *FUNCTIONAL])
    for turn in (k % 2, 1 - k % 2)
]
"""Every second family, from which one; the first of a kernel's two runs every time."""


@pytest.mark.parametrize(
    ("name", "turn", "n_turns"),
    [*spread(TURNS, len(TURNS) // 2), *((name, 0, 1) for name in CLASHES)],
)
def test_every_family_keeps_what_a_user_wrote(name, turn, n_turns):
    """Scale factors of a sum, operands that are whatever the kernel computes at a
    point, and names that primitives make: these for every family in every run, the
    others for every second one, in turns.
    """
    case = written(*ALL[name])
    applicable = find_applicable_transforms(case.einsum)
    families = applicable[turn::n_turns]
    assert families
    (parameter,) = case.nest.sizes.values()
    for transform in families:
        for spec in sampled(case.einsum, transform, 0):
            case.assert_right(case.apply(spec), [{parameter: size} for size in SIZES])


def test_a_literal_extent_behind_a_size_parameter_is_right():
    """A recipe for a size parameter serves a kernel of a long literal extent."""
    unit = kernel(
        "{[e,i,j]: 0<=e<101 and 0<=i,j<4}",
        "out[e,i] = sum(j, M[i,j]*u[e,j])",
        {"M": "4,4", "u,out": "101,4"},
        n=None,
    )
    case = written(unit, lambda a: {"out": a["u"] @ a["M"].T}, long_extent=100)
    assert dict(case.nest.sizes) == {"N0": 101} or 101 in case.nest.sizes.values()
    for transform in find_applicable_transforms(case.einsum):
        for spec in sampled(case.einsum, transform, 0):
            case.assert_right(case.apply(spec), [{}])
