"""Where operands are read: arrays, and functions of arrays.

A kernel may compute an operand in the place where it is read, such as
``A(i,k) = scale*0.5*(a[i,k] + b[i,k])``. What can be copied to shared memory without
arithmetic is an array; of such a function, ``a`` and ``b`` can be copied, and the rest
is evaluated on entries of their tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import loopy as lp
import numpy as np
from loopy.symbolic import (
    SubstitutionMapper,
    SubstitutionRuleExpander,
    WalkMapper,
    get_dependencies,
)
from pymbolic import primitives as p
from pymbolic.mapper.substitutor import make_subst_func

from feinsum.transforms.primitives import Schedule
from feinsum.transforms.primitives.schedule import Expression, Names
from feinsum.transforms.primitives.vector_store import flat_subscript


@dataclass(frozen=True)
class OperandSource:
    """The array that an operand is, and where its entries lie.

    Attributes:
        arguments: those of its rule.
        offset: of an entry, in terms of the arguments.
        neighbour: the argument along which entries lie side by side; may be empty.
    """

    array: str
    arguments: tuple[str, ...]
    offset: Expression
    neighbour: str

    def at(self, values: Sequence[Expression]) -> Expression:
        """The offset of an entry for values of the arguments."""
        value_of = dict(zip(self.arguments, values, strict=True))
        offset: Expression = SubstitutionMapper(make_subst_func(value_of))(self.offset)
        return offset


def source_of(schedule: Schedule, operand: str) -> OperandSource | None:
    """Find the array that an operand is; None if it takes arithmetic."""
    rule = schedule.kernel.substitutions[schedule.rules[operand]]
    if not isinstance(rule.expression, p.Subscript):
        return None
    return _source_of(
        schedule.kernel, rule.expression, rule.arguments, schedule.dtypes[operand]
    )


def _source_of(
    kernel: lp.LoopKernel, entry: p.Subscript, arguments: Names, dtype: np.dtype[Any]
) -> OperandSource | None:
    """Find the array of a subscript; None if its entries cannot be copied."""
    array = kernel.arg_dict.get(entry.aggregate.name)
    if array is None or array.dtype.numpy_dtype != dtype or array.offset:
        return None
    strides = [getattr(tag, "stride", None) for tag in array.dim_tags]
    # cp.async moves 4, 8 or 16 bytes
    if dtype.itemsize not in (4, 8) or None in strides:
        return None
    # entries are neighbours along the last argument only if no other axis has it
    last, *others = entry.index_tuple[::-1]
    is_alone = isinstance(last, p.Variable) and not any(
        last.name in get_dependencies(other) for other in others
    )
    neighbour = last.name if is_alone and strides[-1] == 1 else ""
    return OperandSource(
        array.name, arguments, flat_subscript(kernel, entry), neighbour
    )


@dataclass(frozen=True)
class Reads:
    """A function of entries of arrays, which are copied before it is evaluated.

    Attributes:
        value: of the function, given those of the entries.
    """

    sources: tuple[OperandSource, ...]
    value: Callable[[Sequence[Expression]], Expression]


def reads_of(schedule: Schedule, operand: str) -> Reads | None:
    """Find the entries of which an operand is a function; None if indices matter."""
    kernel, dtype = schedule.kernel, schedule.dtypes[operand]
    rule = kernel.substitutions[schedule.rules[operand]]
    body = SubstitutionRuleExpander(kernel.substitutions)(rule.expression)
    # by their text, so that the same kernel gets the same tiles in every process
    entries = sorted(_subscripts(body), key=str)

    def value(values: Sequence[Expression]) -> Expression:
        value_of = dict(zip(entries, values, strict=True))
        result: Expression = SubstitutionMapper(value_of.get)(body)
        return result

    sources = [_source_of(kernel, entry, rule.arguments, dtype) for entry in entries]
    copied = tuple(source for source in sources if source is not None)
    # what is left without the entries may not depend on the point: tiles lack it
    rest = get_dependencies(value([0] * len(entries)))
    is_function = bool(copied) and len(copied) == len(entries)
    return (
        Reads(copied, value) if is_function and not {*rule.arguments} & rest else None
    )


def _subscripts(body: Expression) -> set[p.Subscript]:
    subscripts: set[p.Subscript] = set()

    class Collector(WalkMapper):  # type: ignore[misc]
        def map_subscript(self, expr: p.Subscript) -> None:
            subscripts.add(expr)

    Collector()(body)
    return subscripts
