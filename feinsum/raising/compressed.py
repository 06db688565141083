"""Loops over the rows of compressed arrays, as in CSR and CSF: recognized by name.

A loop from ``ptr[e]`` to ``ptr[e+1]`` visits the children of a node of a tree. What it
computes is a sparse einsum, which no rule about boxes and races would say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import islpy as isl
import loopy as lp
from loopy.symbolic import (
    SubstitutionMapper,
    WalkMapper,
    get_dependencies,
    pw_aff_to_expr,
)
from pymbolic import primitives as p
from pymbolic.mapper.substitutor import make_subst_func

from feinsum.errors import NotAnEinsumError
from feinsum.raising.nest import Expression

Terms: TypeAlias = dict[Expression, int]
"""A sum as its terms with their multiples; that of a number is 1."""


@dataclass(frozen=True)
class Level:
    """A loop over the children of a node.

    Attributes:
        pointers: the array with the bounds.
        parent: the place of the node in it.
        place: that of a child among all children, for a value of the iname.
        scalars: temporaries that hold the bounds, the coordinate of the node, or those
            of its children.
    """

    iname: str
    pointers: str
    parent: Expression
    place: Expression
    scalars: frozenset[str]


def check_compressed(insn: lp.InstructionBase, levels: Mapping[str, Level]) -> None:
    """Refuse what stands in loops over compressed rows, or finds their bounds.

    Args:
        levels: of :func:`compressed_levels`.

    Raises:
        NotAnEinsumError: with the rule ``compressed``.
    """
    inames = insn.within_inames | insn.reduction_inames()
    written = set(insn.assignee_var_names())
    for name, level in levels.items():
        if name in inames:
            what = (
                f"iname {name!r} runs from {level.pointers}[{level.parent}] to the "
                "entry after it, over a row of a compressed sparse array; no einsum "
                "of a sparse operand has been found in it"
            )
        elif written & level.scalars:
            what = (
                f"it is a bound or a coordinate of {name!r}, which runs over rows of a "
                "compressed sparse array"
            )
        else:
            continue
        raise NotAnEinsumError(
            f"instruction {insn.id!r}: {what}",
            rule="compressed",
            instructions=(insn.id,),
        )


def same_place(one: Expression, other: Expression) -> bool:
    """Whether two places are one, however they are written.

    >>> from pymbolic import parse
    >>> same_place(parse("ptr[i] + k + 1"), parse("1 + k + ptr[i]"))
    True
    """
    return one == other or _terms(one) == _terms(other)


def compressed_levels(kernel: lp.LoopKernel) -> dict[str, Level]:
    """The loops over compressed rows, by iname.

    >>> import numpy as np
    >>> ints = [lp.GlobalArg(name, np.int32, shape="n") for name in ("ptr", "idx")]
    >>> unit = lp.make_kernel(
    ...     ["[n] -> {[i]: 0<=i<n-1}", "[a,b] -> {[k]: a<=k<b}"],
    ...     '''
    ...     for i
    ...         <> a = ptr[i] {id=a}
    ...         <> b = ptr[i+1] {id=b}
    ...         y[i] = sum(k, 1.0*idx[k]) {dep=a:b}
    ...     end
    ...     ''',
    ...     [*ints, lp.GlobalArg("y", np.float64, shape="n"), ...],
    ...     lang_version=(2018, 2))
    >>> compressed_levels(unit.default_entrypoint)["k"].pointers
    'ptr'
    """
    values = _scalars(kernel)
    if not any(_has_entry(value) for value in values.values()):
        return {}
    found = {}
    for iname in _bounded_by(kernel, values.keys()):
        if level := _level(iname, kernel, values):
            coordinates = _coordinates(level, values)
            found[iname] = replace(level, scalars=level.scalars | coordinates)
    return found


def _bounded_by(kernel: lp.LoopKernel, scalars: Collection[str]) -> list[str]:
    """The inames of domains that have one of some scalars as a parameter."""
    return [
        iname
        for domain in kernel.domains
        if not set(domain.get_var_names(isl.dim_type.param)).isdisjoint(scalars)
        for iname in domain.get_var_names(isl.dim_type.set)
    ]


def _coordinates(level: Level, values: Mapping[str, Expression]) -> set[str]:
    """Scalars with an entry at the place of the node or of a child of it."""
    places = [_terms(level.parent), _terms(level.place)]
    return {
        name
        for name, value in values.items()
        if _entry_of(value) is not None
        and _terms(_resolved(value.index_tuple[0], values)) in places
    }


def _scalars(kernel: lp.LoopKernel) -> dict[str, Expression]:
    """The values of private scalars that one instruction assigns, without condition."""
    assigned: dict[str, list[lp.InstructionBase]] = {}
    for insn in kernel.instructions:
        for name in insn.assignee_var_names():
            assigned.setdefault(name, []).append(insn)
    return {
        name: insns[0].expression
        for name, insns in assigned.items()
        if len(insns) == 1
        and isinstance(insns[0], lp.Assignment)
        and not insns[0].predicates
        and name in kernel.temporary_variables
        and not kernel.temporary_variables[name].shape
    }


def _has_entry(expression: Expression) -> bool:
    return next(subscripts(expression), None) is not None


def _level(
    iname: str, kernel: lp.LoopKernel, values: Mapping[str, Expression]
) -> Level | None:
    try:
        bounds = kernel.get_iname_bounds(iname)
        size = pw_aff_to_expr(bounds.size, int_ok=True)
        lower = pw_aff_to_expr(bounds.lower_bound_pw_aff, int_ok=True)
    except (lp.LoopyError, isl.Error, NotImplementedError):
        return None
    scalars = frozenset(_names([size, lower]) & values.keys())
    if not scalars:
        return None
    terms = _terms(_resolved(size, values))
    ends = [x for x, n in terms.items() if n == 1]
    begins = [x for x, n in terms.items() if n == -1]
    if len(terms) != 2 or len(ends) != 1 or len(begins) != 1:
        return None
    end, begin = ends[0], begins[0]
    pointers = _entry_of(begin)
    if pointers is None or pointers != _entry_of(end):
        return None
    step = Counter(_terms(end.index_tuple[0]))
    step.subtract(_terms(begin.index_tuple[0]))
    if {x: n for x, n in step.items() if n} != {1: 1}:
        return None
    # it runs over places, or from 0, with the first place added in subscripts
    start = _resolved(lower, values)
    place = p.Variable(iname) if _terms(start) == {begin: 1} else None
    if place is None and not _terms(start):
        place = p.Sum((begin, p.Variable(iname)))
    if place is None:
        return None
    used = scalars | (_names([values[s] for s in scalars]) & values.keys())
    return Level(iname, pointers, begin.index_tuple[0], place, used)


def _resolved(expression: Expression, values: Mapping[str, Expression]) -> Expression:
    """The expression with the values of scalars; those of these, too."""
    substitute = SubstitutionMapper(make_subst_func(values))
    # at most once per scalar, since `i = i + 1` would never be resolved
    for _ in range(len(values)):
        if not _names([expression]) & values.keys():
            break
        expression = substitute(expression)
    return expression


def _names(expressions: Iterable[Expression]) -> set[str]:
    return {name for e in expressions for name in get_dependencies(e)}


def _entry_of(expression: Expression) -> str | None:
    """The array of one axis whose entry an expression is."""
    is_entry = isinstance(expression, p.Subscript) and len(expression.index_tuple) == 1
    return str(expression.aggregate.name) if is_entry else None


def _terms(expression: Expression) -> Terms:
    """The terms of an expression.

    >>> from pymbolic import parse
    >>> terms = _terms(parse("2*a[i] - 3 + i - 1"))
    >>> sorted((str(term), n) for term, n in terms.items())
    [('1', -4), ('a[i]', 2), ('i', 1)]
    """
    found: Counter[Expression] = Counter()
    todo: list[tuple[Expression, int]] = [(expression, 1)]
    while todo:
        part, times = todo.pop(0)
        if isinstance(part, p.Sum):
            todo += [(child, times) for child in part.children]
        elif isinstance(part, int):
            found[1] += part * times
        elif isinstance(part, p.Product) and isinstance(part.children[0], int):
            rest = part.children[1:]
            inner = rest[0] if len(rest) == 1 else p.Product(rest)
            todo.append((inner, part.children[0] * times))
        else:
            found[part] += times
    return {term: n for term, n in found.items() if n}


def subscripts(expression: Expression) -> Iterator[p.Subscript]:
    """Every entry in an expression, those in subscripts included, in order."""
    finder = _Finder()
    finder(expression)
    yield from finder.found


class _Finder(WalkMapper):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.found: list[p.Subscript] = []

    def map_subscript(self, expr: p.Subscript) -> None:
        self.found.append(expr)
        super().map_subscript(expr)
