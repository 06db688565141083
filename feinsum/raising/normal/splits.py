"""Loops that were split, as one: what only their joint position tells apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import islpy as isl
import loopy as lp
from loopy.kernel.data import UnrollTag
from loopy.symbolic import IdentityMapper, Reduction, WalkMapper
from pymbolic import primitives as p

from feinsum.raising.affine import affine
from feinsum.raising.nest import Expression
from feinsum.raising.normal.program import Program, terms_of

SET, PARAM = isl.dim_type.set, isl.dim_type.param


class Split(NamedTuple):
    """Loops that together are one of position ``block*outer + inner``."""

    outer: str
    inner: str
    block: int


def with_joined_loops(program: Program) -> Program:
    """Loops that a user split, as one loop, if nothing needs one of them alone.

    Rewrite::

        for e_outer, e_inner < 10:  v[10*e_outer + e_inner] = ...

        for e:  v[e] = ...
    """
    while (joined := _joined_once(program)) is not None:
        program = joined
    return program


def _joined_once(program: Program) -> Program | None:
    for split in _splits(program):
        joined = _joined(program, split)
        if joined is not None:
            return joined
    return None


def _splits(program: Program) -> Iterator[Split]:
    """The pairs of inames that occur as a position, each once."""
    finder = _SumFinder()
    for insn in program.kernel.instructions:
        for expression in (*insn.assignees, insn.expression):
            finder(expression)
    inames = program.kernel.all_inames()
    found = dict[Split, None]()
    for expression in finder.found:
        steps = [affine(term, inames) for term in terms_of(expression)]
        known = [s for s in steps if s is not None and len(s.coefficients) == 1]
        sizes = sorted((n, i) for s in known for i, n in s.coefficients.items())
        for at, (small, inner) in enumerate(sizes):
            for large, outer in sizes[at + 1 :]:
                if small > 0 and large % small == 0 and large > small:
                    found[Split(outer, inner, large // small)] = None
    return iter(found)


def _joined(program: Program, split: Split) -> Program | None:
    """The kernel with one loop for two; None where these are used in other ways."""
    kernel = program.kernel
    pair = {split.outer, split.inner}
    is_whole = all(
        len(pair & names) != 1
        for insn in kernel.instructions
        for names in (insn.within_inames, insn.reduction_inames())
    )
    is_tagged = any(
        # unrolling changes no value, so that this tag may be lost
        not isinstance(tag, UnrollTag)
        for iname in pair
        for tag in kernel.inames[iname].tags
    )
    if not is_whole or is_tagged or pair & program.in_rules:
        return None
    new = str(kernel.get_var_name_generator()(split.outer.removesuffix("_outer")))
    domains = _domains(kernel, split, new)
    if domains is None:
        return None
    rename = _Joiner(split, new)
    try:
        changed = [
            insn.with_transformed_expressions(rename).copy(
                within_inames=_renamed(insn.within_inames, pair, new)
            )
            for insn in kernel.instructions
        ]
    except _UsedAloneError:
        return None
    kernel = kernel.copy(instructions=changed, domains=domains)
    orders = frozenset(o for o in kernel.loop_priority if not pair & {*o})
    return replace(program, kernel=kernel.copy(loop_priority=orders))


def _renamed(names: frozenset[str], pair: set[str], new: str) -> frozenset[str]:
    return (names - pair) | {new} if pair & names else names


def _domains(
    kernel: lp.LoopKernel, split: Split, new: str
) -> list[isl.BasicSet] | None:
    """The domains with the new loop, whose points are those of the two, each once."""
    homes = sorted(
        {kernel.get_home_domain_index(i) for i in (split.outer, split.inner)}
    )
    others = [d for k, d in enumerate(kernel.domains) if k not in homes]
    pair = {split.outer, split.inner}
    if any(pair & {*d.get_var_names(PARAM)} for d in kernel.domains):
        return None
    whole = kernel.domains[homes[0]]
    for home in homes[1:]:
        whole = isl.BasicSet.intersect(*isl.align_two(whole, kernel.domains[home]))
    joined = _image(whole, split, new)
    return None if joined is None else [*others, joined]


def _image(domain: isl.BasicSet, split: Split, new: str) -> isl.BasicSet | None:
    """The domain of the joint position, if that tells the points apart."""
    params = domain.get_var_names(PARAM)
    prefix = f"[{', '.join(params)}] -> " if params else ""
    names = domain.get_var_names(SET)
    inner = f"0 <= {split.inner} < {split.block}"
    bounded = isl.BasicSet(f"{prefix}{{ [{', '.join(names)}] : {inner} }}")
    if not domain.is_subset(bounded):
        return None
    kept = [name for name in names if name not in split]
    position = f"{split.block}*{split.outer} + {split.inner}"
    image = isl.Map(
        f"{prefix}{{ [{', '.join(names)}] -> [{', '.join([position, *kept])}] }}"
    )
    points = isl.Set.from_basic_set(domain).apply(image)
    points = points.set_dim_name(SET, 0, new)
    for place, name in enumerate(kept, start=1):
        points = points.set_dim_name(SET, place, name)
    # a domain of Loopy is one basic set, with no hole
    hull = points.simple_hull()
    if isl.Set.from_basic_set(hull).is_equal(points):
        return hull.remove_redundancies()
    parts = points.coalesce().get_basic_sets()
    return parts[0] if len(parts) == 1 else None


class _UsedAloneError(Exception):
    """One of two loops is used without the other one."""


class _Joiner(IdentityMapper):  # type: ignore[misc]
    """Writes the new iname for the joint position of two."""

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
        others = []
        for term in terms_of(expr):
            step = affine(term, self.pair)
            if step is None or not step.coefficients:
                others.append(self.rec(term))
                continue
            for name, n in step.coefficients.items():
                steps[name] += n
            if step.constant:
                others.append(step.constant)
        factor = steps[self.split.inner]
        if steps[self.split.outer] != self.split.block * factor:
            raise _UsedAloneError(str(expr))
        if factor:
            position = p.Variable(self.new)
            others.insert(0, position if factor == 1 else p.Product((factor, position)))
        return others[0] if len(others) == 1 else p.Sum(tuple(others))

    def map_reduction(self, expr: Reduction, /) -> Reduction:
        if len(self.pair & {*expr.inames}) == 1:
            expr = self._with_inner_sum(expr)
        inames = tuple(sorted(_renamed(frozenset(expr.inames), self.pair, self.new)))
        return Reduction(
            expr.operation, inames, self.rec(expr.expr), expr.allow_simultaneous
        )

    def _with_inner_sum(self, expr: Reduction) -> Reduction:
        """Two sums, each over one of the loops, as one over both."""
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


class _SumFinder(WalkMapper):  # type: ignore[misc]
    """Collects sums."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[p.Sum, None] = {}

    def map_sum(self, expr: p.Sum, /) -> None:
        self.found[expr] = None
        super().map_sum(expr)
