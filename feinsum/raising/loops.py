"""Loops in the form that raising needs: from 0, not split, in separate sets, in order.

::

    {[e, j]: 0 <= e < n and 0 <= j < 4}   becomes   {[e]: 0 <= e < n}, {[j]: 0 <= j < 4}
    for start <= e < end                            for 0 <= e < end - start
    v[10*e_outer + e_inner]                         v[e]

by :func:`with_independent_sets`, :func:`with_loops_from_zero` and
:func:`with_joined_loops`.

If two instructions share a loop, Loopy opens it once, around all loops that only one of
them has; this orders the loops. A raised nest gets separate loops, and so that order is
lost. Loopy could then interchange loops around other instructions, even if one
iteration reads a value that another one wrote. Therefore :func:`with_order_of` adds the
order of the given kernel as loop priorities.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise, product
from typing import NamedTuple

import islpy as isl
import loopy as lp
from constantdict import constantdict
from loopy.kernel.data import UnrollTag
from loopy.symbolic import (
    IdentityMapper,
    Reduction,
    SubstitutionMapper,
    get_dependencies,
)
from pymbolic import primitives as p
from pymbolic.mapper.substitutor import make_subst_func

from feinsum.raising.affine import Affine, parse_affine
from feinsum.raising.expressions import (
    Expression,
    collect_loops,
    collect_nodes,
    get_subscripts,
    list_terms,
    make_sum,
)
from feinsum.raising.nest import RaisedKernel, RaisedNest
from feinsum.raising.rewriting import RewrittenKernel, is_no_op


def with_loops_from_zero(kernel: lp.LoopKernel) -> lp.LoopKernel:
    """Shift loops to begin at 0, so that they count from their lower bounds.

    A loop is shifted if its lower bound is a number, or a sum of multiples of
    parameters that nothing writes. Loops around code in C, which names them, are not.

    Rewrite, with the parameters ``start`` and ``end``::

        for start <= e < end:    u[e] = 2*x[e]

        for 0 <= e < end-start:  u[e + start] = 2*x[e + start]
    """
    lower = _find_lower_bounds(kernel)
    if not lower:
        return kernel
    domains = [_shift_domain(domain, lower) for domain in kernel.domains]
    points = {
        iname: p.Sum((p.Variable(iname), bound.expression()))
        for iname, bound in lower.items()
    }
    put_in = _Shift(make_subst_func(points))
    return kernel.copy(
        domains=domains,
        instructions=[
            insn.with_transformed_expressions(put_in)
            if lower.keys() & collect_loops(insn)
            else insn
            for insn in kernel.instructions
        ],
        substitutions=constantdict(
            {n: _shift_rule(r, points) for n, r in kernel.substitutions.items()}
        ),
    )


class _Shift(SubstitutionMapper):  # type: ignore[misc]
    """Shifts inames in expressions, but not in the lists of inames of sums."""

    def map_reduction(self, expr: Reduction, /) -> Reduction:
        return Reduction(
            expr.operation, expr.inames, self.rec(expr.expr), expr.allow_simultaneous
        )


def _shift_rule(
    rule: lp.SubstitutionRule, points: Mapping[str, Expression]
) -> lp.SubstitutionRule:
    """Shift the inames that a rule reads besides its arguments."""
    read = {iname: x for iname, x in points.items() if iname not in rule.arguments}
    return rule.copy(expression=_Shift(make_subst_func(read))(rule.expression))


def _find_lower_bounds(kernel: lp.LoopKernel) -> dict[str, Affine]:
    """Return the nonzero lower bounds of the loops that can be shifted."""
    if any(isinstance(insn, lp.CallInstruction) for insn in kernel.instructions):
        return {}  # arguments of a call may be slices, which name inames
    in_code: set[str] = set()
    for insn in kernel.instructions:
        if isinstance(insn, lp.CInstruction) and not is_no_op(insn):
            in_code |= insn.within_inames
    params = kernel.get_unwritten_value_args()
    # a loop in the bounds of another loop would have to be shifted there, too
    inner = {n for d in kernel.domains for n in d.get_var_names(isl.dim_type.param)}
    lower = {}
    for domain in kernel.domains:
        for iname, bound in _find_bounds(domain).items():
            # code in C names its loops, and cannot be rewritten
            is_free = iname not in in_code and iname not in inner
            if bound is not None and is_free and params.issuperset(bound.coefficients):
                lower[iname] = bound
    return {n: x for n, x in lower.items() if x.coefficients or x.constant}


def _find_bounds(domain: isl.BasicSet) -> dict[str, Affine | None]:
    """Return the lower bound of each iname that has a single, loop-invariant one."""
    inames = domain.get_var_names(isl.dim_type.set)
    bounds: dict[str, Affine | None] = {}
    if domain.dim(isl.dim_type.div):
        return bounds  # the constraints of loops with steps do not show the bounds
    for constraint in domain.get_constraints():
        terms = {
            name: int(n.to_python())
            for name, n in constraint.get_coefficients_by_name().items()
        }
        if constraint.is_equality():
            bounds.update(dict.fromkeys(set(inames) & terms.keys()))
            continue
        constant = terms.pop(1, 0)
        own_inames = {name for name in terms if name in inames}
        for iname in own_inames:
            if terms[iname] < 0:
                continue
            lower = {name: -n for name, n in terms.items() if name != iname}
            is_plain = (
                own_inames == {iname} and terms[iname] == 1 and iname not in bounds
            )
            bounds[iname] = Affine(-constant, constantdict(lower)) if is_plain else None
    return bounds


def _shift_domain(domain: isl.BasicSet, lower: Mapping[str, Affine]) -> isl.BasicSet:
    """Shift the loops of a domain to count from their lower bounds."""
    inames = domain.get_var_names(isl.dim_type.set)
    if not lower.keys() & set(inames):
        return domain
    params = domain.get_var_names(isl.dim_type.param)
    starts = [f"{i} - ({lower[i].text()})" if i in lower else i for i in inames]
    shift = isl.BasicMap(
        f"[{', '.join(params)}] -> {{ [{', '.join(inames)}] -> [{', '.join(starts)}] }}"
    )
    moved = domain.apply(shift)
    for k, iname in enumerate(inames):
        moved = moved.set_dim_name(isl.dim_type.set, k, iname)
    return moved


SET, PARAM, DIV = isl.dim_type.set, isl.dim_type.param, isl.dim_type.div


def with_independent_sets(kernel: lp.LoopKernel) -> lp.LoopKernel:
    """Split the domains so that loops share a set only if constraints relate them.

    The time of isl's operations grows with a high power of the loops of a set. A set is
    not split if one instruction needs all of its loops, since that would gain nothing.

    Rewrite::

        {[e,i,f,j]: 0 <= e < n and 0 <= i < e and 0 <= f, j < 4}

        {[e,i]: 0 <= e < n and 0 <= i < e}, {[f]: 0 <= f < 4}, {[j]: 0 <= j < 4}
    """
    nests = [collect_loops(insn) for insn in kernel.instructions]
    domains: list[isl.BasicSet] = []
    for domain in kernel.domains:
        loops = domain.get_var_names(SET)
        # each query would combine the factors again
        is_needed_whole = any(nest.issuperset(loops) for nest in nests)
        domains += [domain] if is_needed_whole else _split_domain(domain)
    is_changed = len(domains) > len(kernel.domains)
    return kernel.copy(domains=domains) if is_changed else kernel


def _split_domain(domain: isl.BasicSet) -> list[isl.BasicSet]:
    """Split a domain into factors; each has loops that constraints relate."""
    factors = [_keep_loops(domain, loops) for loops in _group_related(domain)]
    # each factor is empty if any of them is, since then no loop runs
    is_run = isl.BasicSet.universe(domain.get_space().params())
    for factor in factors:
        is_run = is_run.intersect(factor.params())
    is_run = is_run.remove_redundancies()
    factors = [
        _without_unused(factor.intersect_params(is_run).remove_redundancies())
        for factor in factors
    ]
    return factors if _is_product(domain, factors) else [domain]


def _group_related(domain: isl.BasicSet) -> Iterator[list[int]]:
    """Yield the positions of loops that constraints relate, directly or indirectly."""
    n_loops, n_divs = domain.dim(SET), domain.dim(DIV)
    axes = [(SET, k) for k in range(n_loops)] + [(DIV, k) for k in range(n_divs)]
    groups = [{axis} for axis in range(len(axes))]
    for constraint in domain.get_constraints():
        used = [
            axis
            for axis, (kind, k) in enumerate(axes)
            if constraint.involves_dims(kind, k, 1)
        ]
        joined = set[int]().union(*(groups[axis] for axis in used))
        for axis in joined:
            groups[axis] = joined
    for axis in range(n_loops):
        if min(groups[axis]) == axis:
            yield sorted(k for k in groups[axis] if k < n_loops)


def _keep_loops(domain: isl.BasicSet, loops: list[int]) -> isl.BasicSet:
    """Keep the loops at some positions, without the constraints of all others."""
    ends = [-1, *loops, domain.dim(SET)]
    gaps = [(a + 1, b - a - 1) for a, b in pairwise(ends) if b - a > 1]
    for first, n in gaps:
        domain = domain.drop_constraints_involving_dims(SET, first, n)
    # projecting out dimensions without constraints costs nothing
    for first, n in reversed(gaps):
        domain = domain.project_out(SET, first, n)
    return domain


def _without_unused(domain: isl.BasicSet) -> isl.BasicSet:
    """Project out the parameters that a set does not depend on."""
    for axis in reversed(range(domain.dim(PARAM))):
        if not domain.involves_dims(PARAM, axis, 1):
            domain = domain.project_out(PARAM, axis, 1)
    return domain


def _is_product(domain: isl.BasicSet, factors: list[isl.BasicSet]) -> bool:
    """Return whether the product of factors is the domain, so that nothing was lost.

    Without existentially quantified variables it always is, since no constraint relates
    loops of two factors.
    """
    if not domain.dim(DIV):
        return True
    rebuilt = isl.BasicSet.universe(domain.get_space())
    for factor in factors:
        rebuilt = isl.BasicSet.intersect(*isl.align_two(rebuilt, factor))
    rebuilt, domain = isl.align_two(rebuilt, domain)
    return bool(rebuilt.is_equal(domain))


def count_joint_inames(raised: RaisedKernel) -> int:
    """Count the inames beyond the first in each subscript.

    All inames count in subscripts of outputs, but only summed ones in those of
    operands. Nests over trees do not count.
    """
    kernel = raised.t_unit[raised.kernel_name]
    return sum(
        len(names) - 1
        for nest in raised.raised
        if nest.nest.tree is None
        for names in _list_subscript_inames(nest, kernel)
        if names
    )


def _list_subscript_inames(
    nest: RaisedNest, kernel: lp.LoopKernel
) -> Iterator[frozenset[str]]:
    """Yield the inames of each subscript of outputs, and the summed of operands."""
    for assignee in nest.nest.assignees:
        for subscript in get_subscripts(assignee):
            yield frozenset(get_dependencies(subscript))
    for row in nest.einsum.rows:
        for operand, term in zip(row, nest.einsum.inputs, strict=True):
            rule = kernel.substitutions[operand.name]
            indices = dict(zip(rule.arguments, term, strict=True))
            summed = {x for x, i in indices.items() if i not in nest.einsum.output}
            for array in collect_nodes(rule.expression, p.Subscript):
                for subscript in array.index_tuple:
                    step = parse_affine(subscript, indices)
                    yield frozenset(step.inames if step else ()) & summed


def with_order_of(
    given_kernel: lp.LoopKernel, kernel: lp.LoopKernel, raised: Collection[str]
) -> lp.LoopKernel:
    """Order the loops of a kernel's other instructions as in the given one.

    Args:
        given_kernel: the kernel with the order to keep.
        kernel: the kernel to constrain.
        raised: the ids of the instructions of all raised nests.
    """
    # without raised nests, Loopy orders the loops as in the given kernel
    if not raised:
        return kernel
    orders = {
        (outer, inner)
        for insn in kernel.instructions
        if insn.id not in raised and insn.id in given_kernel.id_to_insn
        for outer, inner in _list_orders(given_kernel, insn.id)
        if {outer, inner} <= insn.within_inames
    }
    return kernel.copy(loop_priority=kernel.loop_priority | orders)


def _list_orders(kernel: lp.LoopKernel, insn_id: str) -> set[tuple[str, str]]:
    """Return the pairs of an instruction's loops that can only nest in one order."""
    loops = kernel.id_to_insn[insn_id].within_inames
    return {
        pair
        for other_loops in {insn.within_inames for insn in kernel.instructions}
        for pair in product(loops & other_loops, loops - other_loops)
    }


