"""The table of pointers by which a kernel gets its arguments, and the pool's types.

A slot points to the entries of an array, or to a scalar.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import loopy as lp
from cgen import Line

__all__ = ["N_AXES", "POOL", "pool_preamble", "slot", "taken"]

N_AXES = 3
"""Group axes, and local axes, of OpenCL."""

POOL = """\
#include <stddef.h>
#include <stdint.h>
typedef void (*feinsum_body_t)(void *const *, int64_t, int64_t, char *);
typedef int (*feinsum_parallel_t)(
  feinsum_body_t, void *const *, int64_t, size_t, _Atomic int64_t *);
typedef char *(*feinsum_arena_t)(size_t);"""
"""The functions of the pool, whose addresses a kernel is given."""


def pool_preamble(_info: Any) -> Iterator[tuple[str, str]]:
    """Declarations for the argument of a kernel's entry point."""
    yield ("00_pool", POOL)


def slot(kernel: Any, name: str) -> str:
    """The pointer that stands in a table for a name of the kernel."""
    return name if _is_array(kernel, name) else f"&{name}"


def taken(kernel: Any, name: str, at: int) -> Any:
    """The declaration of what a table holds at a place."""
    if _is_array(kernel, name):
        return Line(f"void *const {name} = _slots[{at}];")
    if name in kernel.all_inames():
        dtype = kernel.index_dtype
    else:
        dtype = kernel.get_var_descriptor(name).dtype
    kind = kernel.target.dtype_to_typename(dtype)
    return Line(f"const {kind} {name} = *(const {kind} *) _slots[{at}];")


def _is_array(kernel: Any, name: str) -> bool:
    if name in kernel.all_inames():
        return False
    return not isinstance(kernel.get_var_descriptor(name), lp.ValueArg)
