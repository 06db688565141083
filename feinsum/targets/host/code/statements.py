"""Statements and declarations of C, with vectors, and memory for large temporaries.

Vectors are extensions of GNU C that gcc and clang share. Vectors of complex numbers are
arrays instead, whose lanes are computed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
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
from loopy.codegen import UnvectorizableError
from loopy.diagnostic import LoopyError
from loopy.expression import VectorizabilityChecker
from loopy.kernel.array import ArrayBase, FixedStrideArrayDimTag, VectorArrayDimTag
from loopy.kernel.data import AddressSpace
from loopy.symbolic import CombineMapper
from loopy.target.c import POD, CWithGNULibcASTBuilder
from loopy.target.opencl import vec
from loopy.types import NumpyType

MAX_COPIES = 64
"""Maximum iterations of a loop that is written out; compilers unroll longer ones."""


def _known_number(_kernel: Any, name: str) -> tuple[Any, str] | None:
    """Return the type of HUGE_VAL, which Loopy writes for infinity, undeclared."""
    return (NumpyType(np.dtype(np.float64)), name) if name == "HUGE_VAL" else None


class StatementsBuilder(CWithGNULibcASTBuilder):  # type: ignore[misc]
    """Builds one plain function; refuses kernels whose work-items communicate."""

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
        """Write a loop; a short one with an unroll hint is written out.

        The accumulators are arrays whose subscripts become constants by unrolling. If
        gcc unrolls the loop itself, it has already placed such arrays in memory, not in
        registers.
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
        # a block for each copy: C allows the constant to be declared again only in
        # another scope
        return Collection(
            [
                Block([Initializer(Const(POD(self, dtype, iname)), str(k)), inner])
                for k in range(lower, upper + 1)
            ]
        )

    def emit_assignment(self, codegen_state: Any, insn: Any) -> Any:
        """Write an assignment to a scalar or to a vector.

        GNU C does not convert scalars to vectors in assignments. Subtracting a vector
        of zeros does, and preserves -0.0.
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
            return self._assign_lanes(codegen_state, insn)
        assignment = super().emit_assignment(codegen_state, insn)
        if value.is_vector(insn.expression):
            return assignment
        kind = self.target.dtype_to_typename(
            self.target.vector_dtype(dtype, info.length)
        )
        return Line(f"{assignment.lvalue} = ({assignment.rvalue}) - ({kind}) {{0}};")

    def _assign_lanes(self, codegen_state: Any, insn: Any) -> Any:
        info = codegen_state.vectorization_info
        scalar_state = codegen_state.copy(vectorization_info=None)
        lanes = (
            scalar_state.copy_and_assign(info.iname, k) for k in range(info.length)
        )
        return Collection([self.emit_assignment(lane, insn) for lane in lanes])

    def get_array_base_declarator(self, array: ArrayBase) -> Any:
        dtype, n_lanes = array.dtype, array.vector_length()
        if n_lanes > 1:
            dtype = self.target.vector_dtype(dtype, n_lanes)
        tags = array.dim_tags or ()
        strided = FixedStrideArrayDimTag, VectorArrayDimTag
        if not all(isinstance(tag, strided) for tag in tags):
            raise LoopyError(f"{array.name!r} has axes {tags} that C does not have")
        return POD(self, dtype, array.name)

    def get_array_arg_declarator(self, arg: Any, is_written: bool) -> Any:
        """Declare a pointer; arrays of vectors may lie anywhere in memory."""
        if arg.vector_length() == 1:
            return super().get_array_arg_declarator(arg, is_written)
        kind = self.target.dtype_to_typename(
            self.target.vector_dtype(arg.dtype, arg.vector_length())
        )
        pointer = RestrictPointer(Value(f"{kind}{UNALIGNED}", arg.name))
        return pointer if is_written else Const(pointer)

    def get_temporary_var_declarator(self, codegen_state: Any, temporary: Any) -> Any:
        """Declare an array on the stack, or one per thread if it is large.

        Tables of constants may be in local memory, since all work-groups share them.
        """
        is_local = temporary.address_space == AddressSpace.LOCAL
        if is_local and temporary.initializer is None:
            raise LoopyError(f"{temporary.name!r} is in local memory")
        declared = super().get_temporary_var_declarator(codegen_state, temporary)
        return _OfThread(declared) if count_scratch_bytes(temporary) else declared


class _OfThread(DeclSpecifier):
    """Thread-local storage for an array; the function is not recursive."""

    def __init__(self, declared: Any) -> None:
        super().__init__(declared, "static _Thread_local")

    # cgen has no visitor for thread-local storage; the one for static fits
    mapper_method = "map_static"


LARGE_BYTES = 16 * 1024
"""Bytes from which a private array is in the scratch memory of a thread.

