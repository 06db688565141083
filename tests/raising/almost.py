"""Random kernels that are einsums, or almost."""

from __future__ import annotations

import re
from typing import Any

import loopy as lp
import numpy as np
from hypothesis import strategies as st

__all__ = ["EXTENTS", "arguments", "build", "texts"]

EXTENTS = {"i": 3, "j": 4, "k": 2}
SHAPES = {
    "A": (3, 4), "A2": (3, 4), "B": (4, 2), "S": (3, 3), "x": (4,), "x2": (4,),
    "y": (3,), "z": (3,), "w": (2,), "flat": (12,), "out": (3,), "C": (3, 2),
    "T": (2, 3), "W": (3, 1),
}  # fmt: skip
MAPS = {"map": (3, 3), "perm": (4, 4)}
"""Shape and number of values of the integer arrays."""
SCALARS = ("alpha", "beta")

BOXES = [
    "{[i,j,k]: 0<=i<3 and 0<=j<4 and 0<=k<2}",
    ["{[i]: 0<=i<3}", "{[j]: 0<=j<4}", "{[k]: 0<=k<2}"],
    ["{ : }", "{[k,i]: 0<=i<3 and 0<=k<2}", "{[j]: 0<=j<4}"],
]
ODD_DOMAINS = [
    "{[i,j,k]: 0<=i<3 and 0<=j<=i and 0<=k<2}",
    "{[i,j,k]: 1<=i<3 and 0<=j<4 and 0<=k<2}",
    "{[i,j,k]: 0<=i<3 and 0<=j<4 and j mod 2 = 0 and 0<=k<2}",
    "{[i,j,k]: 0<=i<3 and 0<=j<4 and 0<=k<2 and k<=i}",
    "{[i,j,k]: i = 0 and 0<=j<4 and 0<=k<2}",
    "{[i,j,k]: 0<=i<3 and j = 0 and 0<=k<2}",
]
FACTORS = [
    "A[i,j]", "A2[i,j]", "x[j]", "x2[j]", "y[i]", "A[i,3-j]", "A[map[i],j]",
    "x[perm[j]]", "flat[4*i+j]", "A[flat_i//4,j]", "(A[i,j] + A2[i,j])",
    "(x[j] if j < 2 else alpha)", "(A[i,j-1] if j > 0 else 0.0)",
    "(A[i,j] if map[i] > 0 else x[j])", "1.0/(y[i] + 3)", "x[j]/(x2[j] + 4)",
    "alpha", "2", "-1", "1", "0.5", "beta", "x[0]", "j", "(j + 1)", "fmin(x[j], 0.5)",
    "x[j]**2", "y[i]*alpha", "(A[i,j] - x[j])", "B[j,k]", "B[j,0]", "C[i,k]", "w[k]",
    "S[i,i]", "x[(j + 1) % 4]", "x[j // 2]", "x[(i - 2) % 4]", "A[(i - 1)//3 + 1, j]",
    "f(i,j)", "f(i,0)", "g(j)", "h(j)", "(x[j] + y[i])", "(A[i,j]*x[j] + A2[i,j])",
    "map[i]", "(map[i] > 0)", "sum(k, B[j,k]*w[k])", "sum(j, A[i,j])", "max(k, B[j,k])",
    "out[i]", "x[i]", "conj(x[j])", "exp(x[j])", "sqrt(abs(A[i,j]))", "tanh(y[i])",
    "(x[j] if y[i] > 0 and j < 2 else 0.25)", "(y[i] if not (i == 1) else z[i])",
    "(x[j] if j < 1 else (x2[j] if x[j] > 0 else y[i]))",
]  # fmt: skip
RULES = "f(p,q) := A[p,q]*2\ng(p) := x[p] + f(1,p)\nh(p) := A[i,p]\n"
SHIFTS = ["y[i]", "out[i]", "2*out[i]", "out[2-i]", "alpha", "1", "x[0]", "out[0]",
          "y[i]*z[i]", "A[i,0]", "y[map[i]]", "sum(k, C[i,k])"]  # fmt: skip
