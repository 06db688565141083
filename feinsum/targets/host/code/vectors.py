"""Vectors of C, by the extensions of GNU C that gcc and clang share.

There are no vectors of complex numbers in C: theirs are arrays, whose lanes are
computed one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from loopy.codegen import UnvectorizableError
from loopy.expression import VectorizabilityChecker
from loopy.kernel.array import ArrayBase
from loopy.symbolic import CombineMapper
from loopy.target.opencl import vec

__all__ = ["UNALIGNED", "VECTORS", "VectorValue", "declared", "vector_preamble"]

UNALIGNED = "_unaligned"
"""After the name of a type: a vector that begins at any entry of an array."""

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
        name: its name in C, that of OpenCL where that has one.
        entry: the type of its entries in C.
        dtype: by which Loopy knows the vector.
    """

    name: str
    entry: str
    entry_dtype: np.dtype[Any]
    dtype: np.dtype[Any]
    n_lanes: int

    @property
    def declaration(self) -> str:
        """The type, and the same for vectors that may lie anywhere in memory."""
        size = self.entry_dtype.itemsize
        room = 4 if self.n_lanes == 3 else self.n_lanes  # as in OpenCL
        if self.entry_dtype.kind == "c":
            return (
                f"typedef {self.entry} {self.name}[{room}];\n"
                f"typedef {self.name} {self.name}{UNALIGNED};"
            )
        return (
            f"typedef {self.entry} {self.name} "
            f"__attribute__((vector_size({room * size})));\n"
            f"typedef {self.name} {self.name}{UNALIGNED} "
            # arrays are declared by entry: without may_alias, access to them as
            # vectors would break strict aliasing
            f"__attribute__((aligned({size}), may_alias));"
        )


def _vector(base: str, n_lanes: int) -> Vector:
    entry, kind = _ENTRIES[base]
    of_entry = np.dtype(kind)
    dtype = vec.types.get((of_entry, n_lanes))
    if dtype is None:
        dtype = np.dtype([(f"s{lane}", of_entry) for lane in range(n_lanes)])
    return Vector(f"{base}{n_lanes}", entry, of_entry, dtype, n_lanes)


VECTORS = {
    (vector.entry_dtype, n_lanes): vector
    for n_lanes in LANES
    for vector in (_vector(base, n_lanes) for base in _ENTRIES)
}


def vector_preamble(info: Any) -> Iterator[tuple[str, str]]:
    """The vector types that the code of a kernel names."""
    used = {
        (array.dtype.numpy_dtype, array.vector_length())
        for array in (*info.kernel.args, *info.kernel.temporary_variables.values())
        if isinstance(array, ArrayBase) and array.vector_length() > 1
    }
    declared = sorted(VECTORS[kind].declaration for kind in used)
    if declared:
        yield ("01_vectors", "\n".join(("#include <stdint.h>", *declared)))


def declared(name: str) -> str:
    """The declaration of a vector type, and of one that may lie anywhere.

    >>> print(declared("float4"))
    typedef float float4 __attribute__((vector_size(16)));
    typedef float4 float4_unaligned __attribute__((aligned(4), may_alias));
    """
    return next(v.declaration for v in VECTORS.values() if v.name == name)


class VectorValue(CombineMapper[bool, []]):  # type: ignore[misc]
    """Tells whether GNU C can compute a value with vectors.

    It has no conditionals and no functions of vectors, and converts only scalars
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
        """Every part of it; Loopy looks at the first vector and no further."""
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
    map_remainder = map_floor_div = refuse
