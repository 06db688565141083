"""Tiles in private memory: copies of operands (packing), and accumulators.

An accumulator is zeroed, updated and stored in three separate loop nests.

Source: Loopy's ``precompute``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import loopy as lp
import numpy as np
from constantdict import constantdict
from loopy.symbolic import Reduction, WalkMapper, get_dependencies
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.transforms.primitives.schedule import Expression, Names, Schedule


@dataclass(frozen=True)
class StagedTile:
    """A private array that holds a tile of an operand.

    Attributes:
        instruction: id of the instruction that fills it.
        inames: for each index of the operand's span, the iname of the filling loop; an
            index of a single value has none, as Loopy makes no loop over it.
    """

    temporary: str
    instruction: str
    inames: Mapping[str, str]


def stage_operand(
    schedule: Schedule,
    operand: str,
    outer: Collection[str],
    *,
    lane: str | None = None,
    lane_tag: str = "unr",
) -> tuple[Schedule, StagedTile]:
    """Evaluate an operand over a tile before its uses.

    Rewrite::

        for outer, inner:  ... u(8*outer + lane, j) ...

        for outer:
            for j', lane':  u_tile[j', lane'] = u(8*outer + lane', j')
            for inner:      ... u_tile[j, lane] ...

    Args:
        schedule: the schedule.
        operand: name of the operand.
        outer: the inames of the loops around the tile.
        lane: the index of the operand's span that becomes the last axis of the tile,
            and the lanes of an OpenCL vector.
        lane_tag: tag of its loop: ``unr`` for reads of global memory, ``vec`` for
            arithmetic on vectors.

    Raises:
        TransformError: if the lanes do not depend on inames of the tile alone.
    """
    span, rule = schedule.spans[operand], schedule.rules[operand]
    arguments = schedule.kernel.substitutions[rule].arguments
    argument_of = dict(zip(span, arguments, strict=True))
    # lanes are the last axis, which becomes the OpenCL vector
    order = [entry for entry in span if entry != lane]
    order += [lane] if lane is not None else []
    temporary = schedule.fresh(f"{operand}_tile")
    inames = {entry: schedule.fresh(f"{temporary}_{entry}") for entry in order}
    fill = schedule.generate_id(f"{temporary}_fill")
    outside = frozenset(outer)
    t_unit = lp.precompute(
        schedule.t_unit,
        rule,
        _find_calling_inames(schedule, rule) - outside,
        storage_axes=[argument_of[entry] for entry in order],
        precompute_inames=list(inames.values()),
        precompute_outer_inames=outside,
        temporary_name=temporary,
        temporary_address_space=lp.AddressSpace.PRIVATE,
        # by default, Loopy maps the loops of the fill to work-items
        default_tag=None,
        compute_insn_id=fill,
    )
    if lane is not None:
        t_unit = lp.tag_inames(t_unit, {inames[lane]: lane_tag})
    schedule = schedule.with_unit(t_unit)
    if lane is not None:
        # Loopy replaces a loop around the tile by its value if full vectors allow one
        _check_lanes(schedule, temporary, outside)
        schedule = vectorize_last_axis(schedule, temporary)
    loops = {e: i for e, i in inames.items() if i in schedule.kernel.all_inames()}
    return schedule, StagedTile(temporary, fill, constantdict(loops))


def _check_lanes(schedule: Schedule, temporary: str, outer: frozenset[str]) -> None:
    """Refuse lanes ``lane + 8*outer``, as Loopy writes them where ``outer`` must be 0.

    A loop of a single iteration is harmless: Loopy's code has a constant for it.
    """
    finder = _LaneFinder(temporary)
    for insn in schedule.kernel.instructions:
        finder(insn.expression)
    named = sorted(finder.names & outer)
    if pinned := [i for i in named if not _is_single(schedule.kernel, i)]:
        raise TransformError(
            f"the loops {pinned} around the tile {temporary!r} have a single value in "
            "full vectors"
        )


def _is_single(kernel: lp.LoopKernel, iname: str) -> bool:
    """Return whether a loop is known to run once."""
    try:
        return bool(kernel.get_constant_iname_length(iname) == 1)
    except ValueError:
        return False


def vectorize_last_axis(schedule: Schedule, temporary: str) -> Schedule:
    """Turn the last axis of a private array into the lanes of OpenCL vectors.

    Rewrite::

        double tile[4][8];

        double8 tile[4];
    """
    rank = len(schedule.kernel.temporary_variables[temporary].shape)
    tags = [f"N{rank - 2 - axis}" for axis in range(rank - 1)]
    return schedule.with_unit(
        lp.tag_array_axes(schedule.t_unit, temporary, ",".join([*tags, "vec"]))
    )


def _find_calling_inames(schedule: Schedule, rule: str) -> frozenset[str]:
    """Return the inames in the arguments of all calls of a rule."""
    finder = _CallFinder(rule)
    for insn in schedule.kernel.instructions:
        finder(insn.expression)
    return frozenset(finder.names & schedule.kernel.all_inames())


class _LaneFinder(WalkMapper):  # type: ignore[misc]
    """Collects the names in the last subscripts of one array."""

    def __init__(self, array: str) -> None:
        super().__init__()
        self.array = array
        self.names: set[str] = set()

    def map_subscript(self, expr: p.Subscript, /) -> None:
        if getattr(expr.aggregate, "name", None) == self.array:
            self.names |= get_dependencies(expr.index_tuple[-1])
        super().map_subscript(expr)


class _CallFinder(WalkMapper):  # type: ignore[misc]
    """Collects the names in the arguments of one rule's calls."""

    def __init__(self, rule: str) -> None:
        super().__init__()
        self.rule = rule
        self.names: set[str] = set()

    def map_call(self, expr: p.Call, /) -> None:
        if getattr(expr.function, "name", None) == self.rule:
            for argument in expr.parameters:
                self.names |= get_dependencies(argument)
        super().map_call(expr)


