"""Long sums in single precision: kernels of calls add them up in double precision.

One after the other, 300,000 equal terms lose three of seven digits. A kernel that reads
each entry once or twice waits for memory, so wider accumulators take little time there.
Products of matrices keep theirs: they would take twice as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from feinsum.ir import BatchedEinsum, SizeParam

LEAST_TERMS = 1 << 15
"""Of a sum that is added up in double precision. Shorter ones lose no more than a dot
product of numpy, and their operands may be in a cache, where conversions take time.
"""
MOST_READS = 2
"""Products for each entry of the operands, up to which a kernel waits for memory."""
WIDE = {np.dtype("f4"): np.dtype("f8"), np.dtype("c8"): np.dtype("c16")}


def with_wide_sums(t_unit: Any, einsum: BatchedEinsum, sizes: Mapping[str, int]) -> Any:
    """A unit whose private sums are wide, if those of an einsum are long.

    Args:
        sizes: values of the size parameters.
    """
    if not _is_long(einsum, sizes):
        return t_unit
    wide = WIDE[np.result_type(*einsum.output_dtypes)]
    for name in sorted(t_unit.callables_table):
        kernel = getattr(t_unit.callables_table[name], "subkernel", None)
        if kernel is not None:
            t_unit = t_unit.with_kernel(_widened(kernel, wide))
    return t_unit


def _widened(kernel: Any, wide: np.dtype[Any]) -> Any:
    """The kernel with wide private variables where instructions add to them.

    Sums that are not yet loops get wide terms, and so become wide variables.
    """
    from loopy import AddressSpace
    from loopy.types import NumpyType

    added = {
        name
        for instruction in kernel.instructions
        for name in instruction.assignee_var_names()
        if name in instruction.read_dependency_names()
    }
    variables = {
        name: variable.copy(dtype=NumpyType(WIDE[variable.dtype.numpy_dtype]))
        if name in added
        and variable.address_space == AddressSpace.PRIVATE
        and variable.dtype.numpy_dtype in WIDE
        else variable
        for name, variable in kernel.temporary_variables.items()
    }
    widen = _wide_terms(wide)
    instructions = [
        instruction.with_transformed_expressions(widen)
        for instruction in kernel.instructions
    ]
    return kernel.copy(temporary_variables=variables, instructions=instructions)


def _wide_terms(wide: np.dtype[Any]) -> Any:
    """A mapper of expressions that converts the terms of sums."""
    from loopy.library.reduction import SumReductionOperation
    from loopy.symbolic import IdentityMapper, Reduction, TypeCast

    class Mapper(IdentityMapper):  # type: ignore[misc]
        def map_reduction(self, expr: Any, *context: Any) -> Any:
            if not isinstance(expr.operation, SumReductionOperation):
                return expr
            term = TypeCast(wide, expr.expr)
            return Reduction(expr.operation, expr.inames, term, expr.allow_simultaneous)

    return Mapper()


def _is_long(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> bool:
    extents = {
        index: sizes[n.name] if isinstance(n, SizeParam) else n
        for index, n in einsum.extents.items()
    }
    n_terms = prod(extents[i] for i in einsum.summation_indices)
    entries = sum(prod(extents[i] for i in {*term}) for term in einsum.inputs)
    n_products = prod(extents.values())
    is_single = {*einsum.output_dtypes} <= {*WIDE}
    return is_single and n_terms >= LEAST_TERMS and n_products <= MOST_READS * entries
