"""Statements and declarations of C, with vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from cgen import (
    Block,
    Collection,
    Const,
    DeclSpecifier,
    Initializer,
    Line,
    Pragma,
    RestrictPointer,
    Value,
)
from loopy.diagnostic import LoopyError
from loopy.kernel.array import ArrayBase, FixedStrideArrayDimTag, VectorArrayDimTag
from loopy.kernel.data import AddressSpace
from loopy.target.c import POD, CWithGNULibcASTBuilder
from loopy.types import NumpyType

from feinsum.targets.host.code.memory import bytes_in_scratch
from feinsum.targets.host.code.vectors import UNALIGNED, VectorValue, vector_preamble

__all__ = ["StatementsBuilder"]

MAX_COPIES = 64
"""Iterations of a loop that is written out; longer ones are left to the compiler."""


def _known_number(_kernel: Any, name: str) -> tuple[Any, str] | None:
    """The dtype of HUGE_VAL, which Loopy writes for infinity but does not declare."""
    return (NumpyType(np.dtype(np.float64)), name) if name == "HUGE_VAL" else None


class StatementsBuilder(CWithGNULibcASTBuilder):  # type: ignore[misc]
    """One plain function; what needs work-items that know of each other is refused."""

    def preamble_generators(self) -> list[Any]:
        return [*super().preamble_generators(), vector_preamble]

    def symbol_manglers(self) -> list[Any]:
        return [*super().symbol_manglers(), _known_number]

    def add_vector_access(self, access: Any, index: Any) -> Any:
        return access[int(index)]

    def emit_barrier(self, kind: str, _memory: str, _comment: str | None) -> Any:
        raise LoopyError(f"{kind} barriers: work-items of the host do not wait")

    def emit_atomic_update(
        self, _state: Any, _atomicity: Any, variable: Any, *_: Any
    ) -> Any:
        raise LoopyError(f"{variable.name!r} is updated atomically")

    emit_atomic_init = emit_atomic_update

    def get_image_arg_declarator(self, arg: Any, _is_written: bool) -> Any:
        raise LoopyError(f"{arg.name!r} is an image")

    def emit_unroll_hint(self, value: int | None) -> Any:
        return Pragma(f"GCC unroll {value or MAX_COPIES}")

    def emit_sequential_loop(
        self,
        codegen_state: Any,
        iname: str,
        dtype: Any,
        lower: Any,
        upper: Any,
        inner: Any,
        hints: Sequence[Any],
    ) -> Any:
        """A loop; one that is to be unrolled is written out.

        gcc leaves arrays in memory whose subscripts are numbers only once a loop is
        unrolled, and these are the accumulators in the registers.
        """
        is_short = (
            hints
            and isinstance(lower, int)
            and isinstance(upper, int)
            and upper - lower < MAX_COPIES
        )
        if not is_short:
            return super().emit_sequential_loop(
                codegen_state, iname, dtype, lower, upper, inner, hints
            )
        return Collection(
            [
                Block([Initializer(Const(POD(self, dtype, iname)), str(k)), inner])
                for k in range(lower, upper + 1)
            ]
        )

    def emit_assignment(self, codegen_state: Any, insn: Any) -> Any:
        """An assignment, to a vector perhaps.

        GNU C has no conversion of scalars to vectors; subtracting a vector of zeros
        makes one, and leaves -0.0 as it is.
        """
        info = codegen_state.vectorization_info
        if not info:
            return super().emit_assignment(codegen_state, insn)
        name = insn.assignee_var_names()[0]
        dtype = codegen_state.kernel.get_var_descriptor(name).dtype
        value = VectorValue(codegen_state, dtype)
        if not value.is_vector(insn.assignee):
            return super().emit_assignment(codegen_state, insn)
        if not value.is_arithmetic(insn.expression):
            return self._lane_by_lane(codegen_state, insn)
        done = super().emit_assignment(codegen_state, insn)
        if value.is_vector(insn.expression):
            return done
        kind = self.target.dtype_to_typename(
            self.target.vector_dtype(dtype, info.length)
        )
        return Line(f"{done.lvalue} = ({done.rvalue}) - ({kind}) {{0}};")

    def _lane_by_lane(self, codegen_state: Any, insn: Any) -> Any:
        info = codegen_state.vectorization_info
        alone = codegen_state.copy(vectorization_info=None)
        lanes = (alone.copy_and_assign(info.iname, k) for k in range(info.length))
        return Collection([self.emit_assignment(lane, insn) for lane in lanes])

    def get_array_base_declarator(self, array: ArrayBase) -> Any:
        dtype, n_lanes = array.dtype, array.vector_length()
        if n_lanes > 1:
            dtype = self.target.vector_dtype(dtype, n_lanes)
        tags = array.dim_tags or ()
        known = FixedStrideArrayDimTag, VectorArrayDimTag
        if not all(isinstance(tag, known) for tag in tags):
            raise LoopyError(f"{array.name!r} has axes {tags} that C does not have")
        return POD(self, dtype, array.name)

    def get_array_arg_declarator(self, arg: Any, is_written: bool) -> Any:
        """A pointer; arrays of vectors may lie anywhere in memory."""
        if arg.vector_length() == 1:
            return super().get_array_arg_declarator(arg, is_written)
        kind = self.target.dtype_to_typename(
            self.target.vector_dtype(arg.dtype, arg.vector_length())
        )
        pointer = RestrictPointer(Value(f"{kind}{UNALIGNED}", arg.name))
        return pointer if is_written else Const(pointer)

    def get_temporary_var_declarator(self, codegen_state: Any, temporary: Any) -> Any:
        """An array of the stack, or of the thread if it is large.

        Tables of constants may be declared as local: those are the same for all.
        """
        is_local = temporary.address_space == AddressSpace.LOCAL
        if is_local and temporary.initializer is None:
            raise LoopyError(f"{temporary.name!r} is in local memory")
        declared = super().get_temporary_var_declarator(codegen_state, temporary)
        return _OfThread(declared) if bytes_in_scratch(temporary) else declared


class _OfThread(DeclSpecifier):
    """Storage of a thread, for a function that calls itself in none."""

    def __init__(self, declared: Any) -> None:
        super().__init__(declared, "static _Thread_local")

    # cgen has no visitor for thread storage; that of static prints the same
    mapper_method = "map_static"
