"""Random kernels of loops, private values and accumulations, as programs write them."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import loopy as lp
import numpy as np
from hypothesis import strategies as st

__all__ = ["arguments", "build", "texts"]

DOMAIN = "{[i,j,k,l]: 0<=i<3 and 0<=j,l<4 and 0<=k<2}"
ARRAYS = {
    "A": (3, 4), "B": (4, 2), "x": (4,), "y": (3,), "w": (2,), "flat": (12,),
    "out": (3,), "C": (3, 2), "row": (4,),
}  # fmt: skip
PRIVATE: dict[str, tuple[int, ...]] = {"s": (), "t": (), "p": (4,), "q": (2,)}
ATOMS = [
    "A[i,j]", "A[i,l]", "x[j]", "x[l]", "y[i]", "w[k]", "B[j,k]", "B[l,k]", "s", "t",
    "p[j]", "p[l]", "q[k]", "flat[4*i + j]", "(x[j] + y[i])", "2.0", "p[3-j]", "out[i]",
    "C[i,k]", "sum(l, A[i,l]*x[l])", "sum(j, p[j]*x[j])", "(s + t)",
    "(A[i,j] if i > 0 and j < 3 else x[j])", "(p[j] if x[j] > 0.0 else 0.5)",
    "(t if y[i] > 0.0 else s)", "(sum(l, A[i,l]*x[l]) if i < 2 else y[i])",
    "sum(l, (A[i,l] if l > i else x[l]))",
]  # fmt: skip
CONDITIONS = ["i > 0", "x[0] > 0.0", "y[i] > 0.0", "s > 0.0", "p[j] < t", "out[i] > s"]
PLACES = ["out[i]", "out[i]", "C[i,k]", "s", "s", "t", "p[j]", "p[l]", "q[k]",
          "flat[4*i + j]", "row[j]", "row[0]"]  # fmt: skip


Statement: TypeAlias = tuple[str, str, set[str]]
"""An assignment, the condition under which it runs, and its loops."""


@st.composite
def texts(draw: st.DrawFn) -> str:
    """The instructions of a kernel; many are no kernel at all."""
    lines = [draw(_statements()) for _ in range(draw(st.integers(1, 4)))]
    if draw(st.booleans()):
        lines = [*draw(st.sampled_from(BEGINNINGS)), *lines]
    ordered = []
    for at, (text, condition, inames) in enumerate(lines):
        before = [f"s{k}" for k in range(at) if draw(st.integers(0, 9))]
        loops = ":".join(sorted(inames))
        options = [f"id=s{at}", f"dep={':'.join(before)}", f"inames={loops}"]
        options += [f"if={condition}"] if condition else []
        ordered.append(f"{text} {{{','.join(options)}}}")
    return "\n".join(ordered)


BEGINNINGS: list[list[Statement]] = [
    [("s = 0", "", {"i"}), ("s = s + A[i,j]*x[j]", "", {"i", "j"})],
    [("t = 2.0*y[i]", "", {"i"})],
    [("t = 2.0", "", {"i"}), ("t = y[i]", "y[i] > 0.0", {"i"})],
    [("p[j] = A[i,j]*y[i]", "", {"i", "j"})],
    [("p[j] = sum(k, B[j,k]*w[k])*y[i]", "", {"i", "j"})],
    [("out[i] = 0", "", {"i"}), ("out[i] = out[i] + A[i,j]*x[j]", "", {"i", "j"})],
    [("s = y[i]", "", {"i"}), ("out[i] = s*2.0", "", {"i"})],
]


@st.composite
def _statements(draw: st.DrawFn) -> Statement:
    place = draw(st.sampled_from(PLACES))
    factors = draw(st.lists(st.sampled_from(ATOMS), min_size=1, max_size=3))
    value = "*".join(factors)
    if draw(st.integers(0, 3)) == 0:
        value = f"{value} + {draw(st.sampled_from(ATOMS))}"
    if draw(st.booleans()):
        value = f"{place} + {value}"
    text = f"{place} = {value}"
    condition = draw(st.sampled_from(CONDITIONS)) if draw(_rarely()) else ""
    bound = {name for part in re.findall(r"sum\((\w)", text) for name in part}
    inames = set(re.findall(r"\b[ijkl]\b", f"{text} {condition}")) - bound
    if draw(st.integers(0, 3)) == 0:
        inames |= {draw(st.sampled_from("ijkl"))} - bound
    return text, condition, inames


def _rarely() -> st.SearchStrategy[bool]:
    return st.integers(0, 9).map(lambda k: k == 5)


def build(text: str) -> lp.TranslationUnit:
    """The kernel; raises whatever Loopy raises."""
    args: list[Any] = [
        lp.GlobalArg(name, np.float64, shape=shape) for name, shape in ARRAYS.items()
    ]
    args += [
        lp.TemporaryVariable(name, np.float64, shape=shape)
        for name, shape in PRIVATE.items()
    ]
    unit = lp.make_kernel(DOMAIN, text, args, lang_version=(2018, 2))
    return lp.remove_unused_inames(unit)


def arguments() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {name: rng.uniform(-1, 1, shape) for name, shape in ARRAYS.items()}
