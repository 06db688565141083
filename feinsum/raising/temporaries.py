"""Private values in loops: inlined, or kept for all iterations.

A private value ties the instruction that reads it to the loops of the one that writes
it ::

    for e:  for q:  t[q] = sum(j, B[q,j]*u[e,j])
            for i:  v[e,i] = sum(q, D[i,q]*t[q])

A cheap value is inlined (:func:`with_values_put_in`). Others, like this sum, get an
axis for each loop around them (:func:`with_kept_values`); then both instructions are
einsums, in separate loops. Kept values cost memory, so they are the last resort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple, TypeAlias

import loopy as lp
import numpy as np
from constantdict import constantdict
from pymbolic import primitives as p

from feinsum.errors import NotAnEinsumError
from feinsum.ir import Extent
from feinsum.raising.affine import Affine, affine, box_extents
from feinsum.raising.dependences import have_own_entries
from feinsum.raising.expressions import (
    Expression,
    Subscripts,
    accesses_of,
    count_nodes,
    has_reduction,
    rewrite_accesses,
    subscripts_of,
    substitute,
)
from feinsum.raising.nest import in_kernel, value_of
from feinsum.raising.rewriting import RewrittenKernel, is_plain

KnownExtents: TypeAlias = Mapping[str, int]
"""Extents of inames that are numbers."""
LONGEST_EXPRESSION = 400
"""In nodes; longer ones are not inlined, since chains of scalars would explode."""
MOST_PRIVATE = 4096
"""Entries of an array that stays private; longer ones go to global memory."""


class Value(NamedTuple):
    """A private value: the instructions that assign and read it, and their loops."""

    name: str
    writer: lp.Assignment
    inner: tuple[str, ...]
    around: frozenset[str]
    readers: tuple[lp.Assignment, ...]


def with_values_put_in(program: RewrittenKernel) -> RewrittenKernel:
    """Inline the values of single instructions in loops where they are read.

    What a value reads must not change until it is read.

    Rewrite::

        for i:  t = 2*y[i]
                out[i] = t*z[i]

        for i:  out[i] = 2*y[i]*z[i]
    """
    for name in sorted(program.privates):
        value = _value(name, program)
        if value and value.around and _can_be_put_in(value, program):
            program = _put_in(value, program)
    return program


def with_kept_values(program: RewrittenKernel) -> RewrittenKernel:
    """Keep the value of each iteration in an array, one variable per call.

    Rewrite::

        for e:  for q:  t[q] = sum(j, B[q,j]*u[e,j])
                for i:  v[e,i] = sum(q, D[i,q]*t[q])

        for e:  for q:  t_all[e,q] = sum(j, B[q,j]*u[e,j])
                for i:  v[e,i] = sum(q, D[i,q]*t_all[e,q])
    """
    for name in sorted(program.privates):
        value = _value(name, program)
        # a value outside of all loops is kept already
        if value is None or not value.around:
            continue
        extents = _extents(value, program)
        if extents is not None:
            return _keep(value, extents, program)
    return program


def _value(name: str, program: RewrittenKernel) -> Value | None:
    """Find a value that one instruction assigns and others read in the same iteration.

    The instruction assigns all entries before they are read.
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
    """Return the inames that cover an array: each entry is assigned exactly once.

    None if an assignment covers only some entries or assigns one twice; empty for a
    scalar.
    """
    shape = program.kernel.temporary_variables[name].shape
    digits = _digits_of(writer, program)
    if digits is None or len(digits) != len(shape):
        return None
    names = tuple(digit.iname for axis in digits for digit in axis)
    is_all = len(set(names)) == len(names) and all(
        _length(axis) == length for axis, length in zip(digits, shape, strict=True)
    )
    return names if is_all else None


class Digit(NamedTuple):
    """One of several inames that together count along an axis, without gaps."""

    iname: str
    stride: int
    extent: Extent


