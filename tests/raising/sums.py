"""Random sums of sums, in expressions and in chains of private values that add up.

Sums stand in the terms of other sums, are added to sums, and feed each other as in the
factorized kernels of form compilers.
"""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import loopy as lp
import numpy as np
from hypothesis import strategies as st

__all__ = ["arguments", "build", "texts"]

EXTENTS = {"e": 2, "i": 3, "q": 3, "j": 2, "k": 3, "l": 2, "m": 3}
SUMMED = "qjklm"
DEEPEST = 3
OUTPUTS = {"out_i[i]": "i", "out_ei[e,i]": "ei"}
FORMS = ["{}", "{}", "{}", "2.0*{}", "alpha*{}", "exp({})", "{}/(2 + {})",
         "({} if {} > 0.0 else 0.5)"]  # fmt: skip

Statement: TypeAlias = tuple[str, str]
"""An assignment and its loops."""


@st.composite
def texts(draw: st.DrawFn) -> str:
    """The instructions of a kernel; some are no einsums."""
    lines = []
    for at, (text, loops) in enumerate(draw(st.one_of(_trees(), _chains()))):
        options = f"{{id=s{at},dep={f's{at - 1}' if at else ''},inames={loops}}}"
        # only cells and points are loops that several statements share
        lines.append(re.sub(r"\b([ijklm])\b", rf"\g<1>{at}", f"{text} {options}"))
    return "\n".join(lines)


@st.composite
def _trees(draw: st.DrawFn) -> list[Statement]:
    """Instructions with sums at any depth; the second one adds to the first."""
    target, free = draw(st.sampled_from([*OUTPUTS.items()]))
    values = draw(st.lists(_values(free, "i", (), DEEPEST), min_size=1, max_size=2))
    begin = draw(st.sampled_from(["", f"{target} + "]))
    return [
        (f"{target} = {f'{target} + ' if at else begin}{value}", ":".join(free))
        for at, value in enumerate(values)
    ]


@st.composite
def _chains(draw: st.DrawFn) -> list[Statement]:
    """Private values that add up what they read of those before, and an output."""
    zeros: list[Statement] = []
    lines: list[Statement] = []
    made: list[tuple[str, str]] = []
    for at in range(draw(st.integers(1, 3))):
        around, own = draw(st.sampled_from(["e", "eq"])), draw(st.sampled_from("-jk"))
        place = f"t{at}" if own == "-" else f"t{at}_{own}[{own}]"
        added = draw(st.sampled_from(["l", "m", "lm", "eq"]))
        loops = "".join(sorted({*around, *own, *added} - {"-"}))
        needed = "".join(sorted({*loops} - {*around}))
        value = draw(_values(loops, needed, _seen(made, loops), 1))
        zeros.append((f"{place} = 0.0", ":".join(sorted({*around, *own} - {"-"}))))
        lines.append((f"{place} = {place} + {value}", ":".join(loops)))
        made.append((place.partition("[")[0], around))
    target, free = draw(st.sampled_from([*OUTPUTS.items()]))
    loops = "".join(sorted({*free, *draw(st.sampled_from(["eq", "e", "eqk"]))}))
    needed = loops.replace("e", "")
    last = draw(_values(loops, needed, _seen(made, loops), 2))
    zeros.sort(key=lambda line: "q" in line[1])  # so that one loop over points has all
    return [*zeros, *lines, (f"{target} = {target} + {last}", ":".join(loops))]


def _seen(made: list[tuple[str, str]], loops: str) -> tuple[str, ...]:
    """The private values of the iterations of these loops."""
    return tuple(name for name, around in made if {*around} <= {*loops})


@st.composite
def _values(
    draw: st.DrawFn, free: str, needed: str, made: tuple[str, ...], depth: int
) -> str:
    """A product of reads, or what has sums in it.

    Args:
        free: the inames that may be read.
        needed: those of them that are read in every term.
        made: the private values that may be read.
        depth: how many sums and additions there may be inside each other.
    """
    left = [iname for iname in SUMMED if iname not in free]
    forms = ["product", "added", "times", *["sum"] * (2 if left else 0)]
    match draw(st.sampled_from(forms)) if depth else "product":
        case "sum":
            iname = draw(st.sampled_from(left))
            inner = _values(free + iname, needed + iname, made, depth - 1)
            return f"sum({iname}, {draw(inner)})"
        case "added":
            terms = [draw(_values(free, needed, made, depth - 1)) for _ in range(2)]
            return f"({draw(st.sampled_from([' + ', ' - '])).join(terms)})"
        case "times":
            inner = draw(_values(free, needed, made, depth - 1))
            return f"{draw(_reads(free, ''))}*{inner}/(3 + {draw(_reads(free, ''))})"
    factors = [draw(_reads(free, axis)) for axis in needed]
    if made:  # most often the last one, which makes a chain
        factors.append(draw(_privates(free, draw(st.sampled_from((*made, made[-1]))))))
    return "*".join(draw(st.permutations(factors)) or [draw(_reads(free, ""))])


@st.composite
def _reads(draw: st.DrawFn, free: str, axis: str) -> str:
    """An entry, or a function of one, that depends on one iname and perhaps another."""
    axes = {*axis, draw(st.sampled_from(free))}
    name = "".join(sorted(axes))
    form = draw(st.sampled_from(FORMS))
    entry = f"a_{name}[{','.join(name)}]"
    return form.format(entry, entry)


@st.composite
def _privates(draw: st.DrawFn, free: str, name: str) -> str:
    """An entry of a private value, most often at an iname."""
    own = name.partition("_")[2]
    alike = [iname for iname in free if EXTENTS[iname] == EXTENTS.get(own)]
    return f"{name}[{draw(st.sampled_from(alike or ['1']))}]" if own else name


def build(text: str) -> lp.TranslationUnit:
    """The kernel; raises whatever Loopy raises."""
    args: list[Any] = [
        lp.GlobalArg(name, np.float64, shape=shape)
        for name, shape in _shapes(text, r"(?:a|out)_[a-z]+").items()
    ]
    args += [
        lp.TemporaryVariable(name, np.float64, shape=shape)
        for name, shape in _shapes(text, r"t\d(?:_[a-z])?").items()
    ]
    args.append(lp.ValueArg("alpha", np.float64))
    loops = sorted({*re.findall(r"\b[eijklmq]\d?\b", text)})
    domains = [f"{{[{iname}]: 0<={iname}<{EXTENTS[iname[0]]}}}" for iname in loops]
    return lp.make_kernel(domains, text, args, lang_version=(2018, 2))


def _shapes(text: str, names: str) -> dict[str, tuple[int, ...]]:
    """Names say which inames their axes belong to."""
    found = sorted({*re.findall(rf"\b{names}\b", text)})
    return {n: tuple(map(EXTENTS.__getitem__, n.partition("_")[2])) for n in found}


def arguments(text: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = _shapes(text, r"(?:a|out)_[a-z]+")
    return {**{n: rng.uniform(-1, 1, s) for n, s in shapes.items()}, "alpha": 1.5}
