"""CUDA as a target of Loopy, with features that Loopy's own target lacks.

These are vector types with arithmetic; numbers of half precision; pointers to constant
entries, so that the compiler loads them through the read-only path; and shared memory
beyond the 48 KiB that a kernel may declare.

Vectors are instances of one template, because CUDA's own have no arithmetic. A vector
is aligned to its size, up to 16 bytes, so that one instruction moves it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import loopy as lp
import numpy as np
from cgen import AlignedAttribute, Line, Pointer, Value
from cgen.cuda import CudaRestrictPointer, CudaShared
from loopy.diagnostic import LoopyError
from loopy.kernel.data import AddressSpace
from loopy.schedule import CallKernel, get_insn_ids_for_block_at, linearize
from loopy.schedule.tools import get_subkernel_arg_info
from loopy.symbolic import Literal
from loopy.target.c import CFamilyASTBuilder
from loopy.target.cuda import CUDACASTBuilder, ExpressionToCudaCExpressionMapper
from loopy.types import NumpyType
from pymbolic import var
from pymbolic.mapper.evaluator import evaluate
from pytools.tag import Tag

from feinsum.errors import BuildError
from feinsum.targets.cuda import halves
from feinsum.targets.cuda.gemm import Gemm
from feinsum.targets.cuda.products import MatrixProduct
from feinsum.targets.layout import get_entry_kernel
from feinsum.targets.quiet import quicker

STATIC_SHARED_BYTES = 48 << 10
"""Maximum bytes of shared memory that a kernel can declare; launches may get more."""

CAPABILITY_MACRO = "feinsum_least_capability"
"""The macro with the least compute capability for a source."""

ALIGNMENT = 16
"""Alignment of shared arrays, the maximum bytes that one instruction moves."""

SHARED = "feinsum_shared"
"""Name of the memory requested at the launch."""


@dataclass(frozen=True)
class LeastGroups(Tag):  # type: ignore[misc]
    """Tag of a kernel whose registers must allow ``n`` groups on a multiprocessor."""

    n: int


@dataclass(frozen=True)
class OrderedLoads(Tag):  # type: ignore[misc]
    """Tag of a kernel whose loads must not move across barriers.

    Without it, arrays are restricted, and loads of read-only arrays may move anywhere.
    """


def _digest_source() -> str:
    """Return a digest of this folder's modules, for Loopy's cache; see the host's."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


SOURCE = _digest_source()


class CudaTarget(lp.CudaTarget):  # type: ignore[misc]
    """Loopy's target for CUDA with arithmetic of vectors and more shared memory."""

    hash_fields = (*lp.CudaTarget.hash_fields, "version")
    comparison_fields = (*lp.CudaTarget.comparison_fields, "version")

    def __init__(self, extern_c: bool = True) -> None:
        super().__init__(extern_c)
        self.version = SOURCE

    def __repr__(self) -> str:
        return "CudaTarget()"

    @cache  # noqa: B019  (targets of one class are equal)
    def get_dtype_registry(self) -> Any:
        registry = super().get_dtype_registry()
        # Loopy writes C's declarations by the registered names
        for (entry, lanes), dtype in VECTORS.items():
            name = format_vector_name(entry, lanes)
            registry.get_or_register_dtype([name], NumpyType(dtype))
        for half, name in halves.HALVES.items():
            registry.get_or_register_dtype([name], NumpyType(half))
        return registry

    def is_vector_dtype(self, dtype: Any) -> bool:
        return isinstance(dtype, NumpyType) and dtype.numpy_dtype in VECTORS.values()

    def vector_dtype(self, base: Any, count: int) -> Any:
        """Return the dtype of a vector of lanes.

        Raises:
            LoopyError: if there is no such vector.
        """
        vector = VECTORS.get((base.numpy_dtype, count))
        if vector is None:
            raise LoopyError(f"no vectors of {count} lanes of {base} in CUDA")
        return NumpyType(vector)

    def get_host_ast_builder(self) -> Any:
        return _HostBuilder(self)

    def get_device_ast_builder(self) -> Any:
        return _Builder(self)


def _list_preambles(info: Any) -> Iterator[tuple[str, str]]:
    yield ("00_feinsum_vectors", PREAMBLE)
    seen = {t.dtype for t in info.seen_dtypes if isinstance(t, NumpyType)}
    if seen & {*halves.HALVES}:
        yield ("00_feinsum_halves", halves.PREAMBLE)


