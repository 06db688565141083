"""Vectors: stores, through the caches or past them, loads, and transposed squares.

A store to an uncached line reads the line first; a streaming store does not, and leaves
the caches to data that is read again.

Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, "Memory
optimization using non-temporal stores".

Compilers vectorize assignments of single entries only if these are plain copies. If the
entries are functions of others, gcc 12 computes them one by one.

A transpose of n rows takes log2(n) stages. In each of them, rows whose numbers differ
in one bit exchange half of their lanes; for n = 4::

    a0 a1 a2 a3        a0 b0 a2 b2        a0 b0 c0 d0
    b0 b1 b2 b3  bit 1 a1 b1 a3 b3  bit 2 a1 b1 c1 d1
    c0 c1 c2 c3   -->  c0 d0 c2 d2   -->  a2 b2 c2 d2
    d0 d1 d2 d3        c1 d1 c3 d3        a3 b3 c3 d3

Source: Eklundh 1972.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import loopy as lp
import numpy as np
from loopy.symbolic import (
    CoefficientCollector,
    SubstitutionRuleExpander,
    get_dependencies,
)
from pymbolic import primitives as p
from pymbolic import var

from feinsum.transforms.primitives.schedule import (
    Expression,
    Schedule,
    StatementBuilder,
    make_c_statement,
)

ELEMENTS = {8: "double", 4: "float"}
PREAMBLE = (
    "10_feinsum_vector_stores",
    """\
#ifdef feinsum_has_cuda
#define feinsum_store(type, lanes, value, array, place) \\
  for (int feinsum_lane = 0; feinsum_lane < lanes; ++feinsum_lane) \\
    (array)[(place) + feinsum_lane] = value.s[feinsum_lane];
#define feinsum_stream feinsum_store
#elif !defined(__OPENCL_VERSION__) || defined(__clang__)
#ifndef __OPENCL_VERSION__
#include <stddef.h>
#define __global
#endif
#define feinsum_store(type, lanes, value, array, place) \\
  { \\
    typedef type##lanes feinsum_anywhere \\
      __attribute__((aligned(sizeof(type)), may_alias)); \\
    *(__global feinsum_anywhere *) ((array) + (place)) = value; \\
  }
