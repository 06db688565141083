"""The host's C compiler as a target of Loopy.

A kernel becomes three functions of C. ``<name>_item`` computes one work-item, and is
inlined into ``<name>_groups``, which runs a range of work-groups: the group axes are
one collapsed range, the local axes are loops. The entry point gets a table of pointers
to the arguments, allocates temporaries in global memory, and lets the pool run the
groups of one kernel after the other::

    feinsum_entry(slots, parallel, arena)
        parallel(k_groups, ...)       threads: k_groups(slots, first, past, scratch)
            for group, for local index: k_item(arguments, group, local)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import loopy as lp
from cgen import Block, Collection, Line
from loopy.diagnostic import LoopyError
from loopy.kernel.data import GroupInameTag, LocalInameTagBase
from loopy.schedule.tools import get_kernel_arg_info, get_subkernel_arg_info
from loopy.target.c import CFamilyASTBuilder, CWithGNULibcTarget, ScopingBlock
from loopy.types import NumpyType
from pymbolic.mapper.stringifier import PREC_NONE

from feinsum.targets.host.code.groups import (
    N_AXES,
    GroupsBuilder,
    read_slot,
    write_slot,
)
from feinsum.targets.host.code.statements import (
    ALIGNMENT,
    VECTORS,
    StatementsBuilder,
    count_scratch_bytes,
    list_global_temporaries,
)
from feinsum.targets.host.compiler import ENTRY

VERSION = 1
"""Version of the code's behaviour; a part of the environment of facts."""


def _digest_source() -> str:
    """Return a digest of the modules of this folder.

    It is a part of the target's hash, so that Loopy's cache on disk does not return
    code of an older generator.
    """
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


SOURCE = _digest_source()


class _VectorCTarget(CWithGNULibcTarget):  # type: ignore[misc]
    """C with GNU vector types."""

    hash_fields = (*CWithGNULibcTarget.hash_fields, "version")
    comparison_fields = (*CWithGNULibcTarget.comparison_fields, "version")

    def __init__(self) -> None:
        super().__init__()
        self.version = SOURCE

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    @cache  # noqa: B019  (targets of one class are equal)
    def get_dtype_registry(self) -> Any:
        registry = super().get_dtype_registry()
        for vector in VECTORS.values():
            registry.get_or_register_dtype([vector.name], NumpyType(vector.dtype))
        return registry

    def is_vector_dtype(self, dtype: Any) -> bool:
        dtypes = {vector.dtype for vector in VECTORS.values()}
        return isinstance(dtype, NumpyType) and dtype.numpy_dtype in dtypes

    def vector_dtype(self, base: Any, count: int) -> Any:
        """Return the vector type of a number of lanes.

        Raises:
            LoopyError: if there is no such vector.
        """
        vector = VECTORS.get((base.numpy_dtype, count))
        if vector is None:
            raise LoopyError(
                f"the host does not support vectors of {count} lanes of {base}"
            )
        return NumpyType(vector.dtype)


MAX_STACK_BYTES = 1 << 16
"""Largest array on the stack of a plain function."""


class EmbeddedCTarget(_VectorCTarget):
    """One plain function without threads, for the user's compiler and program."""

    def get_device_ast_builder(self) -> Any:
        return StatementsBuilder(self)

    @classmethod
    def embedded(cls, t_unit: Any) -> Any:
        """Convert the grid of a unit to loops, so that it is one plain function."""
        for name, callable_ in t_unit.callables_table.items():
            if isinstance(callable_, lp.CallableKernel):
                t_unit = t_unit.with_kernel(_make_sequential(t_unit[name]))
        return t_unit.copy(target=cls())


class HostCTarget(_VectorCTarget):
    """The target for the compiler and the threads of this machine."""

    host_program_name_suffix = ""
    device_program_name_suffix = "_device"

    def split_kernel_at_global_barriers(self) -> bool:
        return True

    def get_host_ast_builder(self) -> Any:
        return EntryBuilder(self)

    def get_device_ast_builder(self) -> Any:
        return GroupsBuilder(self)

    def get_kernel_executor_cache_key(self, *_args: Any, **options: Any) -> Any:
        # the host has no contexts or queues on which an executor could depend
        return options["entrypoint"]

    def get_kernel_executor(
        self, t_unit: Any, *_args: Any, entrypoint: str, **_options: Any
    ) -> Any:
        from feinsum.targets.host.executor import HostExecutor  # it needs this module

        return HostExecutor(t_unit, entrypoint)


class StandaloneCTarget(HostCTarget):
    """The target for files of C that users compile, without the pool."""


