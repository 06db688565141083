"""C source of a stage: shared loops outside, vectors along one loop inside.

All statements run for one value of the shared loops before the next value, so that
intermediate results stay in registers or in the first cache. Vectors lie along the loop
in which most arrays are contiguous: along rows, or along several values of a shared
loop. For ``top[s] = max x[s,t]; e[s,t] = exp(x[s,t] - top[s])``, with s shared::

    for s:
        top = -INFINITY in each lane;  for blocks of t: top = max(top, x[s, t lanes])
        combine the lanes of top
        for t, in vectors: e[s,t] = exp(x[s,t] - top)

A reduction computes :data:`LANES` partial results, so its order does not depend on the
processor. Sums are pairwise: :data:`BLOCK` terms are added one after the other, and the
sums of blocks in a binary tree. So the error of n terms grows with log n, as that of
``numpy.sum`` does.

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
from feinsum.ir.expressions import get_operand_name
from feinsum.ir.reductions import find_neutral
from feinsum.ir.statement import Statement
from feinsum.programs.compiled.expression import (
    FUNCTIONS,
    PAIRS,
    CExpression,
    convert_to_c,
)
from feinsum.programs.stages import StageLoops

ENTRY = "feinsum_stage"
LANES = {4: 64, 8: 32}
"""Number of entries processed together, by their bytes.

