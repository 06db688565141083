"""Contractions of two operands by numpy's BLAS, on the host.

The roles of its indices make an einsum of two operands into matrix products; see
:mod:`feinsum.transforms.matrix_roles`. ``acd,dbc->ab`` has the rows a, the columns b
and the sum over c and d. A is a matrix as it lies in memory; B is copied, since no
stride leads from one (c, d) to the next::

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
from feinsum.transforms.cost import distinct_bytes, points
from feinsum.transforms.host.array_function import (
    ArrayFunction,
    ArrayRead,
    read_function,
)
from feinsum.transforms.host.matrix_product import (
    SUM,
    LibraryProgram,
    ProductRow,
    Side,
    merged,
    suits_blas,
)
from feinsum.transforms.matrix_roles import MatrixRoles, find_roles
from feinsum.transforms.primitives.schedule import scaled_sum
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import (
    number,
    reuse,
    text,
    typical,
)

WHOLE = ""
"""The index of blocks where there is only one."""


def library_contraction(
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

    An operand that is an array with mergeable axes is not copied, and sums that are the
    result are written to it directly. A vector is a matrix of one row or column.

    Parameters:
        stacked: output indices, separated by spaces, with one product per value, so
            that the sums need not be moved.
        index: the index along which blocks are made; empty for one block.
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
    products = products_of(kernel, nest, parameters)
    return LibraryUnit.of(t_unit, LibraryProgram(products, extents))


def _stacks(einsum: BatchedEinsum, roles: MatrixRoles) -> tuple[str, ...]:
    """Offer no stack, and the smallest for which all products lie in the result."""
    rest = list(einsum.output)
    inner: list[str] = []
    for group in filter(None, (roles.columns, roles.rows)):
        n_before = len(inner)
        while rest and rest[-1] in group:
            inner.append(rest.pop())
        if len(inner) == n_before:
            return ("",)
    # one product for each value of these, so that rows and columns lie together
    stack = " ".join(index for index in rest if index not in roles.batch)
    return tuple(dict.fromkeys((stack, "")))


def _space(workload: Workload) -> Space | None:
    """Fit products of matrices and vectors, after axes have changed places."""
    einsum = workload.einsum
    roles = find_roles(einsum)
    if roles is None:
        return None
    if not roles.summed:  # a step of ``library_path``
        table: Table = {
            "stacked": ("",),
            "index": (WHOLE,),
            "block": cpu.LIBRARY_BLOCKS[:1],
        }
        return Space(table, is_searched=False)
    table = {
        "stacked": _stacks(einsum, roles),
        "index": (WHOLE, *einsum.output),
        "block": cpu.LIBRARY_BLOCKS,
    }
    first = {name: values[0] for name, values in table.items()}
    return Space(
        table,
        partial(_find_problem, einsum),
        # one block is the fastest, unless an operand is a function
        lambda: (first,),
        is_searched=reuse(einsum) >= cpu.MIN_LIBRARY_REUSE or not roles.are_matrices,
    )


def _find_problem(einsum: BatchedEinsum, parameters: Parameters) -> str | None:
    index, block = text(parameters, "index"), number(parameters, "block")
    if index == WHOLE:
        return None if block == cpu.LIBRARY_BLOCKS[0] else "there is only one block"
    if block != cpu.LIBRARY_BLOCKS[0] and block >= typical(einsum.extents[index]):
        return f"all of {index!r} is in one block"
    return None


def _cost(
    einsum: BatchedEinsum, parameters: Parameters, machine: MachineModel
) -> float:
    """Estimate the seconds of copies into matrices and of products, in sequence.

    Args:
        einsum: its operands count as arrays; functions are evaluated like copies.
        parameters: parameters of ``library_contraction``.
        machine: the machine.
    """
    roles = find_roles(einsum)
    assert roles is not None
    stack = (*roles.batch, *text(parameters, "stacked").split())
    sides = [
        tuple(i for i in part if i not in stack)
        for part in (roles.rows, roles.summed, roles.columns)
    ]
    rows, summed, columns = sides
    terms = einsum.inputs[1 - roles.right], einsum.inputs[roles.right]
    wanted = (stack, rows, summed), (stack, summed, columns)
    n_moved = sum(
        points(einsum, term)
        for term, groups in zip(terms, wanted, strict=True)
        if not _is_matrix(einsum, term, groups)
    )
    if not _is_matrix(einsum, einsum.output, (stack, rows, columns)):
        n_moved += points(einsum, einsum.output)
    itemsize = einsum.operands[0].dtype.itemsize
    # an entry is read, the line of its copy is fetched, and the copy is written
    copy_s = 3 * n_moved * itemsize / machine.bandwidth_bytes_per_s
    index, block = text(parameters, "index"), number(parameters, "block")
    n_blocks = 1 if index == WHOLE else -(-points(einsum, (index,)) // block)
    m, k, n = (points(einsum, part) for part in sides)
    n_products = points(einsum, stack)
    if not summed:
        product_s = (
            points(einsum, einsum.output) * itemsize / cpu.ELEMENTWISE_BYTES_PER_S
        )
    elif m > 1 and n > 1:
        peak = machine.operations_per_s(einsum.operands[0].dtype)
        product_s = n_products * _product_s(m, n, k, peak, machine.n_cores)
    else:
        product_s = _vectors_s(einsum, n_products, max(m, n) * k, machine)
    return einsum.batch_size * (n_blocks * machine.call_s + product_s + copy_s) + (
        machine.call_s if n_moved else 0.0
    )


def _is_matrix(
    einsum: BatchedEinsum, term: IndexList, groups: Sequence[IndexList]
) -> bool:
    """Return whether an array is a stack of matrices that BLAS can read in place."""
    itemsize = einsum.operands[0].dtype.itemsize
    if points(einsum, term) * itemsize > cpu.MOST_BYTES:
        return False
    lie = {
        index: points(einsum, term[at + 1 :]) * itemsize
        for at, index in enumerate(term)
    }
    order = [index for group in groups for index in group]
    shape = [points(einsum, (i,)) if i in lie else 1 for i in order]
    # only for numpy's answer about shape and strides; its entries are never read
    array = np.lib.stride_tricks.as_strided(
        np.empty(1, einsum.operands[0].dtype), shape, [lie.get(i, 0) for i in order]
    )
    lengths = (*[1] * len(groups[0]), *(len(group) for group in groups[1:]))
    whole = merged(array, lengths)
    return whole is not None and suits_blas(whole)


def _product_s(m: int, n: int, k: int, peak: float, n_cores: int) -> float:
    """Estimate one matrix product: small ones are slow, and run on one thread."""
    # short sides cost a share of the rate: half of it at m = 16
    share = cpu.BLAS_SHARE * m / (m + 16) * n / (n + 16) * k / (k + 32)
    operations = 2.0 * m * n * k
    n_threads = n_cores if operations > cpu.SERIAL_OPERATIONS else 1
    return cpu.PRODUCT_S + operations / (peak * share * n_threads)


def _vectors_s(
    einsum: BatchedEinsum, n_products: int, n_entries: int, machine: MachineModel
) -> float:
    """Estimate products with vectors, which take as long as reading the arrays.

    Args:
        einsum: the einsum, with known extents.
        n_products: number of products.
        n_entries: entries of the larger operand of one product.
        machine: the machine.
    """
    read, written = distinct_bytes(einsum)
    n_bytes = (read + written) / einsum.batch_size
    moved_s = n_bytes / (cpu.VECTOR_SHARE * machine.stream_bytes_per_s(n_bytes))
    # one thread alone draws a part of the bandwidth
    n_idle = machine.n_cores if n_entries < cpu.SERIAL_ENTRIES else 1
    return n_products * cpu.PRODUCT_S + n_idle * moved_s


LIBRARY_CONTRACTION = register(
    Transform(
        "library_contraction",
        1,
        "products of matrices by the BLAS of numpy, on the host",
        _space,
        library_contraction,
        _cost,
        devices=frozenset({"cpu"}),
    )
)


def check_extents(kernel: lp.LoopKernel, nest: LoopNest) -> None:
    """Refuse a nest with an extent that the caller does not provide.

    Raises:
        TransformError: naming it.
    """
    for index in nest.einsum.indices:
        extent = nest.extent(index)
        if isinstance(extent, SizeParam) and extent.name not in kernel.arg_dict:
            raise TransformError(f"the extent {extent.name} is not an argument")


def products_of(
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
    index = text(parameters, "index")
    stack = tuple(text(parameters, "stacked").split())
    rows, columns = (
        tuple(i for i in side if i not in stack) for side in (roles.rows, roles.columns)
    )

    def read(expression: Any, indices: Mapping[str, str] = output) -> ArrayFunction:
        expanded = expand(expression)
        return read_function(kernel, expanded, indices, extents, extra=(SUM,))

    def side_of(k: int, position: int, rows: IndexList, columns: IndexList) -> Side:
        rule = kernel.substitutions[nest.rules[einsum.rows[k][position].name]]
        term = einsum.inputs[position]
        indices = dict(zip(rule.arguments, term, strict=True))
        return Side(read(rule.expression, indices), term, rows, columns)

    def product_of(k: int) -> ProductRow:
        return ProductRow(
            left=side_of(k, 1 - roles.right, rows, roles.summed),
            right=side_of(k, roles.right, roles.summed, columns),
            result=_result(read, nest.assignees[k]),
            finish=read(_finished(nest.scales[k], nest.shifts[k])),
            stack=(*roles.batch, *stack),
            index=None if index == WHOLE else index,
            block=number(parameters, "block"),
            dtype=einsum.rows[k][0].dtype,
        )

    return tuple(map(product_of, range(einsum.batch_size)))


def _result(read: Callable[[Any], ArrayFunction], assignee: Any) -> ArrayRead:
    # an array of rank 0 is assigned without a subscript
    is_whole = isinstance(assignee, p.Variable)
    result = read(p.Subscript(assignee, ()) if is_whole else assignee).read
    if result is None:
        raise TransformError(f"the result {assignee} is not an array")
    return result


def _finished(scale: Any, shift: Any) -> Any:
    """Return ``shift + scale*sum``, without trivial parts."""
    value = scaled_sum(scale, (), var(SUM))
    is_shifted = not (isinstance(shift, int) and shift == 0)
    return p.Sum((shift, value)) if is_shifted else value