#else
#define feinsum_store(type, lanes, value, array, place) \\
  { vstore##lanes(value, 0, (array) + (place)); }
#endif
#define feinsum_stream_with(stream, type, lanes, value, array, place) \\
  if ((size_t) ((array) + (place)) % sizeof(type##lanes)) \\
    feinsum_store(type, lanes, value, array, place) \\
  else \\
    stream(value, (__global type##lanes *) ((array) + (place)))
#if !defined(feinsum_stream) && defined(__has_builtin)
#if __has_builtin(__builtin_nontemporal_store)
#define feinsum_stream(...) \\
  feinsum_stream_with(__builtin_nontemporal_store, __VA_ARGS__)
#endif
#endif
#if !defined(feinsum_stream) && !defined(__OPENCL_VERSION__) && defined(__SSE2__)
#include <string.h>
#define feinsum_stream_part(size, store, of_register) \\
  for (; n_bytes >= size; n_bytes -= size, from += size, to += size) { \\
    typedef char part_t __attribute__((vector_size(size), aligned(1), may_alias)); \\
    __asm__(store " %1, %0" \\
            : "=m"(*(part_t *) to) : of_register(*(const part_t *) from)); \\
  }
static inline __attribute__((always_inline)) void feinsum_stream_bytes(
    const char *from, char *to, int n_bytes)
{
#ifdef __AVX512F__
  feinsum_stream_part(64, "vmovntdq", "v")
#endif
#ifdef __AVX__
  feinsum_stream_part(32, "vmovntdq", "x")
  feinsum_stream_part(16, "vmovntdq", "x")
#else
  feinsum_stream_part(16, "movntdq", "x")
#endif
  memcpy(to, from, n_bytes);
}
#define feinsum_stream_gnu(value, to) \\
  feinsum_stream_bytes((const char *) &(value), (char *) (to), sizeof(value))
#define feinsum_stream(...) feinsum_stream_with(feinsum_stream_gnu, __VA_ARGS__)
#endif
#ifndef feinsum_stream
#define feinsum_stream feinsum_store
#endif
""",
)
"""For OpenCL C, and for C with GNU extensions, in which gcc has no streaming store.

The instructions are written as assembly: to parse the header of the intrinsics takes
gcc a tenth of a second.
"""


def is_contiguous(schedule: Schedule, row: int, index: str) -> bool:
    """Return whether vectors along ``index`` can store a row's results.

    They can if neighbours along the index are neighbours in the output. A row that adds
    its sum to something is stored entry by entry. So is one that is scaled by a number
    of higher precision, for which C has no product with a vector.
    """
    is_shifted = schedule.is_shifted(schedule.instructions[row])
    scale = get_dependencies(schedule.scales[row])
    if is_shifted or scale & _list_arrays(schedule.kernel):
        return False
    digits = schedule.get_row_dtype(row).itemsize
    numbers = [schedule.kernel.get_var_descriptor(name).dtype for name in scale]
    if any(number.numpy_dtype.itemsize > digits for number in numbers):
        return False
    return _get_strides(schedule, row).get(var(schedule.inames[index])) == 1


def compute_offset(kernel: lp.LoopKernel, target: p.Subscript) -> Expression:
    """Return the offset of an entry in the memory of an argument, in entries."""
    array = find_global_array(kernel, target.aggregate.name)
    strides = [tag.stride for tag in array.dim_tags]
    return p.Sum(tuple(n * i for n, i in zip(strides, target.index_tuple, strict=True)))


def find_global_array(kernel: lp.LoopKernel, name: str) -> Any:
    """Return an array if it is in global memory without an offset; else None."""
    array: Any = {**kernel.arg_dict, **kernel.temporary_variables}.get(name)
    space = getattr(array, "address_space", None)
    return array if space == lp.AddressSpace.GLOBAL and not array.offset else None


def _list_arrays(kernel: lp.LoopKernel) -> frozenset[str]:
    arrays = [arg.name for arg in kernel.args if isinstance(arg, lp.ArrayArg)]
    return frozenset({*arrays, *kernel.temporary_variables})


def _get_strides(schedule: Schedule, row: int) -> dict[Expression, Expression]:
    """Return the stride of each subscript of a row's output; none if it is private."""
    insn = schedule.kernel.id_to_insn[schedule.instructions[row]]
    target = insn.assignee
    if not isinstance(target, p.Subscript):
        return {}
    array = find_global_array(schedule.kernel, target.aggregate.name)
    if array is None or array.dtype.numpy_dtype.kind != "f":
        return {}
    strides = [getattr(tag, "stride", None) for tag in array.dim_tags]
    return dict(zip(target.index_tuple, strides, strict=True))


@dataclass(frozen=True)
class Lines:
    """A value that can be computed for a vector of entries along a loop.

    Attributes:
        value: the value, with substitution rules expanded.
        reads: the array entries that are contiguous along the loop, each once.
    """

    value: Expression
    reads: tuple[p.Subscript, ...]


def find_lines(
    kernel: lp.LoopKernel, value: Expression, along: str, dtype: np.dtype[Any]
) -> Lines | None:
    """Find the vectors to load for the values along a loop; None if there are none.

    The value has to consist of sums, products and quotients of numbers of one dtype,
    and all entries that depend on the loop have to be contiguous along it.
    """
    if dtype.kind != "f" or dtype.itemsize not in ELEMENTS:
        return None
    value = SubstitutionRuleExpander(kernel.substitutions)(value)
    try:
        reads = tuple(dict.fromkeys(_find_reads(kernel, value, along, dtype)))
    except _NotALineError:
        return None
    return Lines(value, reads) if reads else None


class _NotALineError(Exception):
    """A value cannot be computed by vectors along a loop."""


def _find_reads(
    kernel: lp.LoopKernel, value: Expression, along: str, dtype: np.dtype[Any]
) -> Iterator[p.Subscript]:
    """Yield the array entries that depend on a loop, and are contiguous along it.

    Raises:
        _NotALineError: if anything else depends on the loop, or has another dtype.
    """
    if isinstance(value, (p.Sum, p.Product)):
        for child in value.children:
            yield from _find_reads(kernel, child, along, dtype)
    elif isinstance(value, p.Quotient):
        yield from _find_reads(kernel, value.numerator, along, dtype)
        yield from _find_reads(kernel, value.denominator, along, dtype)
    elif isinstance(value, Real):
        if dtype.type(value) != value:
            raise _NotALineError
    elif isinstance(value, p.Subscript) and along in get_dependencies(value):
        _check_line(kernel, value, along, dtype)
        yield value
    elif not _is_number(kernel, value, dtype):
        raise _NotALineError


def _is_number(kernel: lp.LoopKernel, value: Expression, dtype: np.dtype[Any]) -> bool:
    """Return whether a value is a scalar or an array entry of this dtype."""
    named = value.aggregate if isinstance(value, p.Subscript) else value
    if not isinstance(named, p.Variable) or named.name in kernel.all_inames():
        return False
    declared = {**kernel.arg_dict, **kernel.temporary_variables}.get(named.name)
    return declared is not None and declared.dtype.numpy_dtype == dtype


def _check_line(
    kernel: lp.LoopKernel, read: p.Subscript, along: str, dtype: np.dtype[Any]
) -> None:
    array = find_global_array(kernel, getattr(read.aggregate, "name", ""))
    is_plain = (
        array is not None
        and array.dtype.numpy_dtype == dtype
        and all(hasattr(tag, "stride") for tag in array.dim_tags or [None])
    )
    if not is_plain:
        raise _NotALineError
    try:
        steps = CoefficientCollector([along])(compute_offset(kernel, read))
    except RuntimeError as error:  # pymbolic, if it is not linear
        raise _NotALineError from error
    if steps.get(var(along)) != 1:
        raise _NotALineError


def load_vector(
    vector: str, array: str, offset: str, dtype: np.dtype[Any], lanes: int
) -> StatementBuilder:
    """Return the builder of a statement that loads a vector from any offset.

    Args:
        vector: name of the private vector.
        array: name of the array.
        offset: a private scalar that has the value of :func:`compute_offset`.
        dtype: dtype of the entries.
        lanes: entries of the vector.
    """
    element = ELEMENTS[dtype.itemsize]
    return partial(
        make_c_statement,
        f"feinsum_load({element}, {lanes}, {vector}, {array}, {offset});",
        read_variables=frozenset({array, offset}),
        assignees=(var(vector)[(0,)],),
    )


def transpose_square(square: str, dtype: np.dtype[Any], lanes: int) -> StatementBuilder:
    """Return the builder of a statement that transposes a private square of vectors."""
    return partial(
        make_c_statement,
        f"feinsum_transpose_{ELEMENTS[dtype.itemsize]}{lanes}({square});",
        read_variables=frozenset({square}),
        assignees=(var(square)[(0, 0)],),
    )


def with_square_macros(
    schedule: Schedule, dtype: np.dtype[Any], lanes: int
) -> Schedule:
    """Return the kernel with the macros of the two statements above."""
    element = ELEMENTS[dtype.itemsize]
    name = f"11_feinsum_square_{element}{lanes}"
    schedule = schedule.with_preamble(("10_feinsum_load", LOAD))
    return schedule.with_preamble((name, _format_transposition(element, lanes)))


LOAD = """\
#ifdef feinsum_has_cuda
#define feinsum_load(type, lanes, vector, array, place) \\
  for (int feinsum_lane = 0; feinsum_lane < lanes; ++feinsum_lane) \\
    (vector).s[feinsum_lane] = (array)[(place) + feinsum_lane];
#elif !defined(__OPENCL_VERSION__) || defined(__clang__)
#ifndef __OPENCL_VERSION__
#define __global
#endif
#define feinsum_load(type, lanes, vector, array, place) \\
  { \\
    typedef type##lanes feinsum_anywhere \\
      __attribute__((aligned(sizeof(type)), may_alias)); \\
    vector = *(__global const feinsum_anywhere *) ((array) + (place)); \\
  }
#else
#define feinsum_load(type, lanes, vector, array, place) \\
  { vector = vload##lanes(0, (array) + (place)); }
#endif
"""

MASKS = {"double": "long long", "float": "int"}
"""Integers as long as an element, of which old gcc has the mask of a shuffle."""


def _format_transposition(element: str, lanes: int) -> str:
    """Write the macro that transposes a square; each line has a pair of shuffles."""
    name = f"{element}{lanes}"
    lines = "".join(
        f"  feinsum_exchange_{name}({square[0]}, {square[1]}, \\\n"
        f"    ({_format_numbers(low)}), ({_format_numbers(high)})) \\\n"
        for square, low, high in _list_exchanges(lanes)
    )
    return f"""\
#if !defined(feinsum_has_cuda) && (defined(__clang__) || __GNUC__ >= 12)
#define feinsum_shuffle_{name}(...) __builtin_shufflevector(__VA_ARGS__)
#elif !defined(feinsum_has_cuda) && !defined(__OPENCL_VERSION__) && defined(__GNUC__)
typedef {MASKS[element]} feinsum_mask_{name}
  __attribute__((vector_size(sizeof({name}))));
#define feinsum_shuffle_{name}(a, b, ...) \\
  __builtin_shuffle(a, b, (feinsum_mask_{name}) {{__VA_ARGS__}})
#endif
#ifdef feinsum_shuffle_{name}
#define feinsum_all(...) __VA_ARGS__
#define feinsum_both_{name}(...) feinsum_shuffle_{name}(__VA_ARGS__)
#define feinsum_exchange_{name}(i, j, low, high) \\
  {{ \\
    {name} const feinsum_i = feinsum_rows[i], feinsum_j = feinsum_rows[j]; \\
    feinsum_rows[i] = feinsum_both_{name}(feinsum_i, feinsum_j, feinsum_all low); \\
    feinsum_rows[j] = feinsum_both_{name}(feinsum_i, feinsum_j, feinsum_all high); \\
  }}
#define feinsum_transpose_{name}(square) {{ \\
  {name} *const feinsum_rows = square; \\
{lines}}}
#else
#define feinsum_transpose_{name}(square) \\
  for (int feinsum_i = 0; feinsum_i < {lanes}; ++feinsum_i) \\
    for (int feinsum_j = 0; feinsum_j < feinsum_i; ++feinsum_j) {{ \\
      {element} *const feinsum_a = ({element} *) (square); \\
      {element} const feinsum_b = feinsum_a[{lanes} * feinsum_i + feinsum_j]; \\
      feinsum_a[{lanes} * feinsum_i + feinsum_j] = \\
        feinsum_a[{lanes} * feinsum_j + feinsum_i]; \\
      feinsum_a[{lanes} * feinsum_j + feinsum_i] = feinsum_b; \\
    }}
#endif
"""


def _format_numbers(lanes: Sequence[int]) -> str:
    return ", ".join(map(str, lanes))


Exchange = tuple[tuple[int, int], list[int], list[int]]


def _list_exchanges(lanes: int) -> Iterator[Exchange]:
    """Yield pairs of rows, and the entries of both that each of the new rows has.

    Each stage exchanges a bit of the row of an entry with that bit of its lane.

    >>> [*_list_exchanges(2)]
    [((0, 1), [0, 2], [1, 3])]
    """
    bits = [1 << k for k in range(lanes.bit_length() - 1)]
    for bit in bits:
        row_lanes = range(lanes)
        # of ``lanes + k``, the second row has entry k
        low = [lanes + k - bit if k & bit else k for k in row_lanes]
        high = [lanes + k if k & bit else k + bit for k in row_lanes]
        for row in row_lanes:
            if not row & bit:
                yield (row, row + bit), low, high
