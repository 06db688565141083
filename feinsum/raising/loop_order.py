"""The order of loops around instructions that no recipe replaces.

Where two instructions share a loop, Loopy opens it once, around all loops that only
one of them has. A raised nest gets loops of its own; without this order, Loopy could
exchange the loops that are left, in which one iteration may read what another wrote.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import product

import loopy as lp

__all__ = ["with_order_of"]


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
