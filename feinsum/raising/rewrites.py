"""What a refusal says beside its reason: the line of the kernel, and how to write it.

For ``dat[map[e,i]] = dat[map[e,i]] + sum(j, A[i,j]*x[e,j])``, refused by the rule
``assignee``, the rewrite is ``t[e,i] = sum(j, A[i,j]*x[e,j])``, and an instruction that
adds ``t[e,i]`` to ``dat[map[e,i]]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import loopy as lp

from feinsum.raising.nest import RefusedNest

__all__ = ["REWRITES", "with_rewrite"]

MAX_LINE = 160
"""Characters of a line in a message."""

REWRITES: Mapping[str, str] = {
    "assignee": (
        "assign to an array that is subscripted by the loops, t[e,i], and move its "
        "entries in an instruction of its own"
    ),
    "atomic": "assign to an array of its own, and add that in another instruction",
    "broadcast": "assign the diagonal to an array in an instruction of its own",
    "compressed": (
        "write the sum over the nodes as in the examples of trees in the documentation "
        "of raising"
    ),
    "captured-iname": "give the argument of the rule another name",
    "domain": (
        "give each nest a set of its own, with bounds such as 0 <= i < n, and state "
        "what holds of all sizes by assumptions=; over a triangle, sum the whole box "
        "with zeros outside"
    ),
    "extent": (
        "let the loop run over 0 <= i < n, where n is an integer argument; with steps "
        "of 2, over half the range, with 2*i in subscripts"
    ),
    "instruction-kind": "write what is an einsum as an assignment of its own",
    "loopy": "try the instruction alone with loopy.generate_code_v2",
    "nested-reduction": "assign the inner sum to an array in an instruction of its own",
    "operand-function": (
        "assign the factor to an array of the result's dtype in an instruction of its "
        "own, and multiply by that"
    ),
    "operand-written": (
        "give both instructions loops of their own, by loopy.duplicate_inames, and an "
        "order, by dep="
    ),
    "output-read": (
        "give both instructions loops of their own, by loopy.duplicate_inames, and an "
        "order, by dep="
    ),
    "output-dtype": "give all arrays one dtype, or convert one in an instruction ahead",
    "predicate": (
        "assign to an array of its own without the predicate, and copy it with the "
        "predicate in another instruction"
    ),
    "product-of-sums": "assign one sum to an array in an instruction of its own",
    "race": (
        "let every loop around it stand in the subscripts of what it assigns, as in "
        "t[e,i] for t[i]"
    ),
    "reduction": "only sums are einsums; keep this one in an instruction of its own",
    "repeated-sum": "give the inner sum an iname of its own",
    "sum-of-products": "assign each product in its own instruction, and add these",
    "unbound-index": "sum over the iname, or subscript the result with it",
    "unbound-sum": "multiply by the extent of the iname instead",
}
"""By rule; the reasons of other rules have it, or there is nothing to be gained."""


def with_rewrite(refused: RefusedNest, given: lp.LoopKernel) -> RefusedNest:
    """The refusal with the line of the given kernel, and what to write instead."""
    known = (given.id_to_insn.get(insn_id) for insn_id in refused.instructions)
    lines = "; ".join(_line(insn) for insn in known if insn is not None)
    rewrite = REWRITES.get(refused.rule)
    reason = f"{refused.reason}. The line: {lines}" if lines else refused.reason
    return replace(
        refused, reason=f"{reason}. Instead, {rewrite}" if rewrite else reason
    )


def _line(insn: lp.InstructionBase) -> str:
    is_assignment = isinstance(insn, lp.Assignment)
    text = f"{insn.assignee} = {insn.expression}" if is_assignment else str(insn)
    text = " ".join(text.split())
    return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]} ..."
