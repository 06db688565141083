"""Work-items and ranges of work-groups as functions of C, and their tables of pointers.

A slot of a table points to the entries of an array, or to a scalar. The builder is in a
separate module, because Loopy's cache on disk refers to it by the name of the module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import Template
from typing import Any

import islpy as isl
import loopy as lp
from cgen import Collection, Initializer, Line, Value
from loopy.schedule.tools import get_subkernel_arg_info
from loopy.target.c import FunctionDeclarationWrapper
from loopy.target.c.codegen.expression import ExpressionToCExpressionMapper
from pymbolic import var

from feinsum.targets.host.code.statements import (
    ALIGNMENT,
    StatementsBuilder,
    compute_scratch_offsets,
)

N_AXES = 3
"""Number of group axes, and of local axes, in OpenCL."""

POOL = """\
#include <stddef.h>
#include <stdint.h>
typedef void (*feinsum_body_t)(void *const *, int64_t, int64_t, char *);
typedef int (*feinsum_parallel_t)(
  feinsum_body_t, void *const *, int64_t, size_t, _Atomic int64_t *);
typedef char *(*feinsum_arena_t)(size_t);"""
"""The types of the pool's functions, whose addresses are passed to a kernel."""


def pool_preamble(_info: Any) -> Iterator[tuple[str, str]]:
    """Yield declarations for the argument of a kernel's entry point."""
    yield ("00_pool", POOL)


def write_slot(kernel: Any, name: str) -> str:
    """Write the pointer to a name of the kernel, for a slot of the table."""
    return name if _is_array(kernel, name) else f"&{name}"


def read_slot(kernel: Any, name: str, position: int) -> Any:
    """Declare a name of the kernel, with its value from a slot of the table."""
    if _is_array(kernel, name):
        return Line(f"void *const {name} = _slots[{position}];")
    if name in kernel.all_inames():
        dtype = kernel.index_dtype
    else:
        dtype = kernel.get_var_descriptor(name).dtype
    kind = kernel.target.dtype_to_typename(dtype)
    return Line(f"const {kind} {name} = *(const {kind} *) _slots[{position}];")


def _is_array(kernel: Any, name: str) -> bool:
    if name in kernel.all_inames():
        return False
    return not isinstance(kernel.get_var_descriptor(name), lp.ValueArg)


_GIDS = tuple(f"_gid{axis}" for axis in range(N_AXES))

_LIDS = tuple(f"_lid{axis}" for axis in range(N_AXES))

_SMALL = "static inline __attribute__((always_inline)) void"

_LARGE = "static __attribute__((noinline)) void"
"""Attributes of the function of a work-item with large arrays, or with loops over the
nodes of a tree.

A call costs little there. When gcc 12 inlines a function, it drops ``restrict``, and so
copies entry by entry. On processors that it does not know, it then also keeps loop
counters in vector registers, and sums in memory.
"""

_GROUPS = Template("""\
static void ${name}_groups(
  void *const *_slots, int64_t _first, int64_t _past, char *_scratch)
{
  const int64_t *const _grid = _slots[0];
  $declarations
  for (int64_t _group = _first; _group < _past; ++_group)
  {
    const $index _gid0 = _group % _grid[0];
    const $index _gid1 = _group / _grid[0] % _grid[1];
    const $index _gid2 = _group / _grid[0] / _grid[1];
    for ($index _lid2 = 0; _lid2 < _grid[5]; ++_lid2)
      for ($index _lid1 = 0; _lid1 < _grid[4]; ++_lid1)
        for ($index _lid0 = 0; _lid0 < _grid[3]; ++_lid0)
          $item($passed);
  }
}""")


class _GridExpressions(ExpressionToCExpressionMapper):  # type: ignore[misc]
    """Expressions of C, with the indices of work-groups and work-items."""

    def map_group_hw_index(self, expr: Any, _type_context: str) -> Any:
        return var(f"_gid{expr.axis}")

    def map_local_hw_index(self, expr: Any, _type_context: str) -> Any:
        return var(f"_lid{expr.axis}")