def _digits_of(
    writer: lp.Assignment, program: RewrittenKernel
) -> list[tuple[Digit, ...]] | None:
    """Return the digits of each subscript, the one of stride 1 last.

    None where a subscript is something else, as then it leaves entries out.
    """
    inames = writer.within_inames
    try:
        extents = box_extents(program.kernel, inames, writer.id)
    except NotAnEinsumError:
        return None
    digits = []
    for subscript in subscripts_of(writer.assignee):
        sum_ = affine(subscript, inames)
        if sum_ is None or sum_.constant:
            return None
        axis: list[Digit] = []
        for iname in reversed(sum_.inames):
            stride = sum_.coefficients[iname]
            # a gap or an overlap: some entries are not assigned, or twice
            if stride != _length(axis):
                return None
            axis.insert(0, Digit(iname, stride, extents[iname]))
        digits.append(tuple(axis))
    return digits


def _length(axis: Sequence[Digit]) -> Expression:
    """Return how many entries the digits count; one entry if there are no digits."""
    if not axis:
        return 1
    length = value_of(in_kernel(axis[0].extent))
    return length if len(axis) == 1 else axis[0].stride * length


def _points_at(
    subscripts: Subscripts, digits: Sequence[tuple[Digit, ...]], extents: KnownExtents
) -> dict[str, Expression]:
    """Return the iteration that assigns to an entry: the digits of its subscripts."""
    return {
        digit.iname: subscript
        if len(axis) == 1
        else _digit(subscript, digit, extents, is_first=digit is axis[0])
        for axis, subscript in zip(digits, subscripts, strict=True)
        for digit in axis
    }


def _digit(
    subscript: Expression, digit: Digit, extents: KnownExtents, *, is_first: bool
) -> Expression:
    """Return the digit at a place of a nonnegative number."""
    high = _divided(subscript, digit.stride, extents)[0]
    if is_first:
        return high
    assert isinstance(digit.extent, int)  # the stride of the digit before it is one
    return _divided(high, digit.extent, extents)[1]


def _divided(
    number: Expression, divisor: int, extents: KnownExtents
) -> tuple[Expression, Expression]:
    """Return quotient and remainder, as sums of inames where possible.

    Args:
        number: the dividend, a nonnegative expression of inames.
        divisor: a positive integer.
        extents: the extents of the inames.
    """
    sum_ = affine(number, extents)
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
    """Whether the value is the same where it is read, and cheap enough."""
    writer = value.writer
    # the conversion at the assignment would be lost
    if writer.id not in program.exact or _size(writer.expression) > LONGEST_EXPRESSION:
        return False
    # a sum that two instructions read would be computed twice
    if has_reduction(writer.expression) and not _is_read_once(value):
        return False
    outputs = [reader.assignee_var_names()[0] for reader in value.readers]
    dtype = program.dtypes.get(value.name)
    # the variable rounds its value to this dtype; without it, nothing would
    if dtype is None or any(
        dtype.kind in "fc" and program.dtypes.get(name) != dtype for name in outputs
    ):
        return False
    is_same = all(_is_unchanged(value, reader, program) for reader in value.readers)
    return is_same and all(
        _size_with(value, reader.expression) <= LONGEST_EXPRESSION
        for reader in value.readers
    )


def _size_with(value: Value, expression: Expression) -> int:
    """Return the size of a reader's expression after the value is inlined."""
    n_reads = len(accesses_of(expression, value.name))
    return _size(expression) + n_reads * _size(value.writer.expression)


def _is_read_once(value: Value) -> bool:
    """Whether a sum would be computed as often as before, and not inside another."""
    if len(value.readers) != 1:
        return False
    (reader,) = value.readers
    return (
        reader.within_inames == value.writer.within_inames
        and subscripts_of(value.writer.assignee) == ()
        and len(accesses_of(reader.expression, value.name)) == 1
        and _is_factor(value.name, reader.expression)
        and not has_reduction(reader.expression)
    )


