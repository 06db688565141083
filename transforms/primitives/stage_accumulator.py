"""Accumulators in private memory: zero, update and store as separate loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import loopy as lp
import numpy as np
from loopy.symbolic import Reduction
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.transforms.primitives.schedule import Expression, Names, Schedule
from feinsum.transforms.primitives.stage_operand import vectorize_last_axis

__all__ = ["stage_accumulator"]


@dataclass(frozen=True)
class _Sum:
    """An assigned value, taken apart: ``shift + scale * sum(inames, term)``."""

    shift: tuple[Expression, ...]
    scale: tuple[Expression, ...]
    inames: Names
    term: Expression


def stage_accumulator(
    schedule: Schedule,
    instruction: str,
    private: Sequence[str],
    dtype: np.dtype[Any],
    *,
    lane: str | None = None,
    store_tag: str = "unr",
    order: Sequence[str] = (),
) -> Schedule:
    """Sum into a private array that spans the ``private`` inames.

    Rewrite::

        for outer, private:  out[...] = shift + scale*sum(k, f)

        for outer:
            for private':     acc[private'] = 0
            for k, private:   acc[private] = acc[private] + f
            for private'':    out[...] = shift + scale*acc[private'']

    Without a sum there is no zeroing, and the update assigns.

    Args:
        dtype: of the accumulator.
        lane: one of the inames, which becomes the lanes of an OpenCL vector.
        store_tag: how the lanes are stored: ``unr`` to global memory, ``vec`` to
            private vectors.
        order: nesting of the update, outermost first; by default the private
            inames are inside.
    """
    insn = schedule.kernel.id_to_insn[instruction]
    spanned = [name for name in private if name != lane]
    axes = [*spanned, lane] if lane is not None else spanned
    value = _take_apart(insn.expression, schedule.is_shifted(instruction))
    name = schedule.fresh(f"{instruction}_acc")
    place = tuple(var(iname) for iname in axes)
    accumulator = var(name)[place] if place else var(name)
    ids = (
        schedule.fresh_id(f"{instruction}_zero"),
        schedule.fresh_id(f"{instruction}_update"),
    )
    steps = _steps(insn, ids, accumulator, value, dtype)
    shape = tuple(schedule.kernel.get_constant_iname_length(i) for i in axes)
    schedule = _with_steps(schedule, insn, steps)
    schedule = _with_private_array(schedule, name, shape, dtype)
    if lane is not None:
        schedule = vectorize_last_axis(schedule, name)
    if value.inames:
        # the block innermost: additions to its entries do not wait for one another
        nesting = tuple(order) or (*value.inames, *spanned)
        schedule = schedule.with_unit(lp.prioritize_loops(schedule.t_unit, nesting))
    for step, tag in (("zero", "vec"), ("store", store_tag)):
        if step in steps:
            schedule = _with_own_inames(schedule, steps[step].id, axes, lane, tag)
    return schedule


def _with_steps(
    schedule: Schedule, insn: lp.Assignment, steps: Mapping[str, lp.Assignment]
) -> Schedule:
    """The steps in place of the instruction."""
    others = [i for i in schedule.kernel.instructions if i.id != insn.id]
    return schedule.with_kernel(instructions=[*others, *steps.values()])


def _with_private_array(
    schedule: Schedule, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Schedule:
    array = lp.TemporaryVariable(
        name, dtype, shape=shape, address_space=lp.AddressSpace.PRIVATE
    )
    known = schedule.kernel.temporary_variables
    return schedule.with_kernel(temporary_variables={**known, name: array})


def _take_apart(value: Expression, is_shifted: bool) -> _Sum:
    """Without a sum the whole value, but for the shift, is the term."""
    shift: tuple[Expression, ...] = ()
    if is_shifted:
        if not isinstance(value, p.Sum) or len(value.children) != 2:
            raise TransformError(f"{value} is not a shift plus a scaled sum")
        *shift, value = value.children
    factors = value.children if isinstance(value, p.Product) else (value,)
    for factor in factors:
        if isinstance(factor, Reduction):
            scale = tuple(other for other in factors if other is not factor)
            return _Sum(tuple(shift), scale, tuple(factor.inames), factor.expr)
    return _Sum(tuple(shift), (), (), value)


def _steps(
    insn: lp.Assignment,
    ids: tuple[str, str],
    accumulator: Expression,
    value: _Sum,
    dtype: np.dtype[Any],
) -> dict[str, lp.Assignment]:
    """Zero, update and store; the store keeps the id of the instruction."""
    zero, update = ids
    stored = p.Product((*value.scale, accumulator)) if value.scale else accumulator
    stored = p.Sum((*value.shift, stored)) if value.shift else stored
    store = insn.copy(expression=stored, depends_on=frozenset({update}))
    if not value.inames:
        assign = insn.copy(id=update, assignee=accumulator, expression=value.term)
        return {"update": assign, "store": store}
    return {
        "zero": insn.copy(
            id=zero,
            assignee=accumulator,
            expression=dtype.type(0),
            depends_on=frozenset(),
        ),
        "update": insn.copy(
            id=update,
            assignee=accumulator,
            expression=p.Sum((accumulator, value.term)),
            within_inames=insn.within_inames | frozenset(value.inames),
            depends_on=insn.depends_on | {zero},
        ),
        "store": store,
    }


def _with_own_inames(
    schedule: Schedule,
    instruction: str,
    inames: Sequence[str],
    lane: str | None,
    lane_tag: str,
) -> Schedule:
    """Give one instruction its own copies of ``inames``."""
    copies = {iname: schedule.fresh(f"{iname}_own") for iname in inames}
    t_unit = schedule.t_unit
    if copies:
        t_unit = lp.duplicate_inames(
            t_unit,
            tuple(copies),
            within=f"id:{instruction}",
            new_inames=list(copies.values()),
        )
    if lane is not None:
        t_unit = lp.tag_inames(t_unit, {copies[lane]: lane_tag})
    return schedule.with_unit(t_unit)
