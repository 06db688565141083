"""The arrays behind an operand: one array, or those that a function reads.

For ``A(i,k) = scale*0.5*(a[i,k] + b[i,k])``, the entries are ``a[i,k]`` and ``b[i,k]``.
They are copied to shared memory as arrays are, and the function is evaluated there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import loopy as lp
import numpy as np
from loopy.symbolic import (
    SubstitutionMapper,
    SubstitutionRuleExpander,
    WalkMapper,
    get_dependencies,
)
from pymbolic import primitives as p

from feinsum.raising.expressions import substitute
from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.primitives.vector_store import compute_offset


@dataclass(frozen=True)
class OperandSource:
    """The array behind an operand, and the offsets of its entries.

    Attributes:
        array: name of the array.
        arguments: arguments of the operand's rule.
        offset: offset of an entry, in terms of the arguments.
        neighbour: the argument along which entries are contiguous; empty for none.
    """

    array: str
    arguments: tuple[str, ...]
    offset: Expression
    neighbour: str

    def at(self, values: Sequence[Expression]) -> Expression:
        """Return the offset of an entry for values of the arguments."""
        value_of = dict(zip(self.arguments, values, strict=True))
        return substitute(self.offset, value_of)


def find_source(schedule: Schedule, operand: str) -> OperandSource | None:
    """Find the array behind an operand; None if the operand is a function."""
    rule = schedule.kernel.substitutions[schedule.rules[operand]]
    dtype = schedule.dtypes[operand]
    return find_array(schedule.kernel, rule.expression, rule.arguments, dtype)


def find_array(
    kernel: lp.LoopKernel, entry: Expression, arguments: Names, dtype: np.dtype[Any]
) -> OperandSource | None:
    """Find the array of an entry; None for other values, or if it cannot be copied."""
    if not isinstance(entry, p.Subscript):
        return None
    array = kernel.arg_dict.get(entry.aggregate.name)
    if array is None or array.dtype.numpy_dtype != dtype or array.offset:
        return None
    strides = [getattr(tag, "stride", None) for tag in array.dim_tags]
    # cp.async moves 4, 8 or 16 bytes: halves in twos
    if dtype.itemsize not in (2, 4, 8) or None in strides:
        return None
    # entries are contiguous along the last subscript only if no other axis depends on
    # it
    last, *outer = entry.index_tuple[::-1]
    is_alone = isinstance(last, p.Variable) and not any(
        last.name in get_dependencies(subscript) for subscript in outer
    )
    neighbour = last.name if is_alone and strides[-1] == 1 else ""
    offset = compute_offset(kernel, entry)
    return OperandSource(array.name, arguments, offset, neighbour)


class Reads(NamedTuple):
    """A function of array entries, which are copied before it is evaluated.

    Attributes:
        sources: the arrays.
        value: computes the function from the values of the entries.
    """

    sources: tuple[OperandSource, ...]
    value: Callable[[Sequence[Expression]], Expression]


def find_reads(schedule: Schedule, operand: str) -> Reads | None:
    """Find the array entries that a function reads.

    Returns:
        None if the operand is an array that can be copied, or if its value depends on
        indices as well.
    """
    if find_source(schedule, operand) is not None:
        return None
    kernel, dtype = schedule.kernel, schedule.dtypes[operand]
    rule = kernel.substitutions[schedule.rules[operand]]
    body = SubstitutionRuleExpander(kernel.substitutions)(rule.expression)
    entries: list[p.Subscript] = []

    class Collector(WalkMapper):  # type: ignore[misc]
        def map_subscript(self, expr: p.Subscript) -> None:
            entries.append(expr)

    Collector()(body)
    # sort by text, so that a kernel gets the same tiles in every process
    entries = sorted({*entries}, key=str)

    def value(values: Sequence[Expression]) -> Expression:
        value_of = dict(zip(entries, values, strict=True))
        result: Expression = SubstitutionMapper(value_of.get)(body)
        return result

    sources = [find_array(kernel, entry, rule.arguments, dtype) for entry in entries]
    copied = tuple(source for source in sources if source is not None)
    # apart from the entries, the function may not depend on the point, which is not
    # known where tiles are read
    dependencies = get_dependencies(value([0] * len(entries)))
    is_function = bool(copied) and len(copied) == len(entries)
    return (
        Reads(copied, value)
        if is_function and not {*rule.arguments} & dependencies
        else None
    )
