"""Random einsums as loops and sums over arrays in any layout.

Axes in any order, flat or not; loops whole or split; extents that are numbers or
computed from a parameter; sums, loops that add, and private values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import loopy as lp
import numpy as np
from hypothesis import strategies as st
from pymbolic import parse
from pymbolic.mapper.evaluator import evaluate

__all__ = ["Layout", "layouts"]

N = 3
EINSUMS = [
    "ij,ej->ei", "e,ij,ej->ei", "ei->ei", "ei,ei->ei", "ij,j->i", "eij,ej->ei",
    "i,j->ij", "ij->j", "ij,jq->iq", "qij,ej,eq->ei", "j,j->", "ii,ij->j", "j->ij",
    "e->ei", "ej->ei",
]  # fmt: skip
LONG = ["n", "2*n", "n + 1", "2*n + 2", "4"]
SHORT = ["2", "3", "4", "6"]
READS = [
    "{0}", "{0}", "{0}", "2*{0}", "({0} + 1)", "{0}*{0}", "({0} if {index} > 0 else 0)",
    "({0} if abs({0}) > 0.5 else 2*{0})", "(1 if not ({index} == 1) else {0})",
    "exp({0})",
]  # fmt: skip
SCALES = ["", "", "2*", "-", "alpha*", "0.1*"]
SHIFTS = ["", "", "1 + ", "out + ", "alpha + "]


@dataclass(frozen=True)
class Layout:
    """A kernel and what it is run with.

    Attributes:
        shapes: of the arrays, as text.
    """

    domains: tuple[str, ...]
    text: str
    shapes: Mapping[str, str]
    dtype: str

    def __str__(self) -> str:
        return f"{self.domains}\n{self.text}\n{dict(self.shapes)} {self.dtype}"

    def unit(self) -> lp.TranslationUnit:
        """Raises whatever Loopy raises."""
        args: list[Any] = [
            lp.GlobalArg(name, np.dtype(self.dtype), shape=shape or ())
            for name, shape in self.shapes.items()
        ]
        args += [lp.ValueArg("alpha", np.dtype(self.dtype)), lp.ValueArg("n", np.int32)]
        return lp.make_kernel(
            list(self.domains), self.text, args, lang_version=(2018, 2)
        )

    def arguments(self) -> dict[str, Any]:
        rng = np.random.default_rng(0)
        arrays: dict[str, Any] = {}
        for name, shape in self.shapes.items():
            extents = evaluate(parse(f"({shape},)"), {"n": N}) if shape else ()
            values = rng.uniform(-1, 1, extents)
            if self.dtype == "<c16":
                values = values + 1j * rng.uniform(-1, 1, extents)
            arrays[name] = np.asarray(values, self.dtype)
        return {**arrays, "n": N, "alpha": np.dtype(self.dtype).type(1.5)}


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """A kernel of one einsum; some are no kernel, and some are refused."""
    terms, output = draw(st.sampled_from(EINSUMS)).split("->")
    extents = {
        index: draw(st.sampled_from(LONG if index == "e" else SHORT))
        for index in sorted(set(f"{terms}{output}") - {","})
    }
    writer = _Writer(draw, extents)
    reads = [writer.read(f"a{k}", term) for k, term in enumerate(terms.split(","))]
    target = writer.access("out", output)
    summed = [index for index in extents if index not in output]
    lines = writer.lines(target, "*".join(reads), output, summed)
    dtype = draw(st.sampled_from(["<f8", "<f8", "<f8", "<f4", "<c16"]))
    return Layout(writer.domains(), "\n".join(lines), writer.shapes, dtype)


class _Writer:
    """Writes accesses, and collects the loops and the shapes that they need."""

    def __init__(self, draw: st.DrawFn, extents: dict[str, str]) -> None:
        self.draw, self.extents = draw, extents
        self.shapes: dict[str, str] = {}
        self.loops = {
            index: self._split(index) if self._is_even(extent) and self._rarely() else
            {index: extent}
            for index, extent in extents.items()
        }  # fmt: skip

    def _rarely(self) -> bool:
        return self.draw(st.integers(0, 3)) == 0

    @staticmethod
    def _is_even(extent: str) -> bool:
        return extent in ("2*n", "4", "6")

    def _split(self, index: str) -> dict[str, str]:
        outer = (
            "n" if self.extents[index] == "2*n" else str(int(self.extents[index]) // 2)
        )
        return {f"{index}_o": outer, f"{index}_i": "2"}

    def position(self, index: str) -> str:
        loops = [*self.loops[index]]
        return index if len(loops) == 1 else f"2*{loops[0]} + {loops[1]}"

    def inames(self, indices: Any) -> list[str]:
        return [iname for index in indices for iname in self.loops[index]]

    def access(self, name: str, term: str) -> str:
        """An entry of an array of any layout."""
        axes = self.draw(st.permutations([*term]))
        extents = [self.extents[index] for index in axes]
        places = [self.position(index) for index in axes]
        if not axes:
            self.shapes[name] = "1"
            return f"{name}[0]"
        if len(axes) > 1 and self._rarely():
            self.shapes[name] = "*".join(f"({extent})" for extent in extents)
            steps = [
                "*".join(f"({factor})" for factor in (place, *extents[k + 1 :]))
                for k, place in enumerate(places)
            ]
            return f"{name}[{' + '.join(steps)}]"
        self.shapes[name] = ", ".join(extents)
        return f"{name}[{', '.join(places)}]"

    def read(self, name: str, term: str) -> str:
        """A factor: an entry, or a function of it."""
        entry = self.access(name, term)
        form = self.draw(st.sampled_from(READS)) if self._rarely() else "{}"
        index = f"({self.position(term[0])})" if term else "1"
        return form.format(entry, index=index)

    def lines(
        self, target: str, product: str, output: str, summed: list[str]
    ) -> list[str]:
        """A sum, a loop that adds, or one by way of a private value."""
        scale = self.draw(st.sampled_from(SCALES))
        shift = self.draw(st.sampled_from(SHIFTS)).replace("out", target)
        outer, inner = self.inames(output), self.inames(summed)
        free, every = ":".join(outer), ":".join([*outer, *inner])
        total = f"sum([{', '.join(inner)}], {product})" if inner else product
        kind = self.draw(
            st.sampled_from(["sum", "sum", "sum", "loop", "zero", "private"])
        )
        match kind:
            case "loop":
                return [f"{target} = {target} + {scale}{product} {{inames={every}}}"]
            case "zero":
                added = f"{target} + {scale}{product}"
                return [
                    f"{target} = 0 {{id=zero,inames={free}}}",
                    f"{target} = {added} {{inames={every},dep=zero}}",
                ]
            case "private":
                return [
                    f"<> t = {total} {{id=t,inames={free}}}",
                    f"{target} = {shift}{scale}t {{inames={free},dep=t}}",
                ]
        return [f"{target} = {shift}{scale}{total} {{inames={free}}}"]

    def domains(self) -> tuple[str, ...]:
        """One domain for all inames, or one for each."""
        bounds = {i: n for loops in self.loops.values() for i, n in loops.items()}
        is_one = self.draw(st.booleans())
        groups = [[*bounds]] if is_one else [[iname] for iname in bounds]
        return tuple(
            ("[n] -> " if re.search("n", "".join(bounds[i] for i in group)) else "")
            + f"{{ [{', '.join(group)}] : "
            + " and ".join(f"0 <= {i} < {bounds[i]}" for i in group)
            + " }"
            for group in groups
        )