@dataclass(frozen=True)
class _Sum:
    """The parts of an assigned value ``shift + scale * sum(inames, term)``."""

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
    """Sum in a private array over the ``private`` inames, and store it afterwards.

    Rewrite::

        for outer, private:  out[...] = shift + scale*sum(k, f)

        for outer:
            for private':     acc[private'] = 0
            for k, private:   acc[private] = acc[private] + f
            for private'':    out[...] = shift + scale*acc[private'']

    Without a sum, there is no first nest, and the update assigns.

    Args:
        schedule: the schedule.
        instruction: id of the instruction to rewrite.
        private: inames that are the axes of the accumulator.
        dtype: dtype of the accumulator.
        lane: the one of these inames that becomes the lanes of an OpenCL vector.
        store_tag: tag of the lanes in the store: ``unr`` to global memory, ``vec`` to
            private vectors.
        order: loops of the update, outermost first; by default the private inames are
            innermost.
    """
    insn = schedule.kernel.id_to_insn[instruction]
    spanned = [name for name in private if name != lane]
    axes = [*spanned, lane] if lane is not None else spanned
    value = _take_apart(insn.expression, schedule.is_shifted(instruction))
    name = schedule.fresh(f"{instruction}_acc")
    subscripts = tuple(var(iname) for iname in axes)
    accumulator = var(name)[subscripts] if subscripts else var(name)
    ids = (
        schedule.generate_id(f"{instruction}_zero"),
        schedule.generate_id(f"{instruction}_update"),
    )
    steps = _make_steps(insn, ids, accumulator, value, dtype)
    shape = tuple(schedule.kernel.get_constant_iname_length(i) for i in axes)
    schedule = _with_steps(schedule, insn, steps)
    schedule = _with_private_array(schedule, name, shape, dtype)
    if lane is not None:
        schedule = vectorize_last_axis(schedule, name)
    if value.inames:
        # with the block innermost, consecutive additions go to different entries and
        # do not wait for one another
        nesting = tuple(order) or (*value.inames, *spanned)
        schedule = schedule.with_unit(lp.prioritize_loops(schedule.t_unit, nesting))
    for step, tag in (("zero", "vec"), ("store", store_tag)):
        if step in steps:
            schedule = _with_own_inames(schedule, steps[step].id, axes, lane, tag)
    return schedule


def _with_steps(
    schedule: Schedule, insn: lp.Assignment, steps: Mapping[str, lp.Assignment]
) -> Schedule:
    """Replace an instruction by its steps."""
    other_statements = [i for i in schedule.kernel.instructions if i.id != insn.id]
    return schedule.with_kernel(instructions=[*other_statements, *steps.values()])


def _with_private_array(
    schedule: Schedule, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Schedule:
    array = lp.TemporaryVariable(
        name, dtype, shape=shape, address_space=lp.AddressSpace.PRIVATE
    )
    temporaries = schedule.kernel.temporary_variables
    return schedule.with_kernel(temporary_variables={**temporaries, name: array})


def _take_apart(value: Expression, is_shifted: bool) -> _Sum:
    """Split an assigned value; without a sum, the term is everything but the shift."""
    shift: tuple[Expression, ...] = ()
    if is_shifted:
        if not isinstance(value, p.Sum) or len(value.children) != 2:
            raise TransformError(f"{value} is not a shift plus a scaled sum")
        *shift, value = value.children
    factors = value.children if isinstance(value, p.Product) else (value,)
    for factor in factors:
        if isinstance(factor, Reduction):
            scale = tuple(f for f in factors if f is not factor)
            return _Sum(tuple(shift), scale, tuple(factor.inames), factor.expr)
    return _Sum(tuple(shift), (), (), value)


def _make_steps(
    insn: lp.Assignment,
    ids: tuple[str, str],
    accumulator: Expression,
    value: _Sum,
    dtype: np.dtype[Any],
) -> dict[str, lp.Assignment]:
    """Make the steps zero, update and store; the store keeps the instruction's id."""
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
    """Give an instruction its own copies of ``inames``; tag the copy of the lane."""
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
