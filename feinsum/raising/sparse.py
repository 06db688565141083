"""Einsums of a sparse operand: loops over the nodes of a tree, as in CSR and CSF.

The loops over nodes are one path: each runs over the children of a node of the one
above. An index has the name of its loop. A factor with an entry for each leaf has the
values of the tree; others are dense, and are read at indices of nodes and other loops.
Instructions that multiply one tree alike by other dense operands form a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import loopy as lp
from constantdict import constantdict

from feinsum.errors import FeinsumError, NotAnEinsumError
from feinsum.ir import BatchedEinsum, FunctionalBatchedEinsum, generalize
from feinsum.raising.functions import unresolved
from feinsum.raising.hazards import may_join
from feinsum.raising.nest import LoopNest, RaisedNest, in_kernel, value_of
from feinsum.raising.nodes import refused
from feinsum.raising.operands import OperandTable, aligned
from feinsum.raising.privates import Privates
from feinsum.raising.tree_row import TreeRow


def raise_trees(
    table: OperandTable,
    instructions: Iterable[lp.InstructionBase],
    name: str,
    long_extent: int,
) -> tuple[list[RaisedNest], dict[str, NotAnEinsumError]]:
    """The einsums of a sparse operand in a kernel.

    Args:
        table: of the operands of the kernel.
        instructions: those that are looked at.
        name: of the kernel.
        long_extent: see :func:`feinsum.raise_kernel`.

    Returns:
        The einsums; and of each other instruction in loops over nodes why it is none.
    """
    if not table.levels:
        return [], {}
    batches, reasons = _batches(table, instructions)
    nests: list[RaisedNest] = []
    while batches:
        batch = batches.pop(0)
        try:
            nests.append(_raised(batch, name, long_extent))
        except FeinsumError as error:
            if len(batch) > 1:
                batches += [[row] for row in batch]
                continue
            reasons[batch[0].insn.id] = _by_rule(batch[0].insn, error)
    taken = {insn_id for nest in nests for insn_id in nest.instructions}
    return nests, {i: error for i, error in reasons.items() if i not in taken}


def _batches(
    table: OperandTable, instructions: Iterable[lp.InstructionBase]
) -> tuple[list[list[TreeRow]], dict[str, NotAnEinsumError]]:
    """Rows of one kind in the same loops; and why other instructions are none."""
    privates = Privates(table.kernel)
    batches: list[list[TreeRow]] = []
    reasons: dict[str, NotAnEinsumError] = {}
    for insn in instructions:
        if insn.id in privates.writers or not isinstance(insn, lp.Assignment):
            continue
        try:
            row = TreeRow.of(insn, table, privates)
            if row is not None:
                _batch_of(row, batches).append(row)
        except FeinsumError as error:
            reasons[insn.id] = _by_rule(insn, error)
    return batches, reasons


def _batch_of(row: TreeRow, batches: list[list[TreeRow]]) -> list[TreeRow]:
    """The batch that a row may join; a new one if there is none."""
    kind, table = row.kind, row.table
    for batch in batches:
        insns = [other.insn for other in batch]
        serving = _loads([*batch, row])
        if batch[0].kind == kind and may_join(
            row.insn, insns, table.kernel, table.expand, serving
        ):
            return batch
    batches.append([])
    return batches[-1]


def _loads(batch: Sequence[TreeRow]) -> set[str]:
    """The instructions that only serve these rows."""
    return {i for row in batch for i in row.loads}


def _by_rule(insn: lp.InstructionBase, error: FeinsumError) -> NotAnEinsumError:
    """The same reason, by the rule of all loops over nodes."""
    text = str(error).removeprefix(f"instruction {insn.id!r}: ")
    return refused(insn, text)


def _raised(batch: Sequence[TreeRow], name: str, long_extent: int) -> RaisedNest:
    """The einsum whose rows these are.

    Raises:
        NotAnEinsumError: if they are none.
    """
    table, loads = batch[0].table, _loads(batch)
    ids = {row.insn.id for row in batch}
    for row in batch:
        table.check_function(row.scale, row.insn.id)
        row.check_apart(ids | loads, {other.own for other in batch})
    general, literal = generalize(_einsum(batch), long_extent)
    params = [x.name for x in general.size_params]
    sizes = constantdict({n: literal.get(n, table.sizes.get(n, n)) for n in params})
    functions = {op.name: table.functions[op.name] for op in general.operands}
    functional = FunctionalBatchedEinsum(general, constantdict(functions))
    return RaisedNest(_nest(batch, general, name, sizes), functional, literal)


def _einsum(batch: Sequence[TreeRow]) -> BatchedEinsum:
    """The einsum of the rows, with the tree as their first operand."""
    first, tree = batch[0], batch[0].stored()
    terms = [access.term for access in first.terms.accesses]
    return BatchedEinsum(
        first.terms.output,
        (first.nodes.inames, *terms),
        tuple((tree, *aligned(row.terms.accesses, terms)) for row in batch),
    )


def _nest(
    batch: Sequence[TreeRow],
    einsum: BatchedEinsum,
    name: str,
    sizes: constantdict[str, str | int],
) -> LoopNest:
    """The einsum in the kernel of this name."""
    table, nodes = batch[0].table, batch[0].nodes
    root = batch[0].boxes.get(nodes.inames[0])
    root_end = 0 if root is None else value_of(in_kernel(root))
    return LoopNest(
        einsum,
        constantdict({i: nodes.point(i) for i in einsum.indices}),
        constantdict({op.name: op.name for op in einsum.operands}),
        tuple(row.insn.id for row in batch),
        tuple(nodes.in_kernel(row.assignee) for row in batch),
        tuple(unresolved(table.expand(row.scale)) for row in batch),
        tuple(unresolved(nodes.in_kernel(row.shift)) for row in batch),
        name,
        sizes,
        nodes.tree(root_end, _loads(batch)),
    )