The stack may be too small for it.
"""

ALIGNMENT = 64
"""Alignment of arrays allocated for a kernel, in bytes: a cache line."""


def list_global_temporaries(kernel: Any) -> list[Any]:
    """Return the temporaries that work-groups share, sorted by name."""
    return sorted(
        (
            temporary
            for temporary in kernel.temporary_variables.values()
            if temporary.address_space == AddressSpace.GLOBAL
        ),
        key=lambda t: str(t.name),
    )


def compute_scratch_offsets(kernel: Any) -> dict[str, int]:
    """Return the offsets in bytes of large private arrays in the scratch memory."""
    offsets, end = {}, 0
    for name in sorted(kernel.temporary_variables):
        size = count_scratch_bytes(kernel.temporary_variables[name])
        if size:
            offsets[name] = end
            end += size
    return offsets


def count_scratch_bytes(temporary: Any) -> int:
    """Return the bytes of a large private array, rounded up; 0 for a small one."""
    is_private = temporary.address_space == AddressSpace.PRIVATE
    if not is_private or temporary.initializer is not None or temporary.base_storage:
        return 0
    shape = temporary.shape
    if not all(isinstance(extent, int | np.integer) for extent in shape):
        return 0
    size = int(prod(shape)) * temporary.dtype.numpy_dtype.itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT if size >= LARGE_BYTES else 0


UNALIGNED = "_unaligned"
"""Suffix of the names of vector types that are aligned only to their entries."""

LANES = (2, 3, 4, 8, 16)
"""Numbers of lanes, those of OpenCL."""

_ENTRIES = {
    "char": ("int8_t", np.int8),
    "uchar": ("uint8_t", np.uint8),
    "short": ("int16_t", np.int16),
    "ushort": ("uint16_t", np.uint16),
    "int": ("int32_t", np.int32),
    "uint": ("uint32_t", np.uint32),
    "long": ("int64_t", np.int64),
    "ulong": ("uint64_t", np.uint64),
    "float": ("float", np.float32),
    "double": ("double", np.float64),
    "cfloat": ("float _Complex", np.complex64),
    "cdouble": ("double _Complex", np.complex128),
}


@dataclass(frozen=True)
class Vector:
    """A type of vectors.

    Args:
        name: name in C, that of OpenCL if it has such a vector.
        entry: the type of its entries in C.
        entry_dtype: the dtype of its entries.
        dtype: the dtype that represents the vector in Loopy.
        n_lanes: number of lanes.
    """

    name: str
    entry: str
    entry_dtype: np.dtype[Any]
    dtype: np.dtype[Any]
    n_lanes: int

    @property
    def declaration(self) -> str:
        """The declarations of the type, and of the unaligned one."""
        size = self.entry_dtype.itemsize
        n_allocated = 4 if self.n_lanes == 3 else self.n_lanes  # as in OpenCL
        if self.entry_dtype.kind == "c":
            return (
                f"typedef {self.entry} {self.name}[{n_allocated}];\n"
                f"typedef {self.name} {self.name}{UNALIGNED};"
            )
        return (
            f"typedef {self.entry} {self.name} "
            f"__attribute__((vector_size({n_allocated * size})));\n"
            f"typedef {self.name} {self.name}{UNALIGNED} "
            # may_alias, because arrays are declared by entry, and access as vectors
            # would break strict aliasing
            f"__attribute__((aligned({size}), may_alias));"
        )


def _make_vector(base: str, n_lanes: int) -> Vector:
    entry, kind = _ENTRIES[base]
    entry_dtype = np.dtype(kind)
    dtype = vec.types.get((entry_dtype, n_lanes))
    if dtype is None:
        dtype = np.dtype([(f"s{lane}", entry_dtype) for lane in range(n_lanes)])
    return Vector(f"{base}{n_lanes}", entry, entry_dtype, dtype, n_lanes)


VECTORS = {
    (vector.entry_dtype, n_lanes): vector
    for n_lanes in LANES
    for vector in (_make_vector(base, n_lanes) for base in _ENTRIES)
}


def vector_preamble(info: Any) -> Iterator[tuple[str, str]]:
    """Yield declarations of the vector types that the code of a kernel uses."""
    used = {
        (array.dtype.numpy_dtype, array.vector_length())
        for array in (*info.kernel.args, *info.kernel.temporary_variables.values())
        if isinstance(array, ArrayBase) and array.vector_length() > 1
    }
    declarations = sorted(VECTORS[kind].declaration for kind in used)
    if declarations:
        yield ("01_vectors", "\n".join(("#include <stdint.h>", *declarations)))


def declare_vector(name: str) -> str:
    """Declare a vector type, and one that may lie anywhere in memory.

    >>> print(declare_vector("float4"))
    typedef float float4 __attribute__((vector_size(16)));
    typedef float4 float4_unaligned __attribute__((aligned(4), may_alias));
    """
    return next(v.declaration for v in VECTORS.values() if v.name == name)


class VectorValue(CombineMapper[bool, []]):  # type: ignore[misc]
    """Decides whether GNU C can compute a value with vectors.

    GNU C has neither conditionals nor functions of vectors, and converts only scalars
    that are shorter than an entry.
    """

    def __init__(self, codegen_state: Any, dtype: Any) -> None:
        super().__init__()
        info = codegen_state.vectorization_info
        self.is_vector = VectorizabilityChecker(
            codegen_state.kernel, info.iname, info.length
        )
        self.type_of = codegen_state.expression_to_code_mapper.infer_type
        self.dtype = dtype.numpy_dtype

    def is_arithmetic(self, value: Any) -> bool:
        """Return whether every subexpression is; Loopy checks only the first vector."""
        if self.dtype.kind == "c" or self.type_of(value).numpy_dtype != self.dtype:
            return False
        try:
            return bool(self(value))
        except UnvectorizableError:
            return False

    def combine(self, values: Sequence[bool]) -> bool:
        return all(values)

    def map_constant(self, _expr: Any) -> bool:
        return True

    def map_operand(self, expr: Any) -> bool:
        dtype = self.type_of(expr).numpy_dtype
        if self.is_vector(expr) or dtype == self.dtype:
            return bool(dtype == self.dtype)
        is_shorter = dtype.itemsize < self.dtype.itemsize
        return is_shorter and np.can_cast(dtype, self.dtype)

    map_subscript = map_variable = map_tagged_variable = map_call = map_operand

    def refuse(self, _expr: Any) -> bool:
        return False

    map_if = map_comparison = map_min = map_max = refuse
    # C truncates quotients: Loopy calls functions for // and %, which take no vectors
    map_remainder = map_floor_div = refuse
