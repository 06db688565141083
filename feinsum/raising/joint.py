"""Inames that stand together in a subscript, as those of a loop that was split."""

from __future__ import annotations

from collections.abc import Iterator

import loopy as lp
from loopy.symbolic import WalkMapper, get_dependencies
from pymbolic import primitives as p

from feinsum.raising.affine import affine
from feinsum.raising.memory import subscripts_of
from feinsum.raising.nest import Expression, RaisedKernel, RaisedNest

__all__ = ["joint_inames"]


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