class _ExpressionMapper(ExpressionToCudaCExpressionMapper):  # type: ignore[misc]
    def map_constant(self, expr: Any, type_context: str | None) -> Any:
        if isinstance(expr, np.generic) and expr.dtype in halves.HALVES:
            return Literal(halves.format_half(expr))
        # half precision, of which Loopy has no context, computes in single precision
        return super().map_constant(expr, type_context or "f")

    def map_if(self, expr: Any, type_context: str | None) -> Any:
        condition = super().map_if(expr, type_context)
        if self.infer_type(expr).numpy_dtype not in halves.HALVES:
            return condition
        # C++ has to know that both are single, not which of them to round
        branches = (var("(float) ")(x) for x in (condition.then, condition.else_))
        return type(expr)(condition.condition, *branches)


class _HostBuilder(CFamilyASTBuilder):  # type: ignore[misc]
    """Write no host code; without a builder Loopy drops all kernels but the first."""

    def get_function_declaration(self, *_args: Any) -> tuple[tuple[()], Any]:
        return (), Line("")

    def get_function_definition(self, *_args: Any) -> Any:
        return Line("")

    def get_temporary_decls(self, *_args: Any) -> list[Any]:
        return []

    def get_kernel_call(self, *_args: Any) -> Any:
        return Line("")

    def emit_barrier(self, *_args: Any) -> Any:
        return Line("")


class _Builder(CUDACASTBuilder):  # type: ignore[misc]
    def preamble_generators(self) -> Sequence[Any]:
        return (*super().preamble_generators(), _list_preambles)

    def get_expression_to_c_expression_mapper(self, codegen_state: Any) -> Any:
        return _ExpressionMapper(codegen_state)

    def get_function_declaration(
        self, codegen_state: Any, codegen_result: Any, schedule_index: int
    ) -> Any:
        preambles, declared = super().get_function_declaration(
            codegen_state, codegen_result, schedule_index
        )
        # __launch_bounds__: by default the compiler uses registers as for one group
        for least in codegen_state.kernel.tags_of_type(LeastGroups):
            declared.subdecl.min_blocks_per_mp = least.n
        return preambles, declared

    def add_vector_access(self, access_expr: Any, index: Any) -> Any:
        return access_expr.attr("s")[index]

    def arg_to_cgen_declarator(
        self, kernel: Any, passed_name: str, is_written: bool
    ) -> Any:
        declarator = super().arg_to_cgen_declarator(kernel, passed_name, is_written)
        is_array = isinstance(declarator, CudaRestrictPointer)
        if is_array and kernel.tags_of_type(OrderedLoads):
            # the compiler may move loads of a restricted pointer behind barriers, to
            # their first use
            return Pointer(declarator.subdecl)
        return declarator

    def get_array_arg_declarator(self, arg: Any, is_written: bool) -> Any:
        """Declare read-only arrays const: the compiler then uses the read-only path."""
        return self._declare_pointer(arg, is_written)

    def get_temporary_arg_decl(self, temp_var: Any, is_written: bool) -> Any:
        return self._declare_pointer(temp_var, is_written)

    def _declare_pointer(self, array: Any, is_written: bool) -> Any:
        entry = self.get_array_base_declarator(array)
        if not is_written:
            # const and restricted, so that loads may use the read-only cache
            (kind,), name = entry.get_decl_pair()
            entry = Value(f"const {kind}", name)
        return CudaRestrictPointer(entry)

    def get_temporary_decls(self, codegen_state: Any, schedule_index: int) -> Any:
        """Declare shared arrays, or parts of one array if their total is too large."""
        declared = [
            AlignedAttribute(ALIGNMENT, line) if isinstance(line, CudaShared) else line
            for line in super().get_temporary_decls(codegen_state, schedule_index)
        ]
        offsets, n_bytes = _compute_shared_offsets(codegen_state.kernel, schedule_index)
        if n_bytes <= STATIC_SHARED_BYTES:
            return declared
        private = [line for line in declared if _get_declared_name(line) not in offsets]
        arrays = codegen_state.kernel.temporary_variables
        lines = [f"extern __shared__ __align__({ALIGNMENT}) char {SHARED}[];"]
        for name, offset in offsets.items():
            entry = self.get_array_base_declarator(arrays[name])
            (kind,), _ = entry.get_decl_pair()
            lines.append(f"{kind} *const {name} = ({kind} *) ({SHARED} + {offset});")
        return [*map(Line, lines), *private]


def _get_declared_name(declaration: Any) -> str:
    """Return the name that a C declaration declares."""
    while hasattr(declaration, "subdecl"):
        declaration = declaration.subdecl
    return str(getattr(declaration, "name", ""))


