"""Contractions of two operands by numpy's BLAS, on the host.

By the roles of its indices, an einsum of two operands is a stack of matrix products;
see :mod:`feinsum.transforms.roles`. ``acd,dbc->ab`` has the rows a, the columns
b and the sum over c and d. A is a matrix in place; B is copied, since there is no
single stride from one (c, d) to the next::

    A[a,c,d]  is  left[a,(c,d)]       a view: the axes c and d are contiguous
    B[d,b,c]  -->  right[(c,d),b]     a copy in another order
    out[a,b]  =   left @ right        one call of BLAS

Source: Springer and Bientinesi 2018, section 2 (transpose, transpose, multiply,
transpose; loops over matrix products).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import loopy as lp
import numpy as np
from loopy.symbolic import SubstitutionRuleExpander
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, IndexList, SizeParam, Workload
from feinsum.machine import MachineModel
from feinsum.raising import LoopNest
from feinsum.targets.units import LibraryUnit
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.cost import count_distinct_bytes, count_points
from feinsum.transforms.host.array_function import (
    ArrayFunction,
    ArrayRead,
    read_function,
)
from feinsum.transforms.host.matrix_product import (
    SUM,
    LibraryProgram,
    MatrixOperand,
    ProductRow,
    merge_axes,
    suits_blas,
)
from feinsum.transforms.primitives.schedule import make_scaled_sum
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import (
    MatrixRoles,
    compute_reuse,
    find_roles,
    get_typical_extent,
)

WHOLE = ""
"""The index of blocks if there is only one block."""


def apply(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Replace the kernel with numpy's matrix products.

    Rewrite, for ``acd,dbc->ab`` with ``index="a"``::

        for a, b:  out[a,b] = sum([c, d], A(a,c,d)*B(d,b,c))

        right[c,d,b] = B(...)                          # on the host
        for block of a:
            left[a,c,d] = A(...)
            sums[a,b] = left[a,(c,d)] @ right[(c,d),b]
            out[a,b] = shift + scale*sums[a,b]

    An array whose axes can be merged is not copied. BLAS writes to the result directly
    if it equals the sum. A vector is a matrix of one row or column.

    Parameters:
        stacked: output indices, separated by spaces, that have one product per value,
            so that the sums need no copy.
        index: the index that is cut into blocks; empty for one block.
        block: its values per block.
    """
    kernel = t_unit[nest.kernel_name]
    ids = {insn.id for insn in kernel.instructions}
    if ids != set(nest.instructions) or len(t_unit.entrypoints) != 1:
        raise TransformError(
            "a library computes whole kernels; this one does more than the einsum"
        )
    check_extents(kernel, nest)
    extents = {index: nest.extent(index) for index in nest.einsum.indices}
    products = describe_products(kernel, nest, parameters)
    return LibraryUnit.of(t_unit, LibraryProgram(products, extents))


def _list_stacks(einsum: BatchedEinsum, roles: MatrixRoles) -> tuple[str, ...]:
    """Return the smallest stack with which BLAS can write to the result, and none."""
    outer = list(einsum.output)
    inner: list[str] = []
    for group in filter(None, (roles.columns, roles.rows)):
        n_before = len(inner)
        while outer and outer[-1] in group:
            inner.append(outer.pop())
        if len(inner) == n_before:
            return ("",)
    # with one product for each value of these, rows and columns are innermost
    stack = " ".join(index for index in outer if index not in roles.batch)
    return tuple(dict.fromkeys((stack, "")))


def space(workload: Workload) -> Space | None:
    """Fit all products of matrices and vectors, which may need transposing copies."""
    einsum = workload.einsum
    roles = find_roles(einsum)
    if roles is None:
        return None
    table: Table = {
        "stacked": _list_stacks(einsum, roles),
        "index": (WHOLE, *einsum.output),
        "block": cpu.LIBRARY_BLOCKS,
    }
    return Space(
        table,
        partial(_find_problem, einsum),
        # one block is the fastest, unless an operand is a function
        {name: values[:1] for name, values in table.items()},
        is_searched=compute_reuse(einsum) >= cpu.MIN_LIBRARY_REUSE
        or not roles.are_matrices,
    )


