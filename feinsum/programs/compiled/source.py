"""C source of a stage: shared loops around, vectors along one loop inside.

All statements run for the same values of the shared loops before the next values, so
that what they pass to each other stays in registers or in the first cache. Vectors lie
along the loop in which most arrays are contiguous: along rows, or along several values
of a shared loop at once. Reductions are of :data:`LANES` partial ones, in an order that
does not depend on the processor. Sums are pairwise: :data:`BLOCK` terms are added one
after the other, and the sums of blocks in a binary tree. So the error of n terms grows
with log n, as that of ``numpy.sum`` does.

Source: Higham 1993, The accuracy of floating point summation (pairwise summation).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from feinsum.errors import ProgramError
from feinsum.ir.expressions import operand_name
from feinsum.ir.reductions import neutral_of
from feinsum.ir.statement import Statement
from feinsum.programs.compiled.expression import FUNCTIONS, PAIRS, Term, c_expression
from feinsum.programs.compiled.loops import Loops

ENTRY = "feinsum_stage"
LANES = {4: 64, 8: 32}
"""Entries processed together, by their bytes: four vectors of AVX-512. Fewer would let
additions wait for each other.
"""
BLOCK = 128
"""Terms of a lane that are added one after the other, as in ``numpy.sum``."""
MOST_LEVELS = 48
"""Of the tree of blocks: more terms than fit into any memory."""
BUILTIN = ("ceil", "copysign", "fabs", "floor", "rint", "sqrt", "trunc")
"""Functions that are instructions."""

_HEAD = """\
#include <stdint.h>
typedef {real} R;
#define INFINITY __builtin_inf()
#ifdef SCALAR_FUNCTIONS
#define VECTORS __attribute__((const))
#else  /* glibc's libmvec has vector functions, with errors up to 4 ULP */
#define VECTORS __attribute__((simd("notinbranch"), const))
#endif
static inline R feinsum_fmax(R a, R b) {{ return a > b || b != b ? a : b; }}
static inline R feinsum_fmin(R a, R b) {{ return a < b || b != b ? a : b; }}
static inline R feinsum_maximum(R a, R b) {{ return a > b || a != a ? a : b; }}
static inline R feinsum_minimum(R a, R b) {{ return a < b || a != a ? a : b; }}
static inline R feinsum_square(R a) {{ return a * a; }}
"""
_PAIRWISE = """\
/* Level k has the sum of 2^k blocks in each lane where bit k of n, the number of full
   blocks, is set. A new block is added to them as 1 is to n. */
