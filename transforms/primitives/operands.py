"""Operands that are merged, or copied to private memory, and accumulators of sums.

An accumulator is zeroed, updated and stored in three separate loop nests.

Source: Loopy's ``precompute``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import loopy as lp
import numpy as np
from constantdict import constantdict
from loopy.symbolic import Reduction, get_dependencies
from pymbolic import primitives as p
from pymbolic import var

from feinsum.errors import TransformError
from feinsum.raising.expressions import collect_nodes, get_array_name
from feinsum.transforms.primitives.loops import (
    constrain_domain,
    make_domain,
    with_own_inames,
)
from feinsum.transforms.primitives.schedule import (
    Expression,
    Names,
    Schedule,
    make_scaled_sum,
    with_row_values,
)


def merge_operands(
    schedule: Schedule, first: int, second: int
) -> tuple[Schedule, tuple[str, ...]]:
    """Replace the operands at two positions by their product, as one operand.

    The product sums over indices that no other term has. Rows that share both operands
    share the product.

    Rewrite, with the pair (D, u)::

        out[x,e,i] = sum((r,j), J(x,r,e)*D(r,i,j)*u(e,j))

        t(r,e,i) := sum(j', D(r,i,j')*u(e,j'))
        out[x,e,i] = sum(r, J(x,r,e)*t(r,e,i))

    Returns:
        The schedule, and the names of the new operands, at the last position.
    """
    positions = [k for k in range(len(schedule.terms)) if k not in (first, second)]
    outside = set(schedule.output).union(*(schedule.terms[k] for k in positions))
    joint = dict.fromkeys(schedule.terms[first] + schedule.terms[second])
    output = tuple(index for index in joint if index in outside)
    summed = tuple(index for index in joint if index not in outside)
    products: dict[tuple[str, str], str] = {}
    rows = []
    for row in schedule.rows:
        pair = row[first], row[second]
        if pair not in products:
            schedule, products[pair] = _with_product(schedule, pair, output, summed)
        rows.append((*(row[k] for k in positions), products[pair]))
    schedule = with_row_values(replace(schedule, rows=tuple(rows)))
    unused = [schedule.inames[index] for index in summed]
    t_unit = lp.remove_unused_inames(schedule.t_unit, unused)
    return schedule.with_unit(t_unit), tuple(products.values())


def _with_product(
    schedule: Schedule, pair: tuple[str, str], output: Names, summed: Names
) -> tuple[Schedule, str]:
    """Add the rule ``t(kept) := sum(summed, first*second)``."""
    points, inames = {}, []
    for index in summed:
        iname = schedule.fresh(f"{schedule.inames[index]}_sum")
        # ``precompute`` requires the inames of a footprint in one domain
        bounds = make_domain([iname], f"0 <= {iname} < {schedule.extents[index]}")
        schedule = constrain_domain(schedule, schedule.inames[index], bounds)
        points[index] = var(iname)
        inames.append(iname)
    arguments = schedule.generate_arguments(output)
    points.update(zip(output, map(var, arguments), strict=True))
    body = make_scaled_sum(1, tuple(inames), schedule.multiply(pair, points))
    name = schedule.fresh("_".join(pair))
    rule = schedule.fresh(f"{name}_rule")
    schedule = schedule.with_rule(rule, arguments, body)
    dtype = np.dtype(np.result_type(*(schedule.dtypes[n] for n in pair)))
    return replace(
        schedule,
        rules=constantdict({**schedule.rules, name: rule}),
        spans=constantdict({**schedule.spans, name: output}),
        dtypes=constantdict({**schedule.dtypes, name: dtype}),
    ), name


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
    lanes = tuple(
        access.index_tuple[-1]
        for insn in schedule.kernel.instructions
        for access in collect_nodes(insn.expression, p.Subscript)
        if get_array_name(access) == temporary
    )
    named = sorted(get_dependencies(lanes) & outer)
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
    arguments = tuple(
        call.parameters
        for insn in schedule.kernel.instructions
        for call in collect_nodes(insn.expression, p.Call)
        if getattr(call.function, "name", None) == rule
    )
    return frozenset(get_dependencies(arguments) & schedule.kernel.all_inames())


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
    array = lp.TemporaryVariable(
        name, dtype, shape=shape, address_space=lp.AddressSpace.PRIVATE
    )
    kernel = schedule.kernel
    other_statements = [i for i in kernel.instructions if i.id != instruction]
    schedule = schedule.with_kernel(
        instructions=[*other_statements, *steps.values()],
        temporary_variables={**kernel.temporary_variables, name: array},
    )
    if lane is not None:
        schedule = vectorize_last_axis(schedule, name)
    if value.inames:
        # with the block innermost, consecutive additions go to different entries and
        # do not wait for one another
        nesting = (*value.inames, *spanned)
        schedule = schedule.with_unit(lp.prioritize_loops(schedule.t_unit, nesting))
    for step, tag in (("zero", "vec"), ("store", store_tag)):
        if step in steps:
            schedule, copies = with_own_inames(schedule, (steps[step].id,), axes, "own")
            tags = {copies[lane]: tag} if lane is not None else {}
            schedule = schedule.with_unit(lp.tag_inames(schedule.t_unit, tags))
    return schedule


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
