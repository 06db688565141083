"""Rewrites of private values in loops: inline them, or keep them for all iterations.

A private value ties the instruction that reads it to the loops of the instruction that
writes it ::

    for e:  for q:  t[q] = sum(j, B[q,j]*u[e,j])
            for i:  v[e,i] = sum(q, D[i,q]*t[q])

A cheap value is inlined (:func:`with_values_put_in`). A value such as this sum gets an
axis for each loop around it (:func:`with_kept_values`); then both instructions are
einsums, in separate loops. Kept values cost memory, so they are the last resort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from typing import Any, NamedTuple, TypeAlias

import loopy as lp
import numpy as np
from constantdict import constantdict
from pymbolic import primitives as p

from feinsum.dtypes import is_inexact
from feinsum.errors import NotAnEinsumError
from feinsum.ir import Extent
from feinsum.raising.affine import Affine, find_box_extents, parse_affine
from feinsum.raising.dependences import have_own_entries
from feinsum.raising.expressions import (
    Expression,
    Subscripts,
    count_expression_nodes,
    get_subscripts,
    has_reduction,
    list_accesses_of,
    rewrite_accesses,
    substitute,
)
from feinsum.raising.nest import express_in_kernel, value_of
from feinsum.raising.rewriting import RewrittenKernel, is_plain

KnownExtents: TypeAlias = Mapping[str, int]
"""The numeric extents of inames."""
LONGEST_EXPRESSION = 400
"""Maximum nodes of an inlined expression; chains of scalars grow exponentially."""
MOST_PRIVATE = 4096
"""Maximum entries of an array in private memory; larger ones go to global memory."""


class Value(NamedTuple):
    """A private value, which one instruction assigns and others read.

    Attributes:
        inner: the loops over its entries.
        around: the other loops of the writer, in which the value is assigned anew.
    """

    name: str
    writer: lp.Assignment
    inner: tuple[str, ...]
    around: frozenset[str]
    readers: tuple[lp.Assignment, ...]


def with_values_put_in(program: RewrittenKernel) -> RewrittenKernel:
    """Inline values in loops that a single instruction assigns.

    The operands of a value must not change before the value is read.

    Rewrite::

        for i:  t = 2*y[i]
                out[i] = t*z[i]

        for i:  out[i] = 2*y[i]*z[i]
    """
    for name in sorted(program.privates):
        value = _find_value(name, program)
        if value and value.around and _can_be_put_in(value, program):
            program = _put_in(value, program)
    return program


def with_kept_values(program: RewrittenKernel) -> RewrittenKernel:
    """Keep the values of all iterations in an array; rewrite one variable per call.

    Rewrite::

        for e:  for q:  t[q] = sum(j, B[q,j]*u[e,j])
                for i:  v[e,i] = sum(q, D[i,q]*t[q])

        for e:  for q:  t_all[e,q] = sum(j, B[q,j]*u[e,j])
                for i:  v[e,i] = sum(q, D[i,q]*t_all[e,q])
    """
    kernel = program.kernel
    for name in sorted(program.privates):
        value = _find_value(name, program)
        # a value outside of all loops needs no array
        if value is None or not value.around:
            continue
        writer, dtype = value.writer, program.dtypes.get(value.name)
        try:
            extents = find_box_extents(kernel, writer.within_inames, writer.id)
        except NotAnEinsumError:  # it is not in a box
            continue
        if dtype is not None:
            return _keep(value, extents, dtype, program)
    return program


def _find_value(name: str, program: RewrittenKernel) -> Value | None:
    """Find a value that one instruction assigns and others read in the same iteration.

    The writer must assign all entries before any is read.
    """
    ids = program.writers.get(name, ())
    if len(ids) != 1:
        return None
    kernel = program.kernel
    writer = kernel.id_to_insn[ids[0]]
    inner = find_covering_inames(name, writer, program)
    if inner is None or name in program.reads[writer.id] or not writer.within_inames:
        return None
    around = writer.within_inames - {*inner}
    readers = tuple(kernel.id_to_insn[i] for i in program.touching[name] - {*ids})
    is_read_later = readers and all(
        writer.id in program.before[reader.id] and around <= reader.within_inames
        for reader in readers
    )
    return Value(name, writer, inner, around, readers) if is_read_later else None


def find_covering_inames(
    name: str, writer: lp.Assignment, program: RewrittenKernel
) -> tuple[str, ...] | None:
    """Return the inames with which an assignment covers an array, each entry once.

    Return None if it leaves out entries or assigns one twice; nothing for a scalar.
    """
    shape = program.kernel.temporary_variables[name].shape
    digits = _find_digits(writer, program)
    if digits is None or len(digits) != len(shape):
        return None
    names = tuple(digit.iname for axis in digits for digit in axis)
    is_all = len(set(names)) == len(names) and all(
        _compute_length(axis) == length
        for axis, length in zip(digits, shape, strict=True)
    )
    return names if is_all else None


class Digit(NamedTuple):
    """One of several inames that count along an axis, like digits of a number."""

    iname: str
    stride: int
    extent: Extent


def _find_digits(
    writer: lp.Assignment, program: RewrittenKernel
) -> list[tuple[Digit, ...]] | None:
    """Return the digits of each subscript, the one of stride 1 last.

    Return None if a subscript does not consist of digits, so that it skips entries.
    """
    inames = writer.within_inames
    try:
        extents = find_box_extents(program.kernel, inames, writer.id)
    except NotAnEinsumError:
        return None
    digits = []
    for subscript in get_subscripts(writer.assignee):
        sum_ = parse_affine(subscript, inames)
        if sum_ is None or sum_.constant:
            return None
        axis: list[Digit] = []
        for iname in reversed(sum_.inames):
            stride = sum_.coefficients[iname]
            # a gap or an overlap: some entries are skipped, or assigned twice
            if stride != _compute_length(axis):
                return None
            axis.insert(0, Digit(iname, stride, extents[iname]))
        digits.append(tuple(axis))
    return digits


def _compute_length(axis: Sequence[Digit]) -> Expression:
    """Return the number of entries that digits can count; 1 without digits."""
    if not axis:
        return 1
    length = value_of(express_in_kernel(axis[0].extent))
    return length if len(axis) == 1 else axis[0].stride * length


def _find_iteration(
    subscripts: Subscripts, digits: Sequence[tuple[Digit, ...]], extents: KnownExtents
) -> dict[str, Expression]:
    """Return the iteration that assigns an entry, as the digits of its subscripts."""
    points = {}
    for axis, subscript in zip(digits, subscripts, strict=True):
        for digit in axis:
            point = subscript
            if len(axis) > 1:
                point = _divide(point, digit.stride, extents)[0]
            if digit is not axis[0]:
                # it divides the stride of the digit before, which is a number
                assert isinstance(digit.extent, int)
                point = _divide(point, digit.extent, extents)[1]
            points[digit.iname] = point
    return points


def _divide(
    number: Expression, divisor: int, extents: KnownExtents
) -> tuple[Expression, Expression]:
    """Return quotient and remainder, as sums of inames if possible.

    Args:
        number: the dividend, a nonnegative expression of inames.
        divisor: a positive integer.
        extents: the extents of the inames.
    """
    sum_ = parse_affine(number, extents)
    if sum_ is not None:
        terms = sum_.coefficients.items()
        low = {name: n for name, n in terms if n % divisor}
        high = {name: n // divisor for name, n in terms if not n % divisor}
        constant = sum_.constant % divisor
        reach = sum(n * (extents[name] - 1) for name, n in low.items())
        if all(n > 0 for n in low.values()) and constant + reach < divisor:
            return (
                Affine(sum_.constant // divisor, constantdict(high)).expression(),
                Affine(constant, constantdict(low)).expression(),
            )
    return p.FloorDiv(number, divisor), p.Remainder(number, divisor)


def _can_be_put_in(value: Value, program: RewrittenKernel) -> bool:
    """Return whether inlining keeps the value, and is cheap enough."""
    writer = value.writer
    # inlining would lose a conversion at the assignment
    if (
        writer.id not in program.exact
        or _count_nodes(writer.expression) > LONGEST_EXPRESSION
    ):
        return False
    # a sum with two readers would be computed twice
    if has_reduction(writer.expression) and not _is_read_once(value):
        return False
    outputs = [reader.assignee_var_names()[0] for reader in value.readers]
    dtype = program.dtypes.get(value.name)
    # the assignment rounds to this dtype, and inlining would lose that
    if dtype is None or any(
        is_inexact(dtype) and program.dtypes.get(name) != dtype for name in outputs
    ):
        return False
    if not all(_is_unchanged(value, reader, program) for reader in value.readers):
        return False
    n_added = _count_nodes(writer.expression)
    return all(
        _count_nodes(reader.expression)
        + n_added * len(list_accesses_of(reader.expression, value.name))
        <= LONGEST_EXPRESSION
        for reader in value.readers
    )


def _is_read_once(value: Value) -> bool:
    """Return whether an inlined sum is computed as often as before, and not nested."""
    if len(value.readers) != 1:
        return False
    (reader,) = value.readers
    return (
        reader.within_inames == value.writer.within_inames
        and get_subscripts(value.writer.assignee) == ()
        and len(list_accesses_of(reader.expression, value.name)) == 1
        and _is_factor(value.name, reader.expression)
        and not has_reduction(reader.expression)
    )


def _is_factor(name: str, expression: Expression) -> bool:
    """Return whether a variable is a factor of a term of an expression.

    Inlining a sum elsewhere would not make an einsum; and in a conditional expression,
    Loopy would evaluate it only if the condition holds.
    """
    match expression:
        case p.Sum() | p.Product():
            return any(_is_factor(name, child) for child in expression.children)
        case p.Quotient():
            return _is_factor(name, expression.numerator)
        case _:
            return isinstance(expression, p.Variable) and expression.name == name


def _is_unchanged(
    value: Value, reader: lp.Assignment, program: RewrittenKernel
) -> bool:
    """Return whether no operand of a value is written between assignment and read.

    Operands may be written before the value is assigned, or after it is read. In loops
    around both, each iteration must assign the value again.
    """
    writer = value.writer
    needed = program.reads[writer.id] - writer.within_inames
    for other in sorted(program.find_writers_in_storage(needed) - {writer.id}):
        insn = program.kernel.id_to_insn[other]
        if other == reader.id:
            if value.writer.within_inames - {*value.inner} != reader.within_inames:
                return False
            continue
        is_ordered = (
            other in program.before[writer.id] or reader.id in program.before[other]
        )
        # in these loops, the other writer may run again before the value is read
        again = insn.within_inames & reader.within_inames
        if not is_ordered or not again <= value.around:
            return False
        if not _is_complete(insn, value, program):
            return False
    return True


def _is_complete(
    other: lp.InstructionBase, value: Value, program: RewrittenKernel
) -> bool:
    """Return whether all writes of ``other`` to operands precede their inlined reads.

    In shared loops over entries of the value, each iteration may only read entries that
    the same iteration wrote.
    """
    shared = other.within_inames & {*value.inner}
    if not shared:
        return True
    names = frozenset(other.assignee_var_names()) & program.reads[value.writer.id]
    return is_plain(other) and all(
        have_own_entries(
            [*program.accesses(other.id, n), *program.accesses(value.writer.id, n)],
            shared,
        )
        for n in names
    )


def _put_in(value: Value, program: RewrittenKernel) -> RewrittenKernel:
    writer, kernel = value.writer, program.kernel
    digits = _find_digits(writer, program)
    assert digits is not None
    extents = _find_known_extents(kernel)

    def substitute_value(subscripts: Subscripts) -> Expression:
        points = _find_iteration(subscripts, digits, extents)
        return substitute(writer.expression, points)

    changed: dict[str, lp.InstructionBase | None] = {
        reader.id: reader.copy(
            assignee=rewrite_accesses(reader.assignee, value.name, substitute_value),
            expression=rewrite_accesses(
                reader.expression, value.name, substitute_value
            ),
            depends_on=(reader.depends_on | writer.depends_on) - {writer.id},
        )
        for reader in value.readers
    }
    return program.with_instructions(
        {**changed, writer.id: None},
        temporary_variables=_list_other_temporaries(value, kernel),
    )


def _list_other_temporaries(
    value: Value, kernel: lp.LoopKernel
) -> dict[str, lp.TemporaryVariable]:
    temporaries = kernel.temporary_variables
    return {name: t for name, t in temporaries.items() if name != value.name}


def _find_known_extents(kernel: lp.LoopKernel) -> KnownExtents:
    """Return the numeric extents of inames whose loops begin at 0."""
    extents = {}
    for iname in sorted(kernel.all_inames()):
        try:
            extent = find_box_extents(kernel, {iname}, "")[iname]
        except NotAnEinsumError:
            continue
        if isinstance(extent, int):
            extents[iname] = extent
    return extents


def _keep(
    value: Value,
    extents: dict[str, Extent],
    dtype: np.dtype[Any],
    program: RewrittenKernel,
) -> RewrittenKernel:
    kernel = program.kernel

    def get_sort_key(iname: str) -> tuple[float, str]:
        extent = extents[iname]
        return (-float(extent) if isinstance(extent, int) else -inf, iname)

    # long loops get the outermost axes
    loops = sorted(value.around, key=get_sort_key)
    sizes = [extents[iname] for iname in loops]
    temporary = kernel.temporary_variables[value.name]
    shape = (*(value_of(express_in_kernel(size)) for size in sizes), *temporary.shape)
    array_name = str(kernel.get_var_name_generator()(f"{value.name}_all"))
    array_of_all = p.Variable(array_name)

    def index_array(subscripts: Subscripts) -> Expression:
        return p.Subscript(array_of_all, (*map(p.Variable, loops), *subscripts))

    changed = {
        insn.id: insn.copy(
            assignee=rewrite_accesses(insn.assignee, value.name, index_array),
            expression=rewrite_accesses(insn.expression, value.name, index_array),
        )
        for insn in (value.writer, *value.readers)
    }
    is_known = all(isinstance(n, (int, np.integer)) for n in shape)
    is_small = is_known and prod(map(int, shape)) <= MOST_PRIVATE
    space = lp.AddressSpace.PRIVATE if is_small else lp.AddressSpace.GLOBAL
    array = lp.TemporaryVariable(array_name, dtype, shape=shape, address_space=space)
    temporaries = {**_list_other_temporaries(value, kernel), array_name: array}
    program = program.with_instructions(changed, temporary_variables=temporaries)
    program = replace(program, dtypes={**program.dtypes, array_name: dtype})
    for insn_id in changed:
        program = program.with_own_sums(insn_id)
    return program


def _count_nodes(expression: Expression) -> int:
    return count_expression_nodes(expression, LONGEST_EXPRESSION)
