"""Contractions of two operands by the compiled kernel of :mod:`feinsum.contraction`.

The kernel takes the offsets of batch, row, column and summed indices in each array, so
it computes any einsum of two arrays as a matrix product, without copies in another
order. For ``acd,dbc->ab`` the rows are a, the columns b and the terms c and d::

    A[a,c,d]   offsets of a, and of (c,d)           where the array is
    B[d,b,c]   offsets of (c,d), and of b           likewise
    out[a,b] = sum over (c,d)                       one call of the kernel

Nothing is compiled. Affine functions of an array are applied where the kernel packs its
entries; other operands that are functions are evaluated by numpy first, block by block.
See :mod:`feinsum.transforms.host.contraction_program`.

Source: Matthews 2018, High-Performance Tensor Contraction without Transposition,
section 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import loopy as lp
from loopy.symbolic import SubstitutionRuleExpander
from pymbolic import primitives as p
from pymbolic import var

from feinsum.contraction import ProductIndices, Step, classify_indices
from feinsum.errors import TransformError
from feinsum.ir import BatchedEinsum, SizeParam, Workload
from feinsum.machine import MachineModel
from feinsum.raising import LoopNest
from feinsum.targets.units import LibraryUnit
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.cost import count_distinct_bytes
from feinsum.transforms.host.array_function import (
    ArrayFunction,
    ArrayRead,
    read_function,
)
from feinsum.transforms.host.contraction_program import (
    SUM,
    ContractionProgram,
    ContractionRow,
    takes_functions,
)
from feinsum.transforms.primitives.schedule import make_scaled_sum
from feinsum.transforms.registry import Parameters, Space, Table, Transform, register
from feinsum.transforms.roles import (
    compute_reuse,
    count_points,
    get_typical_extent,
    has_blas_dtype,
    has_diagonal,
)

WHOLE = ""
"""The index of blocks if there is only one block."""


def apply(
    t_unit: lp.TranslationUnit, nest: LoopNest, parameters: Parameters
) -> lp.TranslationUnit:
    """Replace the kernel with calls of the contraction kernel.

    Rewrite, for ``acd,dbc->ab`` with ``index="a"``::

        for a, b:  out[a,b] = sum([c, d], A(a,c,d)*B(d,b,c))

        right[d,b,c] = B(...)                          # on the host
        for block of a:
            left[a,c,d] = A(...)
            sums[a,b] = contract(left, right)
            out[a,b] = shift + scale*sums[a,b]

    An array is read in place. The kernel writes to the result if it equals the sum.

    Parameters:
        index: the index that is cut into blocks; empty for one block.
        block: its values per block.
    """
    kernel = t_unit[nest.kernel_name]
    ids = {insn.id for insn in kernel.instructions}
    if ids != set(nest.instructions) or len(t_unit.entrypoints) != 1:
        raise TransformError(
            "a library computes whole kernels; this one does more than the einsum"
        )
    extents = {index: nest.extent(index) for index in nest.einsum.indices}
    for extent in extents.values():
        if isinstance(extent, SizeParam) and extent.name not in kernel.arg_dict:
            raise TransformError(f"the extent {extent.name} is not an argument")
    rows = describe_rows(kernel, nest, parameters)
    return LibraryUnit.of(t_unit, ContractionProgram(rows, extents))


def space(workload: Workload) -> Space | None:
    """Fit two operands with a common summed index."""
    einsum = workload.einsum
    if einsum.n_operands != 2 or not has_blas_dtype(einsum) or has_diagonal(einsum):
        return None
    kinds = _classify(einsum)
    if not kinds.summed:
        return None
    table: Table = {"index": (WHOLE, *einsum.output), "block": cpu.LIBRARY_BLOCKS}
    return Space(
        table,
        partial(_find_problem, einsum),
        # one block is the fastest, unless an operand is a function
        {name: values[:1] for name, values in table.items()},
        is_searched=compute_reuse(einsum) >= cpu.MIN_LIBRARY_REUSE
        or not (kinds.rows and kinds.columns),
    )


def _classify(einsum: BatchedEinsum) -> ProductIndices:
    first, second = einsum.inputs
    return classify_indices(first, second, einsum.output)


def fuses_affine_operands(einsum: BatchedEinsum) -> bool:
    """Return whether the kernel takes affine functions of arrays as operands."""
    if einsum.n_operands != 2:
        return False
    sizes = {index: get_typical_extent(n) for index, n in einsum.extents.items()}
    step = Step((0, 1), einsum.inputs, einsum.output)
    return takes_functions(step, sizes, einsum.rows[0][0].dtype)


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
    """Predict the seconds of products, or of reading the arrays if that takes longer.

    Args:
        einsum: the einsum, with known extents. Its operands count as arrays.
        parameters: parameters of ``library_contraction``.
        machine: the machine.
    """
    kinds = _classify(einsum)
    batch, m, n, k = (
        count_points(einsum, indices)
        for indices in (kinds.batch, kinds.rows, kinds.columns, kinds.summed)
    )
    index, block = parameters["index"], parameters["block"]
    n_blocks = 1 if index == WHOLE else -(-count_points(einsum, (index,)) // block)
    # short sides lower the rate: to half at m = 16
    share = cpu.LIBRARY_SHARE * m / (m + 16) * n / (n + 16) * k / (k + 32)
    operations = 2.0 * einsum.batch_size * batch * m * n * k
    n_threads = machine.n_cores if operations > cpu.SERIAL_OPERATIONS else 1
    rate = machine.operations_per_s(einsum.operands[0].dtype) * n_threads
    n_bytes = float(sum(count_distinct_bytes(einsum)))
    moved_s = n_bytes / (cpu.VECTOR_SHARE * machine.stream_bytes_per_s(n_bytes))
    seconds = max(operations / (rate * share), moved_s)
    return einsum.batch_size * n_blocks * machine.call_s + seconds


LIBRARY_CONTRACTION = register(
    Transform(
        "library_contraction",
        2,
        "products by the compiled contraction kernel, on the host",
        space,
        apply,
        cost,
        devices=frozenset({"cpu"}),
    )
)


def describe_rows(
    kernel: lp.LoopKernel, nest: LoopNest, parameters: Parameters
) -> tuple[ContractionRow, ...]:
    """Describe the rows of a nest as contractions of functions of indices.

    Args:
        kernel: the kernel of the nest.
        nest: the loop nest.
        parameters: parameters of ``library_contraction``.

    Raises:
        TransformError: if numpy cannot evaluate a function of the nest.
    """
    einsum = nest.einsum
    expand = SubstitutionRuleExpander(kernel.substitutions)
    extents = {i: nest.extent(i) for i in einsum.indices}
    output = {nest.inames[index]: index for index in einsum.output}

    def read(expression: Any, indices: Mapping[str, str] = output) -> ArrayFunction:
        expanded = expand(expression)
        return read_function(kernel, expanded, indices, extents, extra=(SUM,))

    def read_operand(k: int, position: int) -> ArrayFunction:
        rule = kernel.substitutions[nest.rules[einsum.rows[k][position].name]]
        indices = zip(rule.arguments, einsum.inputs[position], strict=True)
        return read(rule.expression, dict(indices))

    return tuple(
        ContractionRow(
            step=Step((0, 1), einsum.inputs, einsum.output),
            operands=(read_operand(k, 0), read_operand(k, 1)),
            result=_find_result(read, nest.assignees[k]),
            finish=read(_make_finish(nest.scales[k], nest.shifts[k])),
            index=parameters["index"] or None,
            block=parameters["block"],
            dtype=einsum.rows[k][0].dtype,
        )
        for k in range(einsum.batch_size)
    )


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