class Split(NamedTuple):
    """Two loops that together are one loop, over ``block*outer + inner``."""

    outer: str
    inner: str
    block: int


def with_joined_loops(program: RewrittenKernel) -> RewrittenKernel:
    """Join loops that a user split, unless something needs one of them alone.

    Rewrite::

        for e_outer, e_inner < 10:  v[10*e_outer + e_inner] = ...

        for e:  v[e] = ...
    """
    while True:
        candidates = (_join_loops(program, split) for split in _list_splits(program))
        joined = next((x for x in candidates if x is not None), None)
        if joined is None:
            return program
        program = joined


def _list_splits(program: RewrittenKernel) -> Iterator[Split]:
    """Yield the distinct pairs of inames that occur as ``block*outer + inner``."""
    sums = dict.fromkeys(
        sum_
        for insn in program.kernel.instructions
        for expression in (*insn.assignees, insn.expression)
        for sum_ in collect_nodes(expression, p.Sum)
    )
    inames = program.kernel.all_inames()
    splits = dict[Split, None]()
    for expression in sums:
        steps = [parse_affine(term, inames) for term in list_terms(expression)]
        multiples = [s for s in steps if s is not None and len(s.coefficients) == 1]
        sizes = sorted((n, i) for s in multiples for i, n in s.coefficients.items())
        for k, (small, inner) in enumerate(sizes):
            for large, outer in sizes[k + 1 :]:
                # the stride of the outer loop is a multiple of that of the inner one
                if small > 0 and large % small == 0 and large > small:
                    splits[Split(outer, inner, large // small)] = None
    return iter(splits)


def _join_loops(program: RewrittenKernel, split: Split) -> RewrittenKernel | None:
    """Merge two loops into one; None if they have other uses."""
    kernel = program.kernel
    pair = {split.outer, split.inner}
    is_whole = all(
        len(pair & names) != 1
        for insn in kernel.instructions
        for names in (insn.within_inames, insn.reduction_inames())
    )
    is_tagged = any(
        # an unroll tag may be lost, since unrolling does not change values
        not isinstance(tag, UnrollTag)
        for iname in pair
        for tag in kernel.inames[iname].tags
    )
    if not is_whole or is_tagged or pair & program.in_rules:
        return None
    new_iname = str(kernel.get_var_name_generator()(split.outer.removesuffix("_outer")))
    domains = _build_domains(kernel, split, new_iname)
    if domains is None:
        return None
    rename = _Joiner(split, new_iname)
    try:
        changed = [
            insn.with_transformed_expressions(rename).copy(
                within_inames=_rename_inames(insn.within_inames, pair, new_iname)
            )
            for insn in kernel.instructions
        ]
    except _UsedAloneError:
        return None
    kernel = kernel.copy(instructions=changed, domains=domains)
    orders = frozenset(o for o in kernel.loop_priority if not pair & {*o})
    return replace(program, kernel=kernel.copy(loop_priority=orders))


def _rename_inames(
    names: frozenset[str], pair: set[str], new_iname: str
) -> frozenset[str]:
    return (names - pair) | {new_iname} if pair & names else names


def _build_domains(
    kernel: lp.LoopKernel, split: Split, new_iname: str
) -> list[isl.BasicSet] | None:
    """Build the domains with the merged loop instead of both."""
    # both loops may have separate domains
    homes = sorted(
        {kernel.get_home_domain_index(i) for i in (split.outer, split.inner)}
    )
    other_domains = [d for k, d in enumerate(kernel.domains) if k not in homes]
    pair = {split.outer, split.inner}
    # another loop's bounds depend on one of the two loops
    if any(pair & {*d.get_var_names(PARAM)} for d in kernel.domains):
        return None
    joint_domain = kernel.domains[homes[0]]
    for home in homes[1:]:
        joint_domain = isl.BasicSet.intersect(
            *isl.align_two(joint_domain, kernel.domains[home])
        )
    joined = _map_domain(joint_domain, split, new_iname)
    return None if joined is None else [*other_domains, joined]


def _map_domain(
    domain: isl.BasicSet, split: Split, new_iname: str
) -> isl.BasicSet | None:
    """Map a domain to the joint position; None if points would coincide."""
    params = domain.get_var_names(PARAM)
    prefix = f"[{', '.join(params)}] -> " if params else ""
    names = domain.get_var_names(SET)
    inner = f"0 <= {split.inner} < {split.block}"
    bounded = isl.BasicSet(f"{prefix}{{ [{', '.join(names)}] : {inner} }}")
    # if the inner loop exceeded its block, it would visit some positions twice
    if not domain.is_subset(bounded):
        return None
    other_loops = [name for name in names if name not in split]
    position = f"{split.block}*{split.outer} + {split.inner}"
    image = isl.Map(
        f"{prefix}{{ [{', '.join(names)}] -> [{', '.join([position, *other_loops])}] }}"
    )
    points = isl.Set.from_basic_set(domain).apply(image)
    points = points.set_dim_name(SET, 0, new_iname)
    for axis, name in enumerate(other_loops, start=1):
        points = points.set_dim_name(SET, axis, name)
    # a domain of Loopy is a single basic set, and has no holes
    hull = points.simple_hull()
    if isl.Set.from_basic_set(hull).is_equal(points):
        return hull.remove_redundancies()
    basic_sets = points.coalesce().get_basic_sets()
    return basic_sets[0] if len(basic_sets) == 1 else None


class _UsedAloneError(Exception):
    """One of two split loops is used without the other one."""


class _Joiner(IdentityMapper):  # type: ignore[misc]
    """Replaces the joint position of two inames by a new iname."""

    def __init__(self, split: Split, new: str) -> None:
        super().__init__()
        self.split, self.new = split, new
        self.pair = {split.outer, split.inner}

    def map_variable(self, expr: p.Variable, /) -> Expression:
        if expr.name in self.pair:
            raise _UsedAloneError(expr.name)
        return super().map_variable(expr)

    def map_sum(self, expr: p.Sum, /) -> Expression:
        steps = {self.split.outer: 0, self.split.inner: 0}
        joined_terms = []
        for term in list_terms(expr):
            step = parse_affine(term, self.pair)
            if step is None or not step.coefficients:
                joined_terms.append(self.rec(term))
                continue
            for name, n in step.coefficients.items():
                steps[name] += n
            if step.constant:
                joined_terms.append(step.constant)
        factor = steps[self.split.inner]
        if steps[self.split.outer] != self.split.block * factor:
            raise _UsedAloneError(str(expr))
        if factor:
            position = p.Variable(self.new)
            joined_terms.insert(
                0, position if factor == 1 else p.Product((factor, position))
            )
        return make_sum(joined_terms)

    def map_reduction(self, expr: Reduction, /) -> Reduction:
        if len(self.pair & {*expr.inames}) == 1:
            expr = self._with_inner_sum(expr)
        inames = tuple(
            sorted(_rename_inames(frozenset(expr.inames), self.pair, self.new))
        )
        return Reduction(
            expr.operation, inames, self.rec(expr.expr), expr.allow_simultaneous
        )

    def _with_inner_sum(self, expr: Reduction) -> Reduction:
        """Merge two sums, each over one of the loops, into one over both."""
        inner = expr.expr
        is_both = (
            isinstance(inner, Reduction)
            and inner.operation == expr.operation
            and self.pair <= {*expr.inames, *inner.inames}
        )
        if not is_both:
            raise _UsedAloneError(str(expr))
        inames = (*expr.inames, *inner.inames)
        return Reduction(expr.operation, inames, inner.expr, expr.allow_simultaneous)
