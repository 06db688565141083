"""Random kernels that add to several parts of one array in one loop.

Parts have strides and offsets, and some overlap. Values come from tables of constants,
private scalars and conditions; bounds are numbers or private scalars.
"""

from __future__ import annotations

import re
from typing import Any

import loopy as lp
import numpy as np
from hypothesis import strategies as st

from tests.raising.local_kernels import constant_tables

__all__ = ["arguments", "build", "texts"]

EXTENTS = {"i": 3, "j": 2, "k": 4}
MOST_STATEMENTS = 4
DOMAINS = [
    f"{{[{iname}{at}]: 0<={iname}{at}<{n}}}"
    for iname, n in EXTENTS.items()
    for at in ("", *range(MOST_STATEMENTS))
]
"""The loops that statements share, and those that each has for itself."""
POINTS = ("{[q]: 0<=q<3}", "[size] -> {[q]: 0<=q<size}")
"""The loop that sums, with a bound that is a number or a scalar."""
TABLES = {"B": (3, 3), "D": (3, 2)}
ARRAYS = {"a": (3,), "b": (2,), "c": (4,), "g": (3,), "flat": (24,), "F": (24, 24)}
AT_POINTS = ["B[q,i]", "D[q,j]", "g[q]", "t*g[q]", "(B[q,i] + a[i]*g[q])"]
FACTORS = [
    *AT_POINTS, *AT_POINTS, "a[i]", "b[j]", "c[k]", "a[i]", "b[j]", "2.0", "alpha",
    "(a[i] if g[q] > 0.0 else 0.5)", "(g[q] if i < 2 and alpha > 1.0 else a[i])",
    "exp(b[j])", "fmax(c[k], 0.25)", "flat[23]", "flat[2*i + 1]",
    "F[2*i,20]",
]  # fmt: skip
CONDITIONS = [*[""] * 24, "i > 0", "g[q] > 0.0", "t > 0.5", "flat[0] > 0.0"]


OTHERS = str.maketrans("ijk", "jki")


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, str]:
    """The loop that sums, and the instructions; many are no kernel at all."""
    points = draw(st.sampled_from(POINTS))
    n = draw(st.integers(2, MOST_STATEMENTS))
    own = st.sampled_from(["", *map(str, range(n))])
    part = draw(st.sampled_from(["4*{} + {}", "{} + 4*{}", ""]))
    lines = [_in_loops(draw(own), *draw(_statements(part, at))) for at in range(n)]
    if draw(st.booleans()):
        scale = draw(st.sampled_from(["2.0*g[q]", "g[q]*alpha", "B[q,0]", "g[0]"]))
        lines.insert(0, (f"t = {scale}", "", "q"))
    if "size" in points:
        lines.insert(0, ("size = 3", "", ""))
    made = []
    for at, (text, condition, inames) in enumerate(lines):
        before = [f"s{k}" for k in range(at) if k == 0 or draw(st.integers(0, 4))]
        options = [f"id=s{at}", f"dep={':'.join(before)}", f"inames={inames}"]
        options += [f"if={condition}"] if condition else []
        made.append(f"{text} {{{','.join(options)}}}")
    return points, "\n".join(made)


@st.composite
def _statements(draw: st.DrawFn, part: str, at: int) -> tuple[str, str, str]:
    """Most add, in the loop that sums, to a part of an array of one or two axes.

    Args:
        part: a subscript that has an iname and the number of a part; empty for any.
        at: the number of the statement, which most often is that of its part.
    """
    number = st.one_of(st.just(at), st.just(at), st.integers(0, MOST_STATEMENTS - 1))
    alike = st.builds(part.format, st.sampled_from("ijk"), number)
    subscripts = alike if part else _subscripts()
    if draw(st.integers(0, 3)):
        place = f"flat[{draw(subscripts)}]"
    else:
        row, column = draw(subscripts), draw(subscripts).translate(OTHERS)
        place = f"F[{row}, {column}]"
    others = draw(st.lists(st.sampled_from(FACTORS), max_size=2))
    value = "*".join([draw(st.sampled_from([*AT_POINTS, *FACTORS])), *others])
    if draw(st.integers(0, 3)) == 0:
        value = f"{value} + {draw(st.sampled_from(FACTORS))}"
    if draw(st.integers(0, 7)):
        value = f"{place} + {value}"
    condition = draw(st.sampled_from(CONDITIONS))
    used = {name for name in "ijkq" if name in _names(f"{place} {value} {condition}")}
    used |= {"q"} if draw(st.integers(0, 7)) else set()
    return f"{place} = {value}", condition, ":".join(sorted(used))


def _in_loops(
    suffix: str, text: str, condition: str, inames: str
) -> tuple[str, str, str]:
    """The statement in loops of other names."""
    text, condition, inames = (
        re.sub(r"\b([ijk])\b", rf"\g<1>{suffix}", part)
        for part in (text, condition, inames)
    )
    return text, condition, inames


def _names(text: str) -> set[str]:
    return {*re.findall(r"\w+", text)}


@st.composite
def _subscripts(draw: st.DrawFn) -> str:
    """A sum of multiples of inames and a number."""
    inames = draw(st.lists(st.sampled_from("ijk"), max_size=2, unique=True))
    steps = [f"{draw(st.integers(1, 3))}*{iname}" for iname in inames]
    return " + ".join([*steps, str(draw(st.integers(0, 8)))])


def build(points: str, text: str) -> lp.TranslationUnit:
    """The kernel; raises whatever Loopy raises."""
    data: list[Any] = [
        lp.GlobalArg(name, np.float64, shape=shape) for name, shape in ARRAYS.items()
    ]
    data += constant_tables(TABLES, np.random.default_rng(1))
    data += [lp.TemporaryVariable("t", np.float64), lp.ValueArg("alpha", np.float64)]
    if "size" in text:
        data.append(lp.TemporaryVariable("size", np.int32))
    return lp.remove_unused_inames(
        lp.make_kernel([*DOMAINS, points], text, data, lang_version=(2018, 2))
    )


def arguments() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    arrays = {name: rng.uniform(-1, 1, shape) for name, shape in ARRAYS.items()}
    return {**arrays, "alpha": 1.5}
