"""Stores of whole vectors, through the caches or past them.

A store to an uncached line reads the line first; a streaming store does not, and leaves
the caches to data that is read again.

Source: Intel 64 and IA-32 Architectures Optimization Reference Manual, "Memory
optimization using non-temporal stores".
"""

from __future__ import annotations

from typing import Any

import loopy as lp
from loopy.symbolic import get_dependencies
from pymbolic import primitives as p
from pymbolic import var

from feinsum.transforms.primitives.schedule import Expression, Schedule

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


def make_vector_store(
    kernel: lp.LoopKernel,
    store: lp.Assignment,
    lanes: int,
    offset: str,
    *,
    is_streamed: bool,
) -> lp.CInstruction:
    """Make a statement that stores a private vector at the entry of its first lane.

    Rewrite::

        out[i,4*j] = vector

        feinsum_store(double, 4, vector, out, place);

    The kernel needs the macros: see :func:`with_store_macros`.

    Args:
        kernel: the kernel of the statement.
        store: an assignment of the vector to an entry.
        lanes: entries of the vector.
        offset: a private scalar that has the value of :func:`compute_offset`.
        is_streamed: whether it bypasses the caches, if the vector is aligned there.
    """
    target, vector = store.assignee, store.expression.name
    array = find_global_array(kernel, target.aggregate.name)
    macro = "feinsum_stream" if is_streamed else "feinsum_store"
    element = ELEMENTS[array.dtype.numpy_dtype.itemsize]
    return lp.CInstruction(
        [],
        f"{macro}({element}, {lanes}, {vector}, {array.name}, {offset});",
        read_variables=frozenset({vector, offset}),
        assignees=(target,),
        id=store.id,
        within_inames=store.within_inames,
        depends_on=store.depends_on,
        no_sync_with=store.no_sync_with,
    )


def compute_offset(kernel: lp.LoopKernel, target: p.Subscript) -> Expression:
    """Return the offset of an entry in the memory of an argument, in entries."""
    array = find_global_array(kernel, target.aggregate.name)
    strides = [tag.stride for tag in array.dim_tags]
    return p.Sum(tuple(n * i for n, i in zip(strides, target.index_tuple, strict=True)))


def with_store_macros(schedule: Schedule) -> Schedule:
    """Return the kernel with the macros of :func:`make_vector_store`."""
    return schedule.with_preamble(PREAMBLE)


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
