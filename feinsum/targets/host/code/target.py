"""The host's C compiler as a target of Loopy.

A kernel becomes three functions of C. ``<name>_item`` is one work-item, inlined into
``<name>_groups``, which runs a range of work-groups: the group axes are one collapsed
range, the local axes are loops. The entry point gets a table of pointers to the
arguments, allocates temporaries in global memory, and has the pool run the groups of
one kernel after the other.
"""

from __future__ import annotations

import hashlib
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import loopy as lp
from loopy.diagnostic import LoopyError
from loopy.kernel.data import GroupInameTag, LocalInameTagBase
from loopy.target.c import CWithGNULibcTarget
from loopy.types import NumpyType

from feinsum.targets.host.code.entry import EntryBuilder
from feinsum.targets.host.code.groups import GroupsBuilder
from feinsum.targets.host.code.statements import StatementsBuilder
from feinsum.targets.host.code.vectors import VECTORS

__all__ = ["VERSION", "EmbeddedCTarget", "HostCTarget", "StandaloneCTarget"]

VERSION = 1
"""Version of the code's behaviour; a part of the environment of facts."""


def _source_digest() -> str:
    """Digest of the modules of this folder: Loopy caches code on disk by the hash of a
    target, and code of an older source must not come back.
    """
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


SOURCE = _source_digest()


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
        known = {vector.dtype for vector in VECTORS.values()}
        return isinstance(dtype, NumpyType) and dtype.numpy_dtype in known

    def vector_dtype(self, base: Any, count: int) -> Any:
        """A vector of lanes.

        Raises:
            LoopyError: if there is no such vector.
        """
        found = VECTORS.get((base.numpy_dtype, count))
        if found is None:
            raise LoopyError(
                f"the host does not support vectors of {count} lanes of {base}"
            )
        return NumpyType(found.dtype)


MOST_STACK_BYTES = 1 << 16
"""Largest array on the stack of a plain function."""


class EmbeddedCTarget(_VectorCTarget):
    """One plain function, for compilers and programs of others; it has no threads."""

    def get_device_ast_builder(self) -> Any:
        return StatementsBuilder(self)

    @classmethod
    def embedded(cls, t_unit: Any) -> Any:
        """A unit whose grid is made of loops, so that it needs nobody to run it."""
        for name, callable_ in t_unit.callables_table.items():
            if isinstance(callable_, lp.CallableKernel):
                t_unit = t_unit.with_kernel(_sequential(t_unit[name]))
        return t_unit.copy(target=cls())


class HostCTarget(_VectorCTarget):
    """For the compiler and the threads of this machine."""

    host_program_name_suffix = ""
    device_program_name_suffix = "_device"

    def split_kernel_at_global_barriers(self) -> bool:
        return True

    def get_host_ast_builder(self) -> Any:
        return EntryBuilder(self)

    def get_device_ast_builder(self) -> Any:
        return GroupsBuilder(self)

    def get_kernel_executor_cache_key(self, *_args: Any, **options: Any) -> Any:
        return options["entrypoint"]

    def get_kernel_executor(
        self, t_unit: Any, *_args: Any, entrypoint: str, **_options: Any
    ) -> Any:
        from feinsum.targets.host.executor import HostExecutor  # it needs this module

        return HostExecutor(t_unit, entrypoint)


class StandaloneCTarget(HostCTarget):
    """The same code for files of C that others compile, without the pool."""


def _sequential(kernel: Any) -> Any:
    """The kernel with loops for the axes of the grid, in one function without threads.

    Phases follow each other in it, so that a barrier is an order of statements, and
    what one phase hands to another stays in the function.
    """
    for name, iname in kernel.inames.items():
        for tag in iname.tags:
            if isinstance(tag, GroupInameTag | LocalInameTagBase):
                kernel = lp.untag_inames(kernel, name, type(tag))
    barriers = [i for i in kernel.instructions if isinstance(i, lp.BarrierInstruction)]
    is_apart = all(barrier.synchronization_kind == "global" for barrier in barriers)
    if not barriers or not is_apart:
        return kernel
    exchanged = [
        temporary
        for temporary in kernel.temporary_variables.values()
        if temporary.address_space == lp.AddressSpace.GLOBAL
        and temporary.initializer is None
    ]
    if not all(map(_has_room, exchanged)):
        return kernel  # its barriers are refused
    names = [temporary.name for temporary in exchanged]
    kernel = lp.set_temporary_address_space(kernel, names, "private")
    places = {barrier.id: _mark(barrier) for barrier in barriers}
    instructions = [places.get(insn.id, insn) for insn in kernel.instructions]
    return kernel.copy(instructions=instructions)


def _has_room(temporary: Any) -> bool:
    """Whether an array may be on the stack of a function."""
    shape = temporary.shape
    if not (isinstance(shape, tuple) and all(isinstance(n, int) for n in shape)):
        return False
    itemsize = getattr(temporary.dtype, "itemsize", MOST_STACK_BYTES)
    return bool(prod(shape) * itemsize <= MOST_STACK_BYTES)


def _mark(barrier: Any) -> Any:
    """The replacement of a barrier that statements wait for."""
    return lp.NoOpInstruction(
        id=barrier.id,
        depends_on=barrier.depends_on,
        depends_on_is_final=True,
        within_inames=frozenset(),
        within_inames_is_final=True,
    )