def _find_problem(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    index, block = parameters["index"], parameters["block"]
    if index == WHOLE:
        return None if block == cpu.LIBRARY_BLOCKS[0] else "there is only one block"
    if block != cpu.LIBRARY_BLOCKS[0] and block >= get_typical_extent(
        einsum.extents[index]
    ):
        return f"all of {index!r} is in one block"
    return None


def cost(einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel) -> float:
    """Predict the seconds of copies into matrices and of products, in sequence.

    Args:
        einsum: the einsum, with known extents. Its operands count as arrays; to
            evaluate a function takes as long as a copy.
        parameters: parameters of ``library_contraction``.
        machine: the machine.
    """
    roles = find_roles(einsum)
    assert roles is not None
    stack = (*roles.batch, *parameters["stacked"].split())
    sides = [
        tuple(i for i in indices if i not in stack)
        for indices in (roles.rows, roles.summed, roles.columns)
    ]
    rows, summed, columns = sides
    terms = einsum.inputs[1 - roles.right], einsum.inputs[roles.right]
    wanted = (stack, rows, summed), (stack, summed, columns)
    n_moved = sum(
        count_points(einsum, term)
        for term, groups in zip(terms, wanted, strict=True)
        if not _is_matrix(einsum, term, groups)
    )
    if not _is_matrix(einsum, einsum.output, (stack, rows, columns)):
        n_moved += count_points(einsum, einsum.output)
    itemsize = einsum.operands[0].dtype.itemsize
    # a copy reads an entry, fetches the line of the target, and writes it
    copy_s = 3 * n_moved * itemsize / machine.bandwidth_bytes_per_s
    index, block = parameters["index"], parameters["block"]
    n_blocks = 1 if index == WHOLE else -(-count_points(einsum, (index,)) // block)
    m, k, n = (count_points(einsum, indices) for indices in sides)
    n_products = count_points(einsum, stack)
    if m > 1 and n > 1:
        peak = machine.operations_per_s(einsum.operands[0].dtype)
        product_s = n_products * _predict_product_s(m, n, k, peak, machine.n_cores)
    else:
        product_s = _predict_vectors_s(einsum, n_products, max(m, n) * k, machine)
    return einsum.batch_size * (n_blocks * machine.call_s + product_s + copy_s) + (
        machine.call_s if n_moved else 0.0
    )


def _is_matrix(
    einsum: BatchedEinsum, term: IndexList, groups: Sequence[IndexList]
) -> bool:
    """Return whether BLAS can read an array in place, as a stack of matrices."""
    itemsize = einsum.operands[0].dtype.itemsize
    # numpy makes no larger array, not even as a view
    if count_points(einsum, term) * itemsize > np.iinfo(np.intp).max:
        return False
    stride_of = {
        index: count_points(einsum, term[axis + 1 :]) * itemsize
        for axis, index in enumerate(term)
    }
    order = [index for group in groups for index in group]
    shape = [count_points(einsum, (i,)) if i in stride_of else 1 for i in order]
    # only its shape and strides are used: its entries do not exist
    array = np.lib.stride_tricks.as_strided(
        np.empty(1, einsum.operands[0].dtype),
        shape,
        [stride_of.get(i, 0) for i in order],
    )
    lengths = (*[1] * len(groups[0]), *(len(group) for group in groups[1:]))
    matrices = merge_axes(array, lengths)
    return matrices is not None and suits_blas(matrices)


def _predict_product_s(m: int, n: int, k: int, peak: float, n_cores: int) -> float:
    """Predict the seconds of a matrix product: small ones are slow, on one thread."""
    # short sides lower the rate: to half at m = 16
    share = cpu.BLAS_SHARE * m / (m + 16) * n / (n + 16) * k / (k + 32)
    operations = 2.0 * m * n * k
    n_threads = n_cores if operations > cpu.SERIAL_OPERATIONS else 1
    return cpu.PRODUCT_S + operations / (peak * share * n_threads)


def _predict_vectors_s(
    einsum: BatchedEinsum, n_products: int, n_entries: int, machine: MachineModel
) -> float:
    """Predict the seconds of products with vectors: those to read the arrays.

    Args:
        einsum: the einsum, with known extents.
        n_products: number of products.
        n_entries: entries of the larger operand of one product.
        machine: the machine.
    """
    read, written = count_distinct_bytes(einsum)
    n_bytes = (read + written) / einsum.batch_size
    moved_s = n_bytes / (cpu.VECTOR_SHARE * machine.stream_bytes_per_s(n_bytes))
    # one thread alone reaches only a part of the bandwidth
    n_idle = machine.n_cores if n_entries < cpu.SERIAL_ENTRIES else 1
    return n_products * cpu.PRODUCT_S + n_idle * moved_s


LIBRARY_CONTRACTION = register(
    Transform(
        "library_contraction",
        1,
        "products of matrices by the BLAS of numpy, on the host",
        space,
        apply,
        cost,
        devices=frozenset({"cpu"}),
    )
)


def check_extents(kernel: lp.LoopKernel, nest: LoopNest) -> None:
    """Refuse a nest with an extent that is not an argument of the kernel.

    Raises:
        TransformError: naming the extent.
    """
    for index in nest.einsum.indices:
        extent = nest.extent(index)
        if isinstance(extent, SizeParam) and extent.name not in kernel.arg_dict:
            raise TransformError(f"the extent {extent.name} is not an argument")


def describe_products(
    kernel: lp.LoopKernel, nest: LoopNest, parameters: Parameters
) -> tuple[ProductRow, ...]:
    """Describe the rows of a nest as matrix products.

    Args:
        kernel: the kernel of the nest.
        nest: the loop nest.
        parameters: parameters of ``library_contraction``.

    Raises:
        TransformError: if numpy cannot evaluate a function of the nest.
    """
    einsum, roles = nest.einsum, find_roles(nest.einsum)
    assert roles is not None
    expand = SubstitutionRuleExpander(kernel.substitutions)
    extents = {i: nest.extent(i) for i in einsum.indices}
    output = {nest.inames[index]: index for index in einsum.output}
    index = parameters["index"]
    stack = tuple(parameters["stacked"].split())
    rows, columns = (
        tuple(i for i in side if i not in stack) for side in (roles.rows, roles.columns)
    )

    def read(expression: Any, indices: Mapping[str, str] = output) -> ArrayFunction:
        expanded = expand(expression)
        return read_function(kernel, expanded, indices, extents, extra=(SUM,))

    def side_of(
        k: int, position: int, rows: IndexList, columns: IndexList
    ) -> MatrixOperand:
        rule = kernel.substitutions[nest.rules[einsum.rows[k][position].name]]
        term = einsum.inputs[position]
        indices = dict(zip(rule.arguments, term, strict=True))
        return MatrixOperand(read(rule.expression, indices), term, rows, columns)

    def product_of(k: int) -> ProductRow:
        return ProductRow(
            left=side_of(k, 1 - roles.right, rows, roles.summed),
            right=side_of(k, roles.right, roles.summed, columns),
            result=_find_result(read, nest.assignees[k]),
            finish=read(_make_finish(nest.scales[k], nest.shifts[k])),
            stack=(*roles.batch, *stack),
            index=None if index == WHOLE else index,
            block=parameters["block"],
            dtype=einsum.rows[k][0].dtype,
        )

    return tuple(map(product_of, range(einsum.batch_size)))


def _find_result(read: Callable[[Any], ArrayFunction], assignee: Any) -> ArrayRead:
    # the assignee of an array of rank 0 has no subscript
    is_whole = isinstance(assignee, p.Variable)
    result = read(p.Subscript(assignee, ()) if is_whole else assignee).read
    if result is None:
        raise TransformError(f"the result {assignee} is not an array")
    return result


def _make_finish(scale: Any, shift: Any) -> Any:
    """Return ``shift + scale*sum``, without trivial parts."""
    value = make_scaled_sum(scale, (), var(SUM))
    is_shifted = not (isinstance(shift, int) and shift == 0)
    return p.Sum((shift, value)) if is_shifted else value
