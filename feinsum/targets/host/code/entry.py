"""The function that the caller calls, which runs one kernel after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from cgen import Block, Collection, Line
from loopy.diagnostic import LoopyError
from loopy.schedule.tools import get_kernel_arg_info, get_subkernel_arg_info
from loopy.target.c import CFamilyASTBuilder, ScopingBlock
from pymbolic.mapper.stringifier import PREC_NONE

from feinsum.targets.host.code.exported import ENTRY
from feinsum.targets.host.code.memory import (
    ALIGNMENT,
    bytes_in_scratch,
    global_temporaries,
)
from feinsum.targets.host.code.slots import N_AXES, slot, taken

__all__ = ["EntryBuilder"]


class EntryBuilder(CFamilyASTBuilder):  # type: ignore[misc]
    """The entry point; it returns 0 if all is well."""

    def get_function_declaration(self, *_args: Any) -> tuple[tuple[()], Any]:
        head = f"int {ENTRY}(void *const *_slots, feinsum_parallel_t _parallel, "
        return (), Line(f"{head}feinsum_arena_t _arena)")

    def get_function_definition(
        self,
        codegen_state: Any,
        _codegen_result: Any,
        _schedule_index: int,
        function_decl: Any,
        function_body: Any,
    ) -> Any:
        kernel = codegen_state.kernel
        passed = get_kernel_arg_info(kernel).passed_names
        lines = [taken(kernel, name, at) for at, name in enumerate(passed)]
        done = Line("return 0;")
        return Collection([function_decl, Block([*lines, function_body, done])])

    def get_temporary_decls(self, codegen_state: Any, _schedule_index: int) -> Any:
        """Temporaries in global memory, one after the other in one allocation."""
        temporaries = global_temporaries(codegen_state.kernel)
        arrays = [t for t in temporaries if t.initializer is None]
        if not arrays:
            return []
        if based := [t.name for t in arrays if t.base_storage]:
            raise LoopyError(f"the temporaries {based} share their storage")
        end = "0"
        lines = []
        for temporary in arrays:
            kind = self.target.dtype_to_typename(temporary.dtype)
            place = f"({kind} *) (_memory + {end})"
            lines.append(Line(f"{kind} *const {temporary.name} = {place};"))
            size = self._n_bytes(codegen_state, temporary)
            end = f"({end} + ({size}) + {ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT}"
        return [
            Line(f"char *const _memory = _arena({end});"),
            Line("if (!_memory) return 1;"),
            *lines,
        ]

    def _n_bytes(self, codegen_state: Any, temporary: Any) -> str:
        """The size of an array, in size_t: the product may overflow its factors."""
        extents = self._integers(codegen_state, temporary.shape)
        factors = (f"(size_t) ({extent})" for extent in extents)
        return " * ".join((str(temporary.dtype.itemsize), *factors))

    def _integers(self, codegen_state: Any, given: Sequence[Any]) -> Iterator[str]:
        mapper = self.get_expression_to_code_mapper(codegen_state)
        return (str(mapper(x, PREC_NONE, type_context="i")) for x in given)

    def get_kernel_call(
        self,
        codegen_state: Any,
        name: str,
        group_sizes: Sequence[Any],
        local_sizes: Sequence[Any],
    ) -> Any:
        kernel = codegen_state.kernel
        if len(group_sizes) > N_AXES or len(local_sizes) > N_AXES:
            raise LoopyError(f"kernel {name!r} has more than {N_AXES} axes")
        sizes = (*_padded(group_sizes), *_padded(local_sizes))
        grid = ", ".join(self._integers(codegen_state, sizes))
        passed = get_subkernel_arg_info(kernel, name).passed_names
        slots = ["_grid", *(slot(kernel, argument) for argument in passed)]
        pointers = ", ".join(f"(void *) {pointer}" for pointer in slots)
        n_bytes = sum(map(bytes_in_scratch, kernel.temporary_variables.values()))
        return ScopingBlock(
            [
                # per kernel: the pool remembers whether the last call was worth
                # waking the other threads
                Line("static _Atomic int64_t _work_ns;"),
                Line(f"const int64_t _grid[] = {{{grid}}};"),
                Line(f"void *const _arguments[] = {{{pointers}}};"),
                Line(
                    f"if (_parallel({name}_groups, _arguments, "
                    f"_grid[0] * _grid[1] * _grid[2], {n_bytes}, &_work_ns)) return 1;"
                ),
            ]
        )

    def emit_unroll_hint(self, _value: int | None) -> Any:
        return Line("")

    def emit_barrier(self, *_args: Any) -> Any:
        """Kernels run one after the other."""
        return Line("")


def _padded(sizes: Sequence[Any]) -> tuple[Any, ...]:
    return (*sizes, *[1] * (N_AXES - len(sizes)))
