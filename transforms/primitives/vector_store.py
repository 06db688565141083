"""Stores of whole vectors, through the caches or past them.

A store to a line that no cache has reads the line first; one that goes past the caches
does not, and leaves them to what is read again.

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

__all__ = [
    "flat_subscript",
    "stands_together",
    "vector_store",
    "with_store_macros",
]

ELEMENTS = {8: "double", 4: "float"}
PREAMBLE = (
    "10_feinsum_vector_stores",
    """\
#ifdef __clang__
#define feinsum_store(type, lanes, value, array, place) \\
  { \\
    typedef type##lanes feinsum_unaligned __attribute__((aligned(sizeof(type)))); \\
    *(__global feinsum_unaligned *) ((array) + (place)) = value; \\
  }
#else
#define feinsum_store(type, lanes, value, array, place) \\
  { vstore##lanes(value, 0, (array) + (place)); }
#endif
#ifdef __has_builtin
#if __has_builtin(__builtin_nontemporal_store)
#define feinsum_stream(type, lanes, value, array, place) \\
  if ((size_t) ((array) + (place)) % sizeof(type##lanes)) \\
    feinsum_store(type, lanes, value, array, place) \\
  else \\
    __builtin_nontemporal_store( \\
      value, (__global type##lanes *) ((array) + (place)))
#endif
#endif
#ifndef feinsum_stream
#define feinsum_stream feinsum_store
#endif
""",
)


def stands_together(schedule: Schedule, row: int, index: str) -> bool:
    """Whether the entries of a row along ``index`` are neighbours in its output.

    Only these can be stored by vectors. Values that add to something are stored one by
    one, and count as apart.
    """
    is_shifted = schedule.is_shifted(schedule.instructions[row])
    scale = get_dependencies(schedule.scales[row])
    if is_shifted or scale & _arrays(schedule.kernel):
        return False
    return _strides(schedule, row).get(var(schedule.inames[index])) == 1


def vector_store(
    kernel: lp.LoopKernel,
    store: lp.Assignment,
    lanes: int,
    place: str,
    *,
    is_streamed: bool,
) -> lp.CInstruction:
    """The store of a private vector where the first of its lanes is assigned.

    Rewrite::

        out[i,4*j] = vector

        feinsum_store(double, 4, vector, out, place);

    The kernel needs the macros: see :func:`with_store_macros`.

    Args:
        place: a private scalar that has the value of :func:`flat_subscript`.
        is_streamed: whether it goes past the caches, if the vector is aligned there.
    """
    target, vector = store.assignee, store.expression.name
    array = _global_array(kernel, target.aggregate.name)
    macro = "feinsum_stream" if is_streamed else "feinsum_store"
    element = ELEMENTS[array.dtype.numpy_dtype.itemsize]
    return lp.CInstruction(
        [],
        f"{macro}({element}, {lanes}, {vector}, {array.name}, {place});",
        read_variables=frozenset({vector, place}),
        assignees=(target,),
        id=store.id,
        within_inames=store.within_inames,
        depends_on=store.depends_on,
        no_sync_with=store.no_sync_with,
    )


def flat_subscript(kernel: lp.LoopKernel, target: p.Subscript) -> Expression:
    """Where an entry of an argument lies, in entries."""
    array = _global_array(kernel, target.aggregate.name)
    strides = [tag.stride for tag in array.dim_tags]
    return p.Sum(tuple(n * i for n, i in zip(strides, target.index_tuple, strict=True)))


def with_store_macros(schedule: Schedule) -> Schedule:
    """The kernel with the macros of :func:`vector_store`."""
    preambles = schedule.kernel.preambles
    if PREAMBLE in preambles:
        return schedule
    return schedule.with_kernel(preambles=(*preambles, PREAMBLE))


def _global_array(kernel: lp.LoopKernel, name: str) -> Any:
    """An argument, or a temporary in global memory; None for any other one."""
    temporary = kernel.temporary_variables.get(name)
    if temporary is None:
        return kernel.arg_dict.get(name)
    is_global = temporary.address_space == lp.AddressSpace.GLOBAL
    return temporary if is_global and not temporary.offset else None


def _arrays(kernel: lp.LoopKernel) -> frozenset[str]:
    arrays = [arg.name for arg in kernel.args if isinstance(arg, lp.ArrayArg)]
    return frozenset({*arrays, *kernel.temporary_variables})


def _strides(schedule: Schedule, row: int) -> dict[Expression, Expression]:
    """The stride of each subscript of a row's output; none if it is private."""
    insn = schedule.kernel.id_to_insn[schedule.instructions[row]]
    target = insn.assignee
    if not isinstance(target, p.Subscript):
        return {}
    array = _global_array(schedule.kernel, target.aggregate.name)
    if array is None or array.dtype.numpy_dtype.kind != "f":
        return {}
    strides = [getattr(tag, "stride", None) for tag in array.dim_tags]
    return dict(zip(target.index_tuple, strides, strict=True))
