"""Loops in the form that raising reads: from 0, in sets of their own, in an order.

Where two instructions share a loop, Loopy opens it once, around all loops that only
one of them has. A raised nest gets loops of its own; without the order of the loops
around instructions that no recipe replaces, Loopy could exchange loops that are left,
in which one iteration may read what another wrote.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise, product

import islpy as isl
import loopy as lp
from constantdict import constantdict
from loopy.symbolic import Reduction, SubstitutionMapper, WalkMapper, get_dependencies
from pymbolic import primitives as p
from pymbolic.mapper.substitutor import make_subst_func

from feinsum.raising.affine import Affine, affine
from feinsum.raising.hazards import subscripts_of
from feinsum.raising.nest import Expression, RaisedKernel, RaisedNest
from feinsum.raising.normal import is_no_op


def with_loops_from_zero(kernel: lp.LoopKernel) -> lp.LoopKernel:
    """The kernel in which loops begin at 0, and count from where they began.

    That is done where the lower bound is a number, or a sum of multiples of parameters
    that nothing writes. Loops of parts in C are unchanged, since these name them.

    Rewrite, with the parameters ``start`` and ``end``::

        for start <= e < end:    u[e] = 2*x[e]

        for 0 <= e < end-start:  u[e + start] = 2*x[e + start]
    """
    lower = _lower_bounds(kernel)
    if not lower:
        return kernel
    domains = [_shifted(domain, lower) for domain in kernel.domains]
    points = {
        iname: p.Sum((p.Variable(iname), bound.expression()))
        for iname, bound in lower.items()
    }
    put_in = _Shift(make_subst_func(points))
    return kernel.copy(
        domains=domains,
        instructions=[
            insn.with_transformed_expressions(put_in)
            if lower.keys() & (insn.within_inames | insn.reduction_inames())
            else insn
            for insn in kernel.instructions
        ],
        substitutions=constantdict(
            {n: _shifted_rule(r, points) for n, r in kernel.substitutions.items()}
        ),
    )


class _Shift(SubstitutionMapper):  # type: ignore[misc]
    """Shifts inames everywhere but where a sum names its own."""

    def map_reduction(self, expr: Reduction, /) -> Reduction:
        return Reduction(
            expr.operation, expr.inames, self.rec(expr.expr), expr.allow_simultaneous
        )


def _shifted_rule(
    rule: lp.SubstitutionRule, points: Mapping[str, Expression]
) -> lp.SubstitutionRule:
    """A rule may read inames that are not its arguments."""
    read = {iname: x for iname, x in points.items() if iname not in rule.arguments}
    return rule.copy(expression=_Shift(make_subst_func(read))(rule.expression))


def _lower_bounds(kernel: lp.LoopKernel) -> dict[str, Affine]:
    """The lower bounds that are not 0, of the loops that can be shifted."""
    if any(isinstance(insn, lp.CallInstruction) for insn in kernel.instructions):
        return {}  # a callee may be given slices, which name inames
    in_code: set[str] = set()
    for insn in kernel.instructions:
        if isinstance(insn, lp.CInstruction) and not is_no_op(insn):
            in_code |= insn.within_inames
    params = kernel.get_unwritten_value_args()
    inner = {n for d in kernel.domains for n in d.get_var_names(isl.dim_type.param)}
    found = {}
    for domain in kernel.domains:
        for iname, bound in _bounds_of(domain).items():
            is_free = iname not in in_code and iname not in inner
            if bound is not None and is_free and params.issuperset(bound.coefficients):
                found[iname] = bound
    return {n: x for n, x in found.items() if x.coefficients or x.constant}


def _bounds_of(domain: isl.BasicSet) -> dict[str, Affine | None]:
    """The lower bound of each iname that has a single one, without other inames."""
    inames = domain.get_var_names(isl.dim_type.set)
    found: dict[str, Affine | None] = {}
    if domain.dim(isl.dim_type.div):
        return found  # steps: constraints do not tell the bounds
    for constraint in domain.get_constraints():
        terms = {
            name: int(n.to_python())
            for name, n in constraint.get_coefficients_by_name().items()
        }
        if constraint.is_equality():
            found.update(dict.fromkeys(set(inames) & terms.keys()))
            continue
        constant = terms.pop(1, 0)
        own = {name for name in terms if name in inames}
        for iname in own:
            if terms[iname] < 0:
                continue
            others = {name: -n for name, n in terms.items() if name != iname}
            is_plain = own == {iname} and terms[iname] == 1 and iname not in found
            found[iname] = Affine(-constant, constantdict(others)) if is_plain else None
    return found


def _shifted(domain: isl.BasicSet, lower: Mapping[str, Affine]) -> isl.BasicSet:
    """The domain of loops that count from their lower bounds."""
    inames = domain.get_var_names(isl.dim_type.set)
    if not lower.keys() & set(inames):
        return domain
    params = domain.get_var_names(isl.dim_type.param)
    places = [f"{i} - ({lower[i].text()})" if i in lower else i for i in inames]
    shift = isl.BasicMap(
        f"[{', '.join(params)}] -> {{ [{', '.join(inames)}] -> [{', '.join(places)}] }}"
    )
    moved = domain.apply(shift)
    for k, iname in enumerate(inames):
        moved = moved.set_dim_name(isl.dim_type.set, k, iname)
    return moved


SET, PARAM, DIV = isl.dim_type.set, isl.dim_type.param, isl.dim_type.div


def with_independent_sets(kernel: lp.LoopKernel) -> lp.LoopKernel:
    """The kernel in which loops share a set only if constraints relate them.

    isl's operations take time that grows with a high power of the loops of a set. A
    set that one instruction needs whole stays, for nothing is gained.

    Rewrite::

        {[e,i,f,j]: 0 <= e < n and 0 <= i < e and 0 <= f, j < 4}

        {[e,i]: 0 <= e < n and 0 <= i < e}, {[f]: 0 <= f < 4}, {[j]: 0 <= j < 4}
    """
    nests = [i.within_inames | i.reduction_inames() for i in kernel.instructions]
    domains: list[isl.BasicSet] = []
    for domain in kernel.domains:
        loops = domain.get_var_names(SET)
        is_needed_whole = any(nest.issuperset(loops) for nest in nests)
        domains += [domain] if is_needed_whole else _parts(domain)
    is_changed = len(domains) > len(kernel.domains)
    return kernel.copy(domains=domains) if is_changed else kernel


def _parts(domain: isl.BasicSet) -> list[isl.BasicSet]:
    """Sets whose product is the domain, each of loops that constraints relate."""
    parts = [_only(domain, loops) for loops in _related(domain)]
    # where one loop runs not at all, none does
    is_run = isl.BasicSet.universe(domain.get_space().params())
    for part in parts:
        is_run = is_run.intersect(part.params())
    is_run = is_run.remove_redundancies()
    parts = [
        _without_unused(part.intersect_params(is_run).remove_redundancies())
        for part in parts
    ]
    return parts if _is_product(domain, parts) else [domain]


def _related(domain: isl.BasicSet) -> Iterator[list[int]]:
    """The places of loops that constraints relate, directly or by others."""
    n_loops, n_divs = domain.dim(SET), domain.dim(DIV)
    places = [(SET, k) for k in range(n_loops)] + [(DIV, k) for k in range(n_divs)]
    groups = [{place} for place in range(len(places))]
    for constraint in domain.get_constraints():
        used = [
            place
            for place, (kind, k) in enumerate(places)
            if constraint.involves_dims(kind, k, 1)
        ]
        joined = set[int]().union(*(groups[place] for place in used))
        for place in joined:
            groups[place] = joined
    for place in range(n_loops):
        if min(groups[place]) == place:
            yield sorted(k for k in groups[place] if k < n_loops)


def _only(domain: isl.BasicSet, loops: list[int]) -> isl.BasicSet:
    """The loops at some places, without the constraints of all others."""
    ends = [-1, *loops, domain.dim(SET)]
    gaps = [(a + 1, b - a - 1) for a, b in pairwise(ends) if b - a > 1]
    for first, n in gaps:
        domain = domain.drop_constraints_involving_dims(SET, first, n)
    # what no constraint is left of costs nothing to project out
    for first, n in reversed(gaps):
        domain = domain.project_out(SET, first, n)
    return domain


def _without_unused(domain: isl.BasicSet) -> isl.BasicSet:
    """The set without parameters that it does not depend on."""
    for place in reversed(range(domain.dim(PARAM))):
        if not domain.involves_dims(PARAM, place, 1):
            domain = domain.project_out(PARAM, place, 1)
    return domain


def _is_product(domain: isl.BasicSet, parts: list[isl.BasicSet]) -> bool:
    """Whether nothing was lost with the constraints of other loops.

    That is so without existentially quantified variables, as no constraint is of the
    loops of two parts.
    """
    if not domain.dim(DIV):
        return True
    whole = isl.BasicSet.universe(domain.get_space())
    for part in parts:
        whole = isl.BasicSet.intersect(*isl.align_two(whole, part))
    whole, domain = isl.align_two(whole, domain)
    return bool(whole.is_equal(domain))


def joint_inames(raised: RaisedKernel) -> int:
    """How many inames stand beside others in subscripts of outputs, or beside others
    that are summed in those of operands. Loops over nodes of trees are never joint.
    """
    kernel = raised.t_unit[raised.kernel_name]
    return sum(
        len(names) - 1
        for nest in raised.raised
        if nest.nest.tree is None
        for names in (*_of_outputs(nest), *_of_sums(nest, kernel))
        if names
    )


def _of_outputs(nest: RaisedNest) -> Iterator[frozenset[str]]:
    for assignee in nest.nest.assignees:
        for subscript in subscripts_of(assignee):
            yield frozenset(get_dependencies(subscript))


def _of_sums(nest: RaisedNest, kernel: lp.LoopKernel) -> Iterator[frozenset[str]]:
    """The parameters of operands that stand for indices which are summed."""
    output = nest.einsum.output
    for row in nest.einsum.rows:
        for operand, term in zip(row, nest.einsum.inputs, strict=True):
            rule = kernel.substitutions[operand.name]
            indices = dict(zip(rule.arguments, term, strict=True))
            finder = _SubscriptFinder()
            finder(rule.expression)
            for subscript in finder.found:
                step = affine(subscript, indices)
                names = step.inames if step else ()
                yield frozenset(name for name in names if indices[name] not in output)


class _SubscriptFinder(WalkMapper):  # type: ignore[misc]
    """Collects the subscripts of all arrays."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Expression] = []

    def map_subscript(self, expr: p.Subscript, /) -> None:
        self.found += expr.index_tuple
        super().map_subscript(expr)


def with_order_of(
    given: lp.LoopKernel, kernel: lp.LoopKernel, raised: Collection[str]
) -> lp.LoopKernel:
    """A kernel whose other instructions have their loops in the order of the given one.

    Args:
        raised: the ids of the instructions of all raised nests.
    """
    if not raised:
        return kernel
    orders = {
        (outer, inner)
        for insn in kernel.instructions
        if insn.id not in raised and insn.id in given.id_to_insn
        for outer, inner in _orders(given, insn.id)
        if {outer, inner} <= insn.within_inames
    }
    return kernel.copy(loop_priority=kernel.loop_priority | orders)


def _orders(kernel: lp.LoopKernel, insn_id: str) -> set[tuple[str, str]]:
    """Pairs of loops of an instruction that nest in one order only, outer one first."""
    loops = kernel.id_to_insn[insn_id].within_inames
    return {
        pair
        for others in {insn.within_inames for insn in kernel.instructions}
        for pair in product(loops & others, loops - others)
    }
