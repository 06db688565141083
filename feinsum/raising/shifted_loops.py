"""Loops that do not begin at 0, as loops that do."""

from __future__ import annotations

from collections.abc import Mapping

import islpy as isl
import loopy as lp
from constantdict import constantdict
from loopy.symbolic import Reduction, SubstitutionMapper
from pymbolic import primitives as p
from pymbolic.mapper.substitutor import make_subst_func

from feinsum.raising.affine import Affine
from feinsum.raising.nest import Expression
from feinsum.raising.normal import is_no_op

__all__ = ["with_loops_from_zero"]


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