ASSIGNEES = ["out[i]"] * 6 + [
    "C[i,k]", "C[i,k]", "T[1,i]", "W[i,0]", "out[2-i]", "out[map[i]]", "S[i,i]",
    "flat[2*i]", "out[0]", "T[0,i]",
]  # fmt: skip
OTHERS = [
    "z[i] = out[i] + 1 {dep=row}",
    "z[i] = out[2-i] + 1 {dep=row}",
    "z[i] = out[i] + 1 {id=other}",
    "z[i] = sum(j, A[i,j]*x2[j])",
    "z[i] = sum(j, A[i,j]*x[j]) {dep=row}",
    "T[0,i] = sum(j, A[i,j]*x[j])",
    "out[i] = out[i] + sum(j, A2[i,j]*x[j]) {dep=row}",
    "y[i] = 2*z[i] {id=other}",
    "x[j] = x2[j] {id=other}",
    "S[i,0] = y[i]",
    "x[k] = out[k] {dep=row,id=mid}\nz[i] = sum(j, A[i,j]*x[j]) {dep=mid}",
    "y[i] = y[i] + alpha {id=other,dep=row}",
    "C[i,k] = 2*C[i,k] {id=other}",
    "out[i] = 3*y[i] {id=other}",
    "z[i] = max(j, out[i]*x[j]) {dep=row,id=mid}\nout[i] = out[i] + z[i] {dep=mid}",
    "C[i,k] = w[k]*y[i] {id=mid}\ny[i] = sum(k, C[i,k]) {dep=mid}",
    "C[i,k] = out[i]*w[k] {dep=row,id=mid}\nout[i] = C[i,0]*y[i] {dep=mid}",
    "T[0,i] = y[i] {id=mid}\nT[1,i] = T[0,i]*z[i] {dep=mid}",
]


@st.composite
def texts(draw: st.DrawFn) -> tuple[Any, str]:
    """The domains and the instructions of a kernel; many are no kernel at all."""
    domains = draw(st.sampled_from(ODD_DOMAINS if draw(_rarely()) else BOXES))
    assignee = draw(st.sampled_from(ASSIGNEES))
    value = draw(_values(assignee))
    condition = ",if=y[i] > 0" if draw(_rarely()) else ""
    lines = [f"{assignee} = {value} {{id=row{condition}}}"]
    if draw(st.integers(0, 3)) == 0:
        lines.append(draw(st.sampled_from(OTHERS)))
    return domains, RULES + "\n".join(lines)


def _rarely() -> st.SearchStrategy[bool]:
    return st.integers(0, 15).map(lambda k: k == 7)


@st.composite
def _values(draw: st.DrawFn, assignee: str) -> str:
    factors = draw(st.lists(st.sampled_from(FACTORS), min_size=1, max_size=3))
    product = draw(st.sampled_from(["*".join, _from_the_right]))(factors)
    value = draw(_sums(assignee, product))
    outer = st.sampled_from(["", "", "2*", "alpha*", "y[i]*"])
    value = ("x[j]*" if draw(_rarely()) else draw(outer)) + value
    if draw(st.integers(0, 3)) == 0:
        shift = draw(st.sampled_from(SHIFTS))
        value = draw(st.sampled_from([f"{shift} + {value}", f"{value} - {shift}"]))
    last = draw(st.sampled_from(["{}"] * 8 + ["({})/(y[i] + 3)", "2*({})", "1/({})"]))
    return last.format(value)


@st.composite
def _sums(draw: st.DrawFn, assignee: str, product: str) -> str:
    """A sum of the product, most often over what is left to sum."""
    if draw(_rarely()):
        shapes = [
            "sum([j, k], {})",
            "sum(j, sum(k, {}))",
            "max(j, {})",
            "product(j, {})",
        ]
        return draw(st.sampled_from(shapes)).format(product)
    free = set(re.findall(r"\b[ijk]\b", assignee))
    left = sorted(set(re.findall(r"\b[ijk]\b", product)) - free - {"i"})
    if not left or draw(_rarely()):
        return product
    if draw(st.booleans()):
        return f"sum([{', '.join(left)}], {product})"
    for iname in left:
        product = f"sum({iname}, {product})"
    return product


def _from_the_right(factors: list[str]) -> str:
    return (
        factors[0]
        if len(factors) == 1
        else (f"{factors[0]}*({_from_the_right(factors[1:])})")
    )


def build(domains: Any, text: str) -> lp.TranslationUnit:
    """The kernel; raises whatever Loopy raises."""
    text = text.replace("flat_i", "(4*i)")
    args: list[Any] = [
        lp.GlobalArg(name, np.float64, shape=shape) for name, shape in SHAPES.items()
    ]
    args += [lp.GlobalArg(n, np.int32, shape=(s,)) for n, (s, _) in MAPS.items()]
    args += [lp.ValueArg(name, np.float64) for name in SCALARS]
    return lp.make_kernel(domains, text, args, lang_version=(2018, 2))


def arguments(seed: int = 0) -> dict[str, Any]:
    """An array or a number for each argument."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {n: rng.uniform(-1, 1, s) for n, s in SHAPES.items()}
    arrays |= {n: rng.integers(0, m, s, np.int32) for n, (s, m) in MAPS.items()}
    return arrays | {"alpha": 1.5, "beta": -0.25}
