"""Where operands are read: arrays, and functions of arrays."""

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
class Source:
    """Where an operand is read that is an array, and no function.

    Attributes:
        arguments: those of its rule.
        place: of an entry, in terms of the arguments.
        neighbour: the argument along which entries lie side by side; may be empty.
    """

    array: str
    arguments: tuple[str, ...]
    place: Expression
    neighbour: str

    def at(self, values: Sequence[Expression]) -> Expression:
        """The place for values of the arguments."""
        given = dict(zip(self.arguments, values, strict=True))
        found: Expression = SubstitutionMapper(make_subst_func(given))(self.place)
        return found


def source_of(schedule: Schedule, operand: str) -> Source | None:
    """Where an operand can be copied from; None if it takes arithmetic."""
    rule = schedule.kernel.substitutions[schedule.rules[operand]]
    if not isinstance(rule.expression, p.Subscript):
        return None
    return _source_of(
        schedule.kernel, rule.expression, rule.arguments, schedule.dtypes[operand]
    )


def _source_of(
    kernel: lp.LoopKernel, entry: p.Subscript, arguments: Names, dtype: np.dtype[Any]
) -> Source | None:
    """Where the entries of a subscript can be copied from."""
    array = kernel.arg_dict.get(entry.aggregate.name)
    if array is None or array.dtype.numpy_dtype != dtype or array.offset:
        return None
    strides = [getattr(tag, "stride", None) for tag in array.dim_tags]
    if dtype.itemsize not in (4, 8) or None in strides:
        return None
    last, *others = entry.index_tuple[::-1]
    is_alone = isinstance(last, p.Variable) and not any(
        last.name in get_dependencies(other) for other in others
    )
    neighbour = last.name if is_alone and strides[-1] == 1 else ""
    return Source(array.name, arguments, flat_subscript(kernel, entry), neighbour)


@dataclass(frozen=True)
class Reads:
    """A function of entries of arrays, which are copied before it is evaluated.

    Attributes:
        value: of the function, given those of the entries.
    """

    sources: tuple[Source, ...]
    value: Callable[[Sequence[Expression]], Expression]


def reads_of(schedule: Schedule, operand: str) -> Reads | None:
    """What an operand is a function of; None if it depends on indices in other ways."""
    kernel, dtype = schedule.kernel, schedule.dtypes[operand]
    rule = kernel.substitutions[schedule.rules[operand]]
    body = SubstitutionRuleExpander(kernel.substitutions)(rule.expression)
    entries = sorted(_subscripts(body), key=str)

    def value(values: Sequence[Expression]) -> Expression:
        given = dict(zip(entries, values, strict=True))
        found: Expression = SubstitutionMapper(given.get)(body)
        return found

    sources = [_source_of(kernel, entry, rule.arguments, dtype) for entry in entries]
    copied = tuple(source for source in sources if source is not None)
    rest = get_dependencies(value([0] * len(entries)))
    is_function = bool(copied) and len(copied) == len(entries)
    return (
        Reads(copied, value) if is_function and not {*rule.arguments} & rest else None
    )


def _subscripts(body: Expression) -> set[p.Subscript]:
    found: set[p.Subscript] = set()

    class Collector(WalkMapper):  # type: ignore[misc]
        def map_subscript(self, expr: p.Subscript) -> None:
            found.add(expr)

    Collector()(body)
    return found