def _is_factor(name: str, expression: Expression) -> bool:
    """Whether a term or a product has the value as it is.

    Inlining it elsewhere makes no einsum, and Loopy evaluates sums in conditions
    only where these hold.
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
    """Whether nothing that the value depends on is written until it is read.

    It is written before the value is assigned, or after it is read. In loops that the
    writer and the reader share, the value has to be assigned anew.
    """
    writer = value.writer
    needed = program.reads[writer.id] - writer.within_inames
    for other in sorted(program.writers_in_storage(needed) - {writer.id}):
        insn = program.kernel.id_to_insn[other]
        if other == reader.id:
            if value.writer.within_inames - {*value.inner} != reader.within_inames:
                return False
            continue
        is_ordered = (
            other in program.before[writer.id] or reader.id in program.before[other]
        )
        # the loops in which the writer runs again before the value is read
        again = insn.within_inames & reader.within_inames
        if not is_ordered or not again <= value.around:
            return False
        if not _is_complete(insn, value, program):
            return False
    return True


def _is_complete(
    other: lp.InstructionBase, value: Value, program: RewrittenKernel
) -> bool:
    """Whether loops that assign the value entry by entry see all that ``other`` wrote.

    They do if they read only what the same iteration wrote.
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
    digits = _digits_of(writer, program)
    assert digits is not None
    extents = _known_lengths(kernel)

    def value_at(subscripts: Subscripts) -> Expression:
        points = _points_at(subscripts, digits, extents)
        return substitute(writer.expression, points)

    changed: dict[str, lp.InstructionBase | None] = {
        reader.id: reader.copy(
            assignee=rewrite_accesses(reader.assignee, value.name, value_at),
            expression=rewrite_accesses(reader.expression, value.name, value_at),
            depends_on=(reader.depends_on | writer.depends_on) - {writer.id},
        )
        for reader in value.readers
    }
    left = program.without({value.name})
    return program.with_instructions(
        {**changed, writer.id: None}, temporary_variables=left
    )


def _known_lengths(kernel: lp.LoopKernel) -> KnownExtents:
    """Return the numeric extents of inames whose loops begin at 0."""
    extents = {}
    for iname in sorted(kernel.all_inames()):
        try:
            extent = box_extents(kernel, {iname}, "")[iname]
        except NotAnEinsumError:
            continue
        if isinstance(extent, int):
            extents[iname] = extent
    return extents


def _extents(value: Value, program: RewrittenKernel) -> dict[str, Extent] | None:
    """Return the extents of the loops around a value, if these run over a box."""
    dtype = program.dtypes.get(value.name)
    if dtype is None:
        return None
    try:
        writer = value.writer
        return box_extents(program.kernel, writer.within_inames, writer.id)
    except NotAnEinsumError:
        return None


def _keep(
    value: Value, extents: dict[str, Extent], program: RewrittenKernel
) -> RewrittenKernel:
    kernel = program.kernel
    loops = _outermost_first(value.around, extents)
    sizes = [extents[iname] for iname in loops]
    old = kernel.temporary_variables[value.name]
    shape = (*(value_of(in_kernel(size)) for size in sizes), *old.shape)
    new = str(kernel.get_var_name_generator()(f"{value.name}_all"))
    array_of_all = p.Variable(new)

    def entry(subscripts: Subscripts) -> Expression:
        return p.Subscript(array_of_all, (*map(p.Variable, loops), *subscripts))

    changed = {
        insn.id: insn.copy(
            assignee=rewrite_accesses(insn.assignee, value.name, entry),
            expression=rewrite_accesses(insn.expression, value.name, entry),
        )
        for insn in (value.writer, *value.readers)
    }
    array = lp.TemporaryVariable(
        new,
        program.dtypes[value.name],
        shape=shape,
        address_space=_space(shape),
    )
    program = program.with_instructions(
        changed, temporary_variables={**program.without({value.name}), new: array}
    ).with_dtype(new, program.dtypes[value.name])
    for insn_id in changed:
        program = program.with_own_sums(insn_id)
    return program


def _space(shape: Sequence[Expression]) -> lp.AddressSpace:
    is_short = all(isinstance(n, (int, np.integer)) for n in shape)
    if is_short and np.prod([int(n) for n in shape]) <= MOST_PRIVATE:
        return lp.AddressSpace.PRIVATE
    return lp.AddressSpace.GLOBAL


def _outermost_first(
    loops: frozenset[str], extents: dict[str, Extent]
) -> tuple[str, ...]:
    """Order loops with long ones first, whose axes are slow."""

    def length(iname: str) -> tuple[float, str]:
        extent = extents[iname]
        return (-float(extent) if isinstance(extent, int) else -inf, iname)

    return tuple(sorted(loops, key=length))


def _size(expression: Expression) -> int:
    return count_nodes(expression, LONGEST_EXPRESSION)