These are four vectors of AVX-512: with fewer, additions would wait for each other.
"""

BLOCK = 128
"""Terms of a lane that are added one after the other, as in ``numpy.sum``."""
MAX_LEVELS = 48
"""Levels of the tree of blocks: enough for all terms that fit into memory."""

BUILTIN = ("ceil", "copysign", "fabs", "floor", "rint", "sqrt", "trunc")
"""Functions that compilers translate to instructions."""

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
class StageSource:
    """The source of a stage.

    Attributes:
        loops: the loops of the stage.
        dtype: dtype of all arrays.
        vector: the loop along which vectors lie.
        contiguous: for each access, whether its stride along that loop is one.
    """

    loops: StageLoops
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
    def passed(self) -> Mapping[str, tuple[int, ...]]:
        """The loops of each result that later statements of the stage read."""
        read = {name for statement in self.statements for name in statement.operands}
        return {
            statement.result: self.order_loops(self.loops.inner(statement))
            for statement in self.statements
            if statement.result in read
        }

    def order_loops(self, loops: Iterable[int]) -> tuple[int, ...]:
        """Return the order of loops in an intermediate result."""
        # the loop of the vectors comes last, so that it is contiguous
        return tuple(sorted(loops, key=lambda k: (k == self.vector, k)))

    def count_scratch_entries(self, extents: Sequence[int]) -> int:
        """Return the number of entries of all intermediate results in memory."""
        n_copies = self.lanes if self.is_shared else 1
        return sum(
            n_copies * prod(extents[k] for k in axes)
            for axes in self.passed.values()
            if axes
        )

    @property
    def statements(self) -> tuple[Statement, ...]:
        return self.loops.stage.statements

    @cached_property
    def at(self) -> Mapping[tuple[str, int | None], int]:
        """The number of each access, by result and position of the operand."""
        accesses = enumerate(self.loops.accesses)
        return {(access.result, access.position): k for k, access in accesses}

    def text(self) -> str:
        """Return the source.

        Raises:
            ProgramError: if a body or reduction has no equivalent in C.
        """
        return "\n".join(self._list_lines())

    def _list_lines(self) -> Iterator[str]:
        # within the shared loops, before all statements
        body = [*self._declare_scalars()]
        body += [
            line
            for statement in self.statements
            for line in self._write_statement(statement)
        ]
        if self.is_shared:
            body = self._wrap_in_blocks(body)
        # the loop of the vectors is the one over blocks of lanes
        body = self._write_loops(range(self.loops.n_cuts), body)
        lines = [
            *self._write_combinations(),
            *_ENTRY,
            *self._declare_locals(),
            *body,
            "}",
        ]
        yield from self._declare_functions(
            {*re.findall(r"\w+(?=\()", "\n".join(lines))}
        )
        yield from lines

    def _declare_functions(self, called: AbstractSet[str]) -> Iterator[str]:
        suffix = "f" if self.dtype.itemsize == 4 else ""
        yield _HEAD.format(real="float" if suffix else "double")
        if "feinsum_carry" in called:
            yield _PAIRWISE
        # declared here: <math.h> has vector variants only with -ffast-math
        for name in sorted(called & FUNCTIONS):
            if name in BUILTIN:
                yield f"#define {name} __builtin_{name}{suffix}"
            else:
                yield f"#define {name} {name}{suffix}" if suffix else ""
                yield f"VECTORS R {name}({'R, R' if name in PAIRS else 'R'});"

    def _write_combinations(self) -> Iterator[str]:
        for k, statement in enumerate(self.statements):
            if statement.reduced_indices:
                joined = self._write_joined(statement)
                yield f"static inline R combine_{k}(R a, R b) {{ return {joined}; }}"

    def _write_joined(self, statement: Statement) -> str:
        expression = _REDUCTIONS.get(statement.reduction)
        if expression is None:  # the neutral element of others is only sampled
            raise ProgramError(f"{statement.reduction!r} has no equivalent in C")
        names = {name: CExpression(name, "real") for name in "ab"}
        return convert_to_c(expression, names, self.dtype.itemsize)

    def _declare_locals(self) -> Iterator[str]:
        for k, access in enumerate(self.loops.accesses):
            const = "" if access.position is None else "const "
            yield f"  {const}R *const p{k} = arrays[{k}];"
        position = 0
        for k, access in enumerate(self.loops.accesses):
            for loop in dict.fromkeys(access.axes):
                yield f"  const int64_t s{k}_{loop} = strides[{position}];"
                position += 1
        offset = "0"
        for name, axes in self.passed.items():
            if axes:
                yield f"  R *const held_{self._find_number(name)} = scratch + {offset};"
                sizes = [f"n[{k}]" for k in axes]
                sizes += [str(self.lanes)] if self.is_shared else []
                offset += " + " + " * ".join(sizes)

    def _declare_scalars(self) -> Iterator[str]:
        """Declare scalar intermediate results, one for each lane."""
        lanes = f"[{self.lanes}]" if self.is_shared else ""
        for name, axes in self.passed.items():
            if not axes:
                yield f"R held_{self._find_number(name)}{lanes};"

    def _find_number(self, name: str) -> int:
        return next(
            k for k, statement in enumerate(self.statements) if statement.result == name
        )

    def _write_statement(self, statement: Statement) -> list[str]:
        """Write one statement, within the shared loops."""
        lines = (
            self._write_sum(statement)
            if statement.reduced_indices
            else self._write_map(statement)
        )
        return ["{", *self._write_loops(self.loops.inner(statement), lines), "}"]

    def _write_map(self, statement: Statement) -> list[str]:
        """Write a map, at one value of all loops but that of the vectors."""
        lines = self._write_stored(statement, self._write_value(statement))
        if self.is_shared:
            return _write_lane_loop("n_lanes", lines)
        if self.vector in self.loops.inner(statement):
            return self._write_loop(self.vector, lines, is_vector=True)
        return lines

    def _write_sum(self, statement: Statement) -> list[str]:
        """Write a reduction, at one value of all loops but that of the vectors."""
        if self.vector in self.loops.reduced(statement):
            return self._write_along_sum(statement)
        if self.is_shared:
            return self._write_lanes_of_sums(statement)
        if self.vector in self.loops.inner(statement):
            return self._wrap_in_blocks(self._write_lanes_of_sums(statement))
        lines = self._write_step(statement, "sums[0]", 1)
        stored = self._write_stored(statement, "sums[0]")
        return self._write_reduction(statement, lines, 1, stored)

    def _write_lanes_of_sums(self, statement: Statement) -> list[str]:
        """Write a reduction with one result in each lane."""
        lines = self._write_step(statement, "sums[lane]", self.lanes, "n_lanes")
        stored = _write_lane_loop(
            "n_lanes", self._write_stored(statement, "sums[lane]")
        )
        return self._write_reduction(statement, lines, self.lanes, stored)

    def _write_along_sum(self, statement: Statement) -> list[str]:
        """Write a reduction along the vectors; lanes are combined at its end."""
        name = f"combine_{self._find_number(statement.result)}"
        vector, lanes = self.vector, self.lanes
        # whole blocks have a constant trip count, which compilers unroll
        lines = [
            "int64_t block = 0;",
            f"for (; block + {lanes} <= n[{vector}]; block += {lanes}) {{",
            *self._write_step(statement, "sums[lane]", lanes, str(lanes)),
            "}",
            *self._write_step(statement, "sums[lane]", lanes, f"n[{vector}] - block"),
        ]
        lines = ["{", *lines, "}"]
        halves = [
            f"for (int half = {lanes // 2}; half; half /= 2)",
            "  for (int lane = 0; lane < half; ++lane)",
            f"    sums[lane] = {name}(sums[lane], sums[lane + half]);",
        ]
        stored = self._write_stored(statement, "sums[0]")
        return self._write_reduction(statement, lines, lanes, [*halves, *stored])

    def _write_step(
        self, statement: Statement, target: str, lanes: int, n_lanes: str | None = None
    ) -> list[str]:
        """Combine one value with the target, in each lane if there are several."""
        name = f"combine_{self._find_number(statement.result)}"
        lines = [f"{target} = {name}({target}, {self._write_value(statement)});"]
        if n_lanes is not None:
            lines = _write_lane_loop(n_lanes, lines)
        if statement.reduction != "sum":
            return lines
        return [
            *lines,
            f"if (++n_terms == {BLOCK}) {{",
            f"feinsum_carry(sums, levels, n_blocks++, {lanes});",
            "n_terms = 0;",
            "}",
        ]

    def _write_reduction(
        self, statement: Statement, step: list[str], lanes: int, stored: Sequence[str]
    ) -> list[str]:
        """Write the loops around the step of a reduction, its start and its use."""
        loops = self._write_loops(self.loops.reduced(statement), step)
        empty = f"sums[lane] = {self._write_neutral(statement)};"
        lines = [f"R sums[{lanes}];", *_write_lane_loop(str(lanes), [empty]), *loops]
        # max and min are exact, and a product has as many rounding errors in any order
        if statement.reduction == "sum":
            state = "int64_t n_blocks = 0; int n_terms = 0;"
            levels = f"R levels[{MAX_LEVELS * lanes}];"
            lines = [state, levels, *lines]
            lines.append(f"feinsum_collect(sums, levels, n_blocks, {lanes});")
        return [*lines, *stored]

    def _wrap_in_blocks(self, lines: Sequence[str]) -> list[str]:
        vector, lanes = self.vector, self.lanes
        n_left = f"n[{vector}] - block"
        return [
            f"for (int64_t block = 0; block < n[{vector}]; block += {lanes}) {{",
            f"const int n_lanes = {n_left} < {lanes} ? {n_left} : {lanes};",
            *lines,
            "}",
        ]

    def _write_loops(self, loops: Sequence[int], lines: list[str]) -> list[str]:
        """Write loops, but not that of the vectors, which is written on its own."""
        for k in reversed(loops):
            lines = lines if k == self.vector else self._write_loop(k, lines)
        return lines

    def _write_loop(
        self, k: int, lines: Sequence[str], is_vector: bool = False
    ) -> list[str]:
        head = ["#pragma omp simd"] if is_vector else []
        return [*head, f"for (int64_t i{k} = 0; i{k} < n[{k}]; ++i{k}) {{", *lines, "}"]

    def _write_value(self, statement: Statement) -> str:
        names = {
            i: CExpression(f"(first[{k}] + {self._write_index(statement, k)})", "index")
            for i, k in self.loops.numbers[statement.result].items()
        }
        for k, (name, term) in enumerate(statement.accesses):
            axes = self.loops.axes(statement, term)
            access_number = self.at.get((statement.result, k))
            text = (
                self._write_passed(statement, name, axes)
                if access_number is None
                else self._write_read(statement, access_number)
            )
            names[get_operand_name(k)] = CExpression(text, "real")
        return convert_to_c(statement.body, names, self.dtype.itemsize)

    def _write_index(self, statement: Statement, k: int) -> str:
        """Return the value of a loop; along lanes, that of the lane."""
        if k != self.vector:
            return f"i{k}"
        is_map = not (self.is_shared or self.loops.reduced(statement))
        return f"i{k}" if is_map else "(block + lane)"

    def _write_read(self, statement: Statement, number: int) -> str:
        access = self.loops.accesses[number]
        subscripts = []
        for k in dict.fromkeys(access.axes):
            index = self._write_index(statement, k)
            is_next = k == self.vector and self.contiguous[number]
            subscripts.append(index if is_next else f"{index} * s{number}_{k}")
        return f"p{number}[{' + '.join(subscripts) or '0'}]"

    def _write_passed(
        self, statement: Statement, name: str, axes: Sequence[int]
    ) -> str:
        number = self._find_number(name)
        if not self.passed[name]:
            return f"held_{number}" + ("[lane]" if self.is_shared else "")
        position = "0"
        inner = [k for k in axes if k >= self.loops.n_cuts]
        for k in self.order_loops(inner):
            index = self._write_index(statement, k)
            position = index if position == "0" else f"({position}) * n[{k}] + {index}"
        if self.is_shared:
            position = f"({position}) * {self.lanes} + lane"
        return f"held_{number}[{position}]"

    def _write_stored(self, statement: Statement, value: str) -> list[str]:
        targets = []
        axes = self.loops.axes(statement, statement.output)
        if statement.result in self.passed:
            targets.append(self._write_passed(statement, statement.result, axes))
        if (number := self.at.get((statement.result, None))) is not None:
            targets.append(self._write_read(statement, number))
        return [f"{' = '.join([*targets, value])};"]

    def _write_neutral(self, statement: Statement) -> str:
        value = find_neutral(statement.reduction, self.dtype)
        # C has no literal for infinity
        if np.isinf(value):
            return "-INFINITY" if value < 0 else "INFINITY"
        return repr(float(value))


def _write_lane_loop(n: str, lines: Sequence[str]) -> list[str]:
    return [
        "#pragma omp simd",
        f"for (int lane = 0; lane < {n}; ++lane) {{",
        *lines,
        "}",
    ]