def _make_sequential(kernel: Any) -> Any:
    """Replace the axes of the grid by loops of one function without threads.

    Phases between barriers follow each other in the function. So barriers become
    orderings of statements, and temporaries that phases share become private.
    """
    for name, iname in kernel.inames.items():
        for tag in iname.tags:
            if isinstance(tag, GroupInameTag | LocalInameTagBase):
                kernel = lp.untag_inames(kernel, name, type(tag))
    barriers = [i for i in kernel.instructions if isinstance(i, lp.BarrierInstruction)]
    # a local barrier is between the work-items of a group, whose loops would have to be
    # split there
    is_apart = all(barrier.synchronization_kind == "global" for barrier in barriers)
    if not barriers or not is_apart:
        return kernel
    shared_temporaries = [
        temporary
        for temporary in kernel.temporary_variables.values()
        if temporary.address_space == lp.AddressSpace.GLOBAL
        and temporary.initializer is None
    ]
    if not all(map(_has_room, shared_temporaries)):
        return kernel  # its barriers are refused
    names = [temporary.name for temporary in shared_temporaries]
    kernel = lp.set_temporary_address_space(kernel, names, "private")
    replacements = {barrier.id: _mark(barrier) for barrier in barriers}
    instructions = [replacements.get(insn.id, insn) for insn in kernel.instructions]
    return kernel.copy(instructions=instructions)


def _has_room(temporary: Any) -> bool:
    """Return whether an array may be on the stack of a function."""
    shape = temporary.shape
    if not (isinstance(shape, tuple) and all(isinstance(n, int) for n in shape)):
        return False
    itemsize = getattr(temporary.dtype, "itemsize", MAX_STACK_BYTES)
    return bool(prod(shape) * itemsize <= MAX_STACK_BYTES)


def _mark(barrier: Any) -> Any:
    """Make an instruction without effect that replaces a barrier, with its id."""
    return lp.NoOpInstruction(
        id=barrier.id,
        depends_on=barrier.depends_on,
        depends_on_is_final=True,
        within_inames=frozenset(),
        within_inames_is_final=True,
    )


class EntryBuilder(CFamilyASTBuilder):  # type: ignore[misc]
    """Builds the entry point, which returns 0 on success."""

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
        lines = [
            read_slot(kernel, name, position) for position, name in enumerate(passed)
        ]
        success = Line("return 0;")
        return Collection([function_decl, Block([*lines, function_body, success])])

    def get_temporary_decls(self, codegen_state: Any, _schedule_index: int) -> Any:
        """Declare temporaries in global memory, adjacent in one allocation."""
        temporaries = list_global_temporaries(codegen_state.kernel)
        arrays = [t for t in temporaries if t.initializer is None]
        if not arrays:
            return []
        if based := [t.name for t in arrays if t.base_storage]:
            raise LoopyError(f"the temporaries {based} share their storage")
        end = "0"
        lines = []
        for temporary in arrays:
            kind = self.target.dtype_to_typename(temporary.dtype)
            pointer = f"({kind} *) (_memory + {end})"
            lines.append(Line(f"{kind} *const {temporary.name} = {pointer};"))
            size = self._write_n_bytes(codegen_state, temporary)
            end = f"({end} + ({size}) + {ALIGNMENT - 1}) / {ALIGNMENT} * {ALIGNMENT}"
        return [
            Line(f"char *const _memory = _arena({end});"),
            Line("if (!_memory) return 1;"),
            *lines,
        ]

    def _write_n_bytes(self, codegen_state: Any, temporary: Any) -> str:
        """Write the bytes of an array in size_t: an int product may overflow."""
        extents = self._write_integers(codegen_state, temporary.shape)
        factors = (f"(size_t) ({extent})" for extent in extents)
        return " * ".join((str(temporary.dtype.itemsize), *factors))

    def _write_integers(
        self, codegen_state: Any, extents: Sequence[Any]
    ) -> Iterator[str]:
        mapper = self.get_expression_to_code_mapper(codegen_state)
        return (str(mapper(x, PREC_NONE, type_context="i")) for x in extents)

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
        sizes = (*_pad_axes(group_sizes), *_pad_axes(local_sizes))
        grid = ", ".join(self._write_integers(codegen_state, sizes))
        passed = get_subkernel_arg_info(kernel, name).passed_names
        slots = ["_grid", *(write_slot(kernel, argument) for argument in passed)]
        pointers = ", ".join(f"(void *) {pointer}" for pointer in slots)
        n_bytes = sum(map(count_scratch_bytes, kernel.temporary_variables.values()))
        return ScopingBlock(
            [
                # one for each kernel: the pool stores there how long the last call
                # took, to decide whether to wake other threads
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
        """Write nothing, because kernels run one after the other."""
        return Line("")


def _pad_axes(sizes: Sequence[Any]) -> tuple[Any, ...]:
    return (*sizes, *[1] * (N_AXES - len(sizes)))