static inline void feinsum_carry(R *sums, R *levels, int64_t n, const int lanes) {
  for (; n & 1; n >>= 1, levels += lanes)
    for (int lane = 0; lane < lanes; ++lane) sums[lane] += levels[lane];
  for (int lane = 0; lane < lanes; ++lane)
    levels[lane] = sums[lane], sums[lane] = 0;
}
static inline void feinsum_collect(R *sums, R *levels, int64_t n, const int lanes) {
  for (; n; n >>= 1, levels += lanes)
    if (n & 1)
      for (int lane = 0; lane < lanes; ++lane) sums[lane] += levels[lane];
}
"""
_ENTRY = (
    '__attribute__((visibility("default")))',
    f"void {ENTRY}(void *const *arrays, const int64_t *n, const int64_t *first,",
    "    const int64_t *strides, R *scratch) {",
)
_REDUCTIONS = {
    "sum": "a + b",
    "prod": "a * b",
    "max": "maximum(a, b)",
    "min": "minimum(a, b)",
}


@dataclass(frozen=True)
class Source:
    """The source of a stage.

    Attributes:
        dtype: of all arrays.
        vector: the loop along which vectors lie.
        contiguous: for each access, whether neighbours along it are neighbours in
            memory.
    """

    loops: Loops
    dtype: np.dtype[np.generic]
    vector: int
    contiguous: tuple[bool, ...]

    @property
    def is_shared(self) -> bool:
        """Whether vectors lie along a loop that all statements share."""
        return self.vector < self.loops.n_cuts

    @property
    def lanes(self) -> int:
        return LANES[self.dtype.itemsize]

    @cached_property
    def held(self) -> Mapping[str, tuple[int, ...]]:
        """The loops of each result that later statements of the stage read."""
        statements = self.loops.stage.statements
        read = {name for one in statements for name in one.operands}
        return {
            one.result: self.in_memory(self.loops.inner(one))
            for one in statements
            if one.result in read
        }

    def in_memory(self, loops: Iterable[int]) -> tuple[int, ...]:
        """The order of loops in what statements pass to each other."""
        return tuple(sorted(loops, key=lambda k: (k == self.vector, k)))

    def scratch_entries(self, extents: Sequence[int]) -> int:
        """Entries of memory for what statements pass to each other."""
        each = self.lanes if self.is_shared else 1
        return sum(
            each * prod(extents[k] for k in axes) for axes in self.held.values() if axes
        )

    def text(self) -> str:
        """The source.

        Raises:
            ProgramError: if a body or reduction has no equivalent in C.
        """
        return "\n".join(_Writer(self).lines())


class _Writer:
    def __init__(self, source: Source) -> None:
        self.source, self.loops = source, source.loops
        self.statements = source.loops.stage.statements
        self.at = {
            (access.result, access.position): k
            for k, access in enumerate(source.loops.accesses)
        }

    def lines(self) -> Iterator[str]:
        body = [*self._scalars()]
        body += [line for one in self.statements for line in self._statement(one)]
        if self.source.is_shared:
            body = self._in_blocks(body)
        for k in reversed(range(self.loops.n_cuts)):
            body = body if k == self.source.vector else self._loop(k, body)
        lines = [*self._combinations(), *_ENTRY, *self._locals(), *body, "}"]
        yield from self._declarations({*re.findall(r"\w+(?=\()", "\n".join(lines))})
        yield from lines

    def _declarations(self, called: AbstractSet[str]) -> Iterator[str]:
        suffix = "f" if self.source.dtype.itemsize == 4 else ""
        yield _HEAD.format(real="float" if suffix else "double")
        if "feinsum_carry" in called:
            yield _PAIRWISE
        for name in sorted(called & FUNCTIONS):
            if name in BUILTIN:
                yield f"#define {name} __builtin_{name}{suffix}"
            else:
                yield f"#define {name} {name}{suffix}" if suffix else ""
                yield f"VECTORS R {name}({'R, R' if name in PAIRS else 'R'});"

    def _combinations(self) -> Iterator[str]:
        for k, one in enumerate(self.statements):
            if one.reduced_indices:
                joined = self._joined(one)
                yield f"static inline R combine_{k}(R a, R b) {{ return {joined}; }}"

    def _joined(self, one: Statement) -> str:
        known = _REDUCTIONS.get(one.reduction)
        if known is None:  # the neutral element of others is only sampled
            raise ProgramError(f"{one.reduction!r} has no equivalent in C")
        names = {name: Term(name, "real") for name in "ab"}
        return c_expression(known, names, self.source.dtype.itemsize)

    def _locals(self) -> Iterator[str]:
        for k, access in enumerate(self.loops.accesses):
            const = "" if access.position is None else "const "
            yield f"  {const}R *const p{k} = arrays[{k}];"
        at = 0
        for k, access in enumerate(self.loops.accesses):
            for loop in dict.fromkeys(access.axes):
                yield f"  const int64_t s{k}_{loop} = strides[{at}];"
                at += 1
        offset = "0"
        for name, axes in self.source.held.items():
            if axes:
                yield f"  R *const held_{self._number(name)} = scratch + {offset};"
                sizes = [f"n[{k}]" for k in axes]
                sizes += [str(self.source.lanes)] if self.source.is_shared else []
                offset += " + " + " * ".join(sizes)

    def _scalars(self) -> Iterator[str]:
        """What statements pass to each other as one number, or one in each lane."""
        lanes = f"[{self.source.lanes}]" if self.source.is_shared else ""
        for name, axes in self.source.held.items():
            if not axes:
                yield f"R held_{self._number(name)}{lanes};"

    def _number(self, name: str) -> int:
        return next(k for k, one in enumerate(self.statements) if one.result == name)

    def _statement(self, one: Statement) -> list[str]:
        """One statement, within the shared loops."""
        lines = self._sum(one) if one.reduced_indices else self._map(one)
        for k in reversed(self.loops.inner(one)):
            lines = lines if k == self.source.vector else self._loop(k, lines)
        return ["{", *lines, "}"]

    def _map(self, one: Statement) -> list[str]:
        """At one value of all loops but that of the vectors."""
        lines, vector = self._stored(one, self._value(one)), self.source.vector
        if self.source.is_shared:
            return _lane_loop("n_lanes", lines)
        if vector in self.loops.inner(one):
            return self._loop(vector, lines, is_vector=True)
        return lines

    def _sum(self, one: Statement) -> list[str]:
        """Likewise."""
        reduced, vector = self.loops.reduced(one), self.source.vector
        rest = [k for k in reduced if k != vector]
        if vector in reduced:
            return self._along_sum(one, rest)
        if self.source.is_shared:
            return self._lanes_of_sums(one, rest)
        if vector in self.loops.inner(one):
            return self._in_blocks(self._lanes_of_sums(one, rest))
        return self._scalar_sum(one, rest)

    def _scalar_sum(self, one: Statement, rest: Sequence[int]) -> list[str]:
        lines = self._step(one, "sums[0]", 1)
        for k in reversed(rest):
            lines = self._loop(k, lines)
        return self._reduced(one, lines, 1, self._stored(one, "sums[0]"))

    def _lanes_of_sums(self, one: Statement, rest: Sequence[int]) -> list[str]:
        """A sum in each lane."""
        lines = self._step(one, "sums[lane]", self.source.lanes, "n_lanes")
        for k in reversed(rest):
            lines = self._loop(k, lines)
        stored = _lane_loop("n_lanes", self._stored(one, "sums[lane]"))
        return self._reduced(one, lines, self.source.lanes, stored)

    def _along_sum(self, one: Statement, rest: Sequence[int]) -> list[str]:
        """Lanes take turns along the sum, and are combined at its end."""
        name = f"combine_{self._number(one.result)}"
        vector, lanes = self.source.vector, self.source.lanes
        lines = [
            "int64_t block = 0;",
            f"for (; block + {lanes} <= n[{vector}]; block += {lanes}) {{",
            *self._step(one, "sums[lane]", lanes, str(lanes)),
            "}",
            *self._step(one, "sums[lane]", lanes, f"n[{vector}] - block"),
        ]
        lines = ["{", *lines, "}"]
        for k in reversed(rest):
            lines = self._loop(k, lines)
        halves = [
            f"for (int half = {lanes // 2}; half; half /= 2)",
            "  for (int lane = 0; lane < half; ++lane)",
            f"    sums[lane] = {name}(sums[lane], sums[lane + half]);",
        ]
        stored = self._stored(one, "sums[0]")
        return self._reduced(one, lines, lanes, [*halves, *stored])

    def _step(
        self, one: Statement, target: str, lanes: int, n_lanes: str | None = None
    ) -> list[str]:
        """Combine one value with the target, in each lane if there are several."""
        name = f"combine_{self._number(one.result)}"
        lines = [f"{target} = {name}({target}, {self._value(one)});"]
        if n_lanes is not None:
            lines = _lane_loop(n_lanes, lines)
        if one.reduction != "sum":
            return lines
        return [
            *lines,
            f"if (++n_terms == {BLOCK}) {{",
            f"feinsum_carry(sums, levels, n_blocks++, {lanes});",
            "n_terms = 0;",
            "}",
        ]

    def _reduced(
        self, one: Statement, loops: Sequence[str], lanes: int, stored: Sequence[str]
    ) -> list[str]:
        """The loops of a reduction, between its start and what is done with it."""
        lines = [*self._empty_sums(one, lanes), *loops]
        if one.reduction == "sum":
            state = "int64_t n_blocks = 0; int n_terms = 0;"
            levels = f"R levels[{MOST_LEVELS * lanes}];"
            lines = [state, levels, *lines]
            lines.append(f"feinsum_collect(sums, levels, n_blocks, {lanes});")
        return [*lines, *stored]

    def _empty_sums(self, one: Statement, lanes: int) -> list[str]:
        return [
            f"R sums[{lanes}];",
            *_lane_loop(str(lanes), [f"sums[lane] = {self._neutral(one)};"]),
        ]

    def _in_blocks(self, lines: Sequence[str]) -> list[str]:
        vector, lanes = self.source.vector, self.source.lanes
        left = f"n[{vector}] - block"
        return [
            f"for (int64_t block = 0; block < n[{vector}]; block += {lanes}) {{",
            f"const int n_lanes = {left} < {lanes} ? {left} : {lanes};",
            *lines,
            "}",
        ]

    def _loop(self, k: int, lines: Sequence[str], is_vector: bool = False) -> list[str]:
        head = ["#pragma omp simd"] if is_vector else []
        return [*head, f"for (int64_t i{k} = 0; i{k} < n[{k}]; ++i{k}) {{", *lines, "}"]

    def _value(self, one: Statement) -> str:
        names = {i: Term(f"(first[{k}] + {self._index(one, k)})", "index")
                 for i, k in self.loops.numbers[one.result].items()}  # fmt: skip
        for k, (name, term) in enumerate(zip(one.operands, one.inputs, strict=True)):
            axes = self.loops.axes(one, term)
            at = self.at.get((one.result, k))
            text = self._held(one, name, axes) if at is None else self._read(one, at)
            names[operand_name(k)] = Term(text, "real")
        return c_expression(one.body, names, self.source.dtype.itemsize)

    def _index(self, one: Statement, k: int) -> str:
        """The value of a loop, which is that of a lane where there are lanes."""
        if k != self.source.vector:
            return f"i{k}"
        is_map = not (self.source.is_shared or self.loops.reduced(one))
        return f"i{k}" if is_map else "(block + lane)"

    def _read(self, one: Statement, at: int) -> str:
        access = self.loops.accesses[at]
        places = [
            self._index(one, k) if self._is_next(at, k)
            else f"{self._index(one, k)} * s{at}_{k}"
            for k in dict.fromkeys(access.axes)
        ]  # fmt: skip
        return f"p{at}[{' + '.join(places) or '0'}]"

    def _is_next(self, at: int, k: int) -> bool:
        return k == self.source.vector and self.source.contiguous[at]

    def _held(self, one: Statement, name: str, axes: Sequence[int]) -> str:
        number = self._number(name)
        if not self.source.held[name]:
            return f"held_{number}" + ("[lane]" if self.source.is_shared else "")
        place = "0"
        inner = [k for k in axes if k >= self.loops.n_cuts]
        for k in self.source.in_memory(inner):
            index = self._index(one, k)
            place = index if place == "0" else f"({place}) * n[{k}] + {index}"
        if self.source.is_shared:
            place = f"({place}) * {self.source.lanes} + lane"
        return f"held_{number}[{place}]"

    def _stored(self, one: Statement, value: str) -> list[str]:
        targets = []
        axes = self.loops.axes(one, one.output)
        if one.result in self.source.held:
            targets.append(self._held(one, one.result, axes))
        if (at := self.at.get((one.result, None))) is not None:
            targets.append(self._read(one, at))
        return [f"{' = '.join([*targets, value])};"]

    def _neutral(self, one: Statement) -> str:
        value = neutral_of(one.reduction, self.source.dtype)
        if np.isinf(value):
            return "-INFINITY" if value < 0 else "INFINITY"
        return repr(float(value))


def _lane_loop(n: str, lines: Sequence[str]) -> list[str]:
    return [
        "#pragma omp simd",
        f"for (int lane = 0; lane < {n}; ++lane) {{",
        *lines,
        "}",
    ]