class GroupsBuilder(StatementsBuilder):
    """Builds the functions of a kernel between two barriers of the whole grid."""

    def preamble_generators(self) -> list[Any]:
        return [*super().preamble_generators(), pool_preamble]

    def get_expression_to_c_expression_mapper(self, codegen_state: Any) -> Any:
        return _GridExpressions(codegen_state)

    def get_temporary_var_declarator(self, codegen_state: Any, temporary: Any) -> Any:
        """Declare an array on the stack, or in the scratch memory if it is large."""
        offset = compute_scratch_offsets(codegen_state.kernel).get(temporary.name)
        if offset is None:
            return super().get_temporary_var_declarator(codegen_state, temporary)
        base = self.get_array_base_declarator(temporary)
        (kind,), _ = base.get_decl_pair()
        value = f"({kind} *) __builtin_assume_aligned(_scratch + {offset}, {ALIGNMENT})"
        return Initializer(Value(kind, f"*const __restrict__ {temporary.name}"), value)

    def get_function_declaration(
        self, codegen_state: Any, codegen_result: Any, schedule_index: int
    ) -> tuple[Sequence[tuple[str, str]], Any]:
        preambles, declared = super().get_function_declaration(
            codegen_state, codegen_result, schedule_index
        )
        if not codegen_state.is_entrypoint:
            return preambles, declared
        kernel = codegen_state.kernel
        index = self.target.dtype_to_typename(kernel.index_dtype)
        function = declared.subdecl
        function.subdecl.name = _get_item_name(codegen_state, schedule_index)
        is_large = compute_scratch_offsets(kernel) or _has_bounds_from_memory(kernel)
        function.subdecl.typename = _LARGE if is_large else _SMALL
        function.arg_decls = (
            *function.arg_decls,
            *(Value(f"const {index}", name) for name in (*_GIDS, *_LIDS)),
            Value("char", "*const __restrict__ _scratch"),
        )
        return preambles, FunctionDeclarationWrapper(function)

    def get_function_definition(
        self,
        codegen_state: Any,
        codegen_result: Any,
        schedule_index: int,
        function_decl: Any,
        function_body: Any,
    ) -> Any:
        item = super().get_function_definition(
            codegen_state, codegen_result, schedule_index, function_decl, function_body
        )
        if not codegen_state.is_entrypoint:
            return item
        return Collection(
            [item, Line(), self._write_groups_function(codegen_state, schedule_index)]
        )

    def _write_groups_function(self, codegen_state: Any, schedule_index: int) -> Any:
        """Write the function that runs a range of work-groups, last axis outermost."""
        kernel = codegen_state.kernel
        name = kernel.linearization[schedule_index].kernel_name
        passed = get_subkernel_arg_info(kernel, name).passed_names
        lines = (
            read_slot(kernel, x, position) for position, x in enumerate(passed, start=1)
        )
        return Line(
            _GROUPS.substitute(
                name=name,
                index=self.target.dtype_to_typename(kernel.index_dtype),
                declarations="\n  ".join(map(str, lines)),
                item=_get_item_name(codegen_state, schedule_index),
                passed=", ".join((*passed, *_GIDS, *_LIDS, "_scratch")),
            )
        )


def _has_bounds_from_memory(kernel: Any) -> bool:
    """Return whether a loop bound is a number that the kernel reads from memory."""
    names = (set(domain.get_var_names(isl.dim_type.param)) for domain in kernel.domains)
    return any(
        not parameters.isdisjoint(kernel.temporary_variables) for parameters in names
    )


def _get_item_name(codegen_state: Any, schedule_index: int) -> str:
    item = codegen_state.kernel.linearization[schedule_index]
    return f"{item.kernel_name}_item"
