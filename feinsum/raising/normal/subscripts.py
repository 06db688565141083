"""Subscripts in plain words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from loopy.symbolic import IdentityMapper
from pymbolic import primitives as p

from feinsum.raising.affine import affine
from feinsum.raising.nest import Expression
from feinsum.raising.normal.program import Program

__all__ = ["with_plain_subscripts"]


def with_plain_subscripts(program: Program) -> Program:
    """Subscripts without what changes nothing.

    Rewrite::

        A[0 + j*1, 3 + 0*k] = t[()]

        A[j, 3] = t
    """
    kernel = program.kernel
    plain = _Plainer(kernel.all_inames())
    changed = [insn.with_transformed_expressions(plain) for insn in kernel.instructions]
    return replace(program, kernel=kernel.copy(instructions=changed))


class _Plainer(IdentityMapper):  # type: ignore[misc]
    """Writes subscripts anew that are sums of multiples of inames."""

    def __init__(self, inames: Collection[str]) -> None:
        super().__init__()
        self.inames = inames

    def map_subscript(self, expr: p.Subscript, /) -> Expression:
        indices = tuple(map(self._plain, expr.index_tuple))
        array = self.rec(expr.aggregate)
        return p.Subscript(array, indices) if indices else array

    def _plain(self, index: Expression) -> Expression:
        known = affine(index, self.inames)
        return self.rec(index) if known is None else known.expression()