def _compute_shared_offsets(
    kernel: Any, schedule_index: int
) -> tuple[dict[str, int], int]:
    """Return the offsets and total size of a launch's shared arrays, in bytes."""
    ids = get_insn_ids_for_block_at(kernel.linearization, schedule_index)
    insns = [kernel.id_to_insn[i] for i in ids]
    used = set().union(
        *(insn.read_dependency_names() | insn.write_dependency_names()
          for insn in insns)
    )  # fmt: skip
    offsets: dict[str, int] = {}
    end = 0
    # sorted, so that the source does not depend on the order of a dictionary
    for name, array in sorted(kernel.temporary_variables.items()):
        if name in used and array.address_space == AddressSpace.LOCAL:
            offsets[name] = end
            lanes = prod(int(n) for n in array.shape)
            # each array is aligned for copies of 16 bytes
            n_bytes = lanes * array.dtype.itemsize
            end += -(-n_bytes // ALIGNMENT) * ALIGNMENT
    return offsets, end


@dataclass(frozen=True)
class CudaLaunch:
    """A kernel of one launch.

    Attributes:
        name: name of its function.
        arguments: names of the arguments, in the order of the function.
        grid, block: three extents each, in terms of the scalars.
        shared_bytes: bytes of dynamic shared memory of the launch.
        static_bytes: bytes of shared memory that its source declares.
        least_capability: the least compute capability that it needs, as a number.
        product: the product that cuBLAS computes instead of the function, if any.
    """

    name: str
    arguments: tuple[str, ...]
    grid: tuple[Any, Any, Any]
    block: tuple[Any, Any, Any]
    shared_bytes: int
    static_bytes: int
    least_capability: int = 0
    product: MatrixProduct | None = None

    def sizes(self, scalars: Mapping[str, Any]) -> tuple[list[int], list[int]]:
        """Return the grid and block for the values of the scalars."""
        values = _select_integers(scalars)
        grid, block = (
            [int(evaluate(extent, values)) for extent in extents]
            for extents in (self.grid, self.block)
        )
        return grid, block

    @property
    def n_threads(self) -> int | None:
        """Work-items of a group; None if scalars decide."""
        is_known = all(isinstance(n, (int, np.integer)) for n in self.block)
        return prod(map(int, self.block)) if is_known else None

    def gemm(self, scalars: Mapping[str, Any]) -> Gemm | None:
        """Return the product for these values of the scalars; None without one."""
        return (
            None
            if self.product is None
            else self.product.gemm(_select_integers(scalars))
        )


def _select_integers(scalars: Mapping[str, Any]) -> dict[str, int]:
    integers = (int, np.integer)
    return {name: int(n) for name, n in scalars.items() if isinstance(n, integers)}


@dataclass(frozen=True)
class CudaCode:
    """Code that Loopy generates for a kernel.

    Attributes:
        source: source in CUDA C++, for NVRTC.
        launches: the launches, in order.
        scalars: the dtype of each argument that is not an array.
        temporaries: shape and dtype of each temporary in global memory, by name.
    """

    source: str
    launches: tuple[CudaLaunch, ...]
    scalars: Mapping[str, np.dtype[Any]]
    temporaries: Mapping[str, tuple[tuple[Any, ...], np.dtype[Any]]]


def generate_cuda(t_unit: Any) -> CudaCode:
    """Generate the code of a typed unit for :class:`CudaTarget`.

    Raises:
        BuildError: if the unit has complex numbers, which the target has no type for.
    """
    kernel = get_entry_kernel(t_unit)
    arrays = (*kernel.args, *kernel.temporary_variables.values())
    # Loopy's types of complex numbers are in no header of this target
    if any(a.dtype is not None and a.dtype.is_complex() for a in arrays):
        raise BuildError(
            f"kernel {kernel.name!r} has complex numbers, which the target cuda does "
            "not have; take an OpenCL device or the host"
        )
    # linearized separately, because the launches are read off the linearization
    with quicker():
        unit = linearize(lp.preprocess_program(t_unit))
        source = lp.generate_code_v2(unit).device_code()
    kernel = get_entry_kernel(unit)
    # primitives that need a newer GPU define this macro in their preamble
    capability_macro = re.search(rf"#define {CAPABILITY_MACRO} (\d+)", source)
    launches = tuple(
        _make_launch(
            kernel,
            unit.callables_table,
            position,
            int(capability_macro[1]) if capability_macro else 0,
        )
        for position, item in enumerate(kernel.linearization)
        if isinstance(item, CallKernel)
    )
    # temporaries that pass from one launch to another are arguments of both
    passed = {name for launch in launches for name in launch.arguments}
    return CudaCode(
        source,
        launches,
        {
            arg.name: arg.dtype.numpy_dtype
            for arg in kernel.args
            if isinstance(arg, lp.ValueArg)
        },
        {
            name: (tuple(array.shape), array.dtype.numpy_dtype)
            for name, array in kernel.temporary_variables.items()
            if name in passed
        },
    )


def _make_launch(
    kernel: Any, callables: Any, position: int, capability: int
) -> CudaLaunch:
    name = kernel.linearization[position].kernel_name
    ids = get_insn_ids_for_block_at(kernel.linearization, position)
    grid, block = kernel.get_grid_sizes_for_insn_ids_as_exprs(ids, callables)
    _, n_bytes = _compute_shared_offsets(kernel, position)
    is_large = n_bytes > STATIC_SHARED_BYTES
    products = [
        tag
        for insn_id in ids
        for tag in kernel.id_to_insn[insn_id].tags_of_type(MatrixProduct)
    ]
    return CudaLaunch(
        name,
        tuple(get_subkernel_arg_info(kernel, name).passed_names),
        _pad_to_three(grid),
        _pad_to_three(block),
        n_bytes if is_large else 0,
        0 if is_large else n_bytes,
        capability,
        products[0] if products else None,
    )


def _pad_to_three(extents: Sequence[Any]) -> tuple[Any, Any, Any]:
    # Loopy returns as many axes as the kernel has
    x, y, z = (*extents, 1, 1, 1)[:3]
    return x, y, z


LANES = (2, 3, 4, 8, 16)
"""Numbers of lanes, those of OpenCL."""

_ENTRIES = {
    "signed char": np.int8,
    "unsigned char": np.uint8,
    "short": np.int16,
    "unsigned short": np.uint16,
    "int": np.int32,
    "unsigned int": np.uint32,
    "long": np.int64,
    "unsigned long": np.uint64,
    "float": np.float32,
    "double": np.float64,
}

VECTORS = {
    (np.dtype(kind), lanes): np.dtype([(f"s{k}", kind) for k in range(lanes)])
    for kind in _ENTRIES.values()
    for lanes in LANES
}
"""The dtypes that represent vectors in Loopy, by entry and number of lanes."""


def format_vector_name(entry: np.dtype[np.generic], lanes: int) -> str:
    """Return the name of a vector type in CUDA C++.

    >>> format_vector_name(np.dtype(np.float64), 4)
    'feinsum_vec<double, 4>'
    """
    names = {np.dtype(kind): name for name, kind in _ENTRIES.items()}
    return f"feinsum_vec<{names[entry]}, {lanes}>"


def _write_operator(sign: str) -> str:
    loop = "for (int k = 0; k < N; ++k)"
    return f"""\
template <typename T, int N>
inline __device__ feinsum_vec<T, N> operator{sign}(
    feinsum_vec<T, N> const &a, feinsum_vec<T, N> const &b)
{{
  feinsum_vec<T, N> c;
  _Pragma("unroll")
  {loop} c.s[k] = a.s[k] {sign} b.s[k];
  return c;
}}
template <typename T, int N, typename S>
inline __device__ feinsum_vec<T, N> operator{sign}(feinsum_vec<T, N> const &a, S b)
{{
  return a {sign} feinsum_vec<T, N>((T) b);
}}
template <typename T, int N, typename S>
inline __device__ feinsum_vec<T, N> operator{sign}(S a, feinsum_vec<T, N> const &b)
{{
  return feinsum_vec<T, N>((T) a) {sign} b;
}}
template <typename T, int N, typename S>
inline __device__ feinsum_vec<T, N> &operator{sign}=(feinsum_vec<T, N> &a, S const &b)
{{
  return a = a {sign} b;
}}
"""


PREAMBLE = f"""\
#define feinsum_has_cuda 1
constexpr int feinsum_alignment(int n_bytes)
{{
  return n_bytes % 16 == 0 ? 16 : n_bytes % 8 == 0 ? 8 : n_bytes % 4 == 0 ? 4
         : n_bytes % 2 == 0 ? 2 : 1;
}}
template <typename T, int N>
struct alignas(feinsum_alignment(N * sizeof(T))) feinsum_vec
{{
  T s[N];
  feinsum_vec() = default;
  inline __device__ feinsum_vec(T x)
  {{
    _Pragma("unroll")
    for (int k = 0; k < N; ++k) s[k] = x;
  }}
}};
{"".join(map(_write_operator, "+-*/"))}"""
"""The template, and arithmetic of vectors with vectors and with numbers."""
