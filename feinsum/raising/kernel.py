"""Raising: a Loopy kernel to the functional batched einsums that it contains.

:mod:`feinsum.raising` lists the steps: prepare loops and sizes, read each instruction
as a row, rewrite the kernel if some are refused, and join rows of several instructions
to batches.

Besides its reason, a refusal quotes the line of the kernel and suggests a rewrite. For
``dat[map[e,i]] = dat[map[e,i]] + sum(j, A[i,j]*x[e,j])``, which the rule ``assignee``
refuses, it suggests ``t[e,i] = sum(j, A[i,j]*x[e,j])``, and a separate instruction that
adds ``t[e,i]`` to ``dat[map[e,i]]``.

Source: paper, section 7 (algorithm 4, ``IdentifyAsEinsum``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import loopy as lp
from constantdict import constantdict
from loopy.match import parse_match
from pymbolic import primitives as p
from pytools.lex import ParseError

from feinsum.canonical import canonicalize
from feinsum.errors import NotAKernelError, NotAnEinsumError
from feinsum.ir import (
    LONG_EXTENT,
    BatchedEinsum,
    order_by_precision,
)
from feinsum.raising.dependences import group_in_batches, may_join
from feinsum.raising.expressions import collect_loops, make_product
from feinsum.raising.functions import without_tags
from feinsum.raising.loops import (
    count_joint_inames,
    with_independent_sets,
    with_loops_from_zero,
    with_order_of,
)
from feinsum.raising.nest import (
    LoopNest,
    RaisedKernel,
    RaisedNest,
    RefusedNest,
    points_of,
)
from feinsum.raising.normal_form import normalize_kernel
from feinsum.raising.operands import OperandTable, RuleUse, align
from feinsum.raising.rewriting import is_no_op, without_no_ops
from feinsum.raising.row import RaisedRow, raise_row
from feinsum.raising.sizes import fold_constant_bounds, specialize, with_profiles
from feinsum.raising.sparse import raise_trees
from feinsum.words import format_count

logger = logging.getLogger(__name__)


def raise_kernel(
    t_unit: lp.TranslationUnit,
    *,
    arguments: Mapping[str, Any] | None = None,
    instructions: str | None = None,
    kernel_name: str | None = None,
    long_extent: int = LONG_EXTENT,
) -> RaisedKernel:
    """Find the functional batched einsums in a kernel.

    Args:
        t_unit: the unit with the kernel.
        arguments: arrays of the call, or ``{name: (shape, dtype)}``; they determine
            dtypes and sizes that the kernel leaves open.
        instructions: a Loopy match expression; by default all instructions.
        kernel_name: which kernel of the unit, if it has several.
        long_extent: free indices of at least this literal extent get a size parameter,
            so that all long extents share their recipes.

    Returns:
        The kernel with every operand of a raised nest behind a substitution rule, the
        raised nests and the refused ones.

    Raises:
        NotAKernelError: if ``t_unit`` is not a translation unit.
        NotAnEinsumError: only if the unit does not have a single kernel (rule
            ``kernel``), or if ``arguments`` do not fit it (rule ``arguments``).
    """
    name = _find_kernel_name(t_unit, kernel_name)
    given_kernel = t_unit[name]
    # domains first: later steps query isl, and its time grows with the loops of a set
    t_unit = t_unit.with_kernel(with_independent_sets(given_kernel))
    t_unit = fold_constant_bounds(t_unit, name)
    t_unit = specialize(t_unit, arguments or {}, name, long_extent)
    # raising takes the end of a loop for its extent, so loops have to begin at 0
    t_unit = t_unit.with_kernel(with_loops_from_zero(t_unit[name]))
    if instructions is None:  # else `instructions` may select one of them
        t_unit = t_unit.with_kernel(without_no_ops(t_unit[name]))
    typed = _infer_types(t_unit, name)
    raised = _raise_instructions(t_unit, typed, name, instructions, long_extent)
    raised = with_profiles(raised, arguments or {})
    # Rewriting takes longer than raising, and most kernels do not need it: try it only
    # if something was refused, or if two inames may be one index.
    if raised.refused or count_joint_inames(raised):
        other = _normalize_unit(t_unit, typed, name)
        raised = _choose_better(raised, other, instructions, long_extent)
    refusals = tuple(with_rewrite(refused, given_kernel) for refused in raised.refused)
    raised_ids = {insn_id for nest in raised.raised for insn_id in nest.instructions}
    kernel = with_order_of(t_unit[name], raised.t_unit[name], raised_ids)
    return replace(raised, refused=refusals, t_unit=raised.t_unit.with_kernel(kernel))


def _raise_instructions(
    t_unit: lp.TranslationUnit,
    typed: lp.TranslationUnit,
    name: str,
    instructions: str | None,
    long_extent: int,
) -> RaisedKernel:
    table = OperandTable(typed, typed[name])
    chosen = _select_instructions(table.kernel, instructions)
    # trees first: their instructions are no rows by themselves
    nests, reasons = raise_trees(table, chosen, long_extent)
    raised_ids = {insn_id for nest in nests for insn_id in nest.instructions}
    insns_left = [insn for insn in chosen if insn.id not in raised_ids]
    rows, refused = _raise_rows(table, insns_left, reasons)
    for batch in _group_batches(rows, table):
        try:
            nests.append(_raise_batch(batch, table, long_extent))
        except NotAnEinsumError as error:
            refused.append(RefusedNest(error.instructions, error.rule, str(error)))
    kernel = _with_rules(t_unit[name], table, nests)
    raised_unit = t_unit.with_kernel(kernel)
    return RaisedKernel(raised_unit, name, tuple(nests), tuple(refused))


def _infer_types(t_unit: lp.TranslationUnit, name: str) -> lp.TranslationUnit:
    """Infer the types of a kernel, and remove its tags.

    Raises:
        NotAnEinsumError: with the rule ``kernel``, if types cannot be inferred.
    """
    # operands are compared as expressions, which differ if their variables have tags
    plain = t_unit.with_kernel(without_tags(t_unit[name]))
    try:
        return lp.infer_unknown_types(plain, expect_completion=False)
    except Exception as error:  # Loopy raises errors of many kinds
        logger.debug("kernel %r", name, exc_info=True)
        kind = type(error).__name__
        raise NotAnEinsumError(
            f"kernel {name!r}: Loopy cannot infer its types: {kind}: {error}",
            rule="kernel",
        ) from None


def _normalize_unit(
    t_unit: lp.TranslationUnit, typed: lp.TranslationUnit, name: str
) -> lp.TranslationUnit:
    """Rewrite the kernel for raising; return it unchanged if that fails."""

    def list_refused(unit: lp.TranslationUnit) -> frozenset[str]:
        typed = _infer_types(unit, name)
        table = OperandTable(typed, typed[name])
        _, nests = _raise_rows(table, _select_instructions(table.kernel, None))
        return frozenset(i for nest in nests for i in nest.instructions)

    try:
        return normalize_kernel(t_unit, typed, name, list_refused)
    except Exception:  # Loopy raises errors of many kinds
        logger.debug("kernel %r is not rewritten", name, exc_info=True)
        return t_unit


def _choose_better(
    raised: RaisedKernel,
    other: lp.TranslationUnit,
    instructions: str | None,
    long_extent: int,
) -> RaisedKernel:
    """Raise the rewritten kernel; return it if less of its work is refused."""
    if other[raised.kernel_name] is raised.t_unit[raised.kernel_name]:
        return raised
    try:
        typed = _infer_types(other, raised.kernel_name)
        again = _raise_instructions(
            other, typed, raised.kernel_name, instructions, long_extent
        )
    except NotAnEinsumError:
        return raised
    # the same einsums under other inames gain nothing
    workloads = {(nest.instructions, nest.key) for nest in raised.raised}
    is_more = any((n.instructions, n.key) not in workloads for n in again.raised)
    return again if is_more and _rank_raised(again) < _rank_raised(raised) else raised


def _rank_raised(raised: RaisedKernel) -> tuple[int, int, int]:
    """Rank a raised kernel; lower is better.

    Fewer refused loops come first, then fewer inames that share a subscript, then more
    nests.
    """
    kernel = raised.t_unit[raised.kernel_name]
    insns = [kernel.id_to_insn[i] for nest in raised.refused for i in nest.instructions]
    n_refused_loops = sum(len(collect_loops(insn)) for insn in insns)
    return n_refused_loops, count_joint_inames(raised), -len(raised.raised)


def check_unit(value: object) -> None:
    """Require a Loopy kernel.

    Raises:
        NotAKernelError: for anything else; the message says what to give instead.
    """
    if isinstance(value, lp.TranslationUnit):
        return
    hint = "loopy.make_kernel returns one"
    if isinstance(value, lp.LoopKernel):
        hint = f"give the unit that the kernel {value.name!r} is from: {hint}"
    elif isinstance(value, str):
        hint = f"{hint}; feinsum.einsum evaluates arrays by subscripts"
    raise NotAKernelError(
        f"expected a loopy.TranslationUnit, got {type(value).__name__}: {hint}",
        rule="kernel",
    )


def _find_kernel_name(t_unit: lp.TranslationUnit, name: str | None) -> str:
    check_unit(t_unit)
    # sorted for the message
    entrypoints = sorted(t_unit.entrypoints)
    if name is None and len(entrypoints) == 1:
        return str(entrypoints[0])
    if name in entrypoints:
        return str(name)
    raise NotAnEinsumError(
        f"kernel_name={name!r}, but the translation unit has the entry points "
        f"{entrypoints}; name one of them",
        rule="kernel",
    )


def _raise_rows(
    table: OperandTable,
    instructions: Iterable[lp.InstructionBase],
    reasons: Mapping[str, NotAnEinsumError] | None = None,
) -> tuple[list[RaisedRow], list[RefusedNest]]:
    """Raise the instructions that are rows; refuse the others, with reasons.

    Args:
        table: the operands of the kernel.
        instructions: the instructions to raise.
        reasons: refusals that are already known, by instruction id.
    """
    rows, refused = [], []
    for insn in instructions:
        # programs mark positions in a kernel with instructions that do nothing
        if is_no_op(insn):
            continue
        try:
            if reasons and insn.id in reasons:
                raise reasons[insn.id]
            rows.append(raise_row(insn, table))
        except NotAnEinsumError as error:
            refused.append(RefusedNest((insn.id,), error.rule, str(error)))
        except Exception as error:  # Loopy raises errors of many kinds
            logger.debug("instruction %r", insn.id, exc_info=True)
            kind = type(error).__name__
            reason = (
                f"instruction {insn.id!r}: Loopy cannot analyse it: {kind}: {error}"
            )
            refused.append(RefusedNest((insn.id,), "loopy", reason))
    return rows, refused


def _select_instructions(
    kernel: lp.LoopKernel, instructions: str | None
) -> list[lp.InstructionBase]:
    """Return the instructions that a match expression selects; None selects all."""
    if instructions is None:
        return list(kernel.instructions)
    try:
        is_wanted = parse_match(instructions)
        chosen = [insn for insn in kernel.instructions if is_wanted(kernel, insn)]
    except (lp.LoopyError, ParseError, TypeError, AttributeError) as error:
        raise NotAnEinsumError(
            f"instructions={instructions!r} is not a Loopy match expression such as "
            f"'id:insn' ({type(error).__name__})",
            rule="arguments",
        ) from None
    if not chosen:
        ids = [insn.id for insn in kernel.instructions]
        raise NotAnEinsumError(
            f"instructions={instructions!r} matches none of the instructions {ids}",
            rule="arguments",
        )
    return chosen


def _group_batches(
    rows: Iterable[RaisedRow], table: OperandTable
) -> list[list[RaisedRow]]:
    """Group rows of one notation in the same loops into batches.

    No other instruction may have to run between two rows of a batch.
    """
    insns = table.kernel.id_to_insn

    def can_join(row: RaisedRow, batch: list[RaisedRow]) -> bool:
        joined = [insns[other.instruction] for other in batch]
        return may_join(insns[row.instruction], joined, table.kernel, table.expand)

    return group_in_batches(rows, lambda row: row.pattern, can_join)


def _raise_batch(
    batch: list[RaisedRow], table: OperandTable, long_extent: int
) -> RaisedNest:
    inputs = tuple(access.term for access in batch[0].accesses)
    operands = tuple(align(row.accesses, inputs) for row in batch)
    einsum = BatchedEinsum(batch[0].output, inputs, operands)
    points = points_of({index: index for index in einsum.indices})
    rows = [(row.instruction, row.assignee, row.scale, row.shift) for row in batch]
    return table.raise_einsum(einsum, rows, points, long_extent)


def _with_rules(
    kernel: lp.LoopKernel, table: OperandTable, nests: list[RaisedNest]
) -> lp.LoopKernel:
    """Make the raised instructions of a kernel call the operands' rules."""
    new_values = {
        insn_id: _build_value(nest, k)
        for nest in nests
        # instructions over a tree stay unchanged, since a recipe replaces all of them
        if nest.nest.tree is None
        for k, insn_id in enumerate(nest.instructions)
    }
    used = {op.name for nest in nests for op in nest.einsum.operands}
    rules = {name: r for name, r in table.new_rules.items() if name in used}
    raised = kernel.copy(
        substitutions=constantdict({**kernel.substitutions, **rules}),
        instructions=[
            insn.copy(expression=new_values[insn.id]) if insn.id in new_values else insn
            for insn in kernel.instructions
        ],
    )
    # a sum over a loop with a single iteration has become the value itself
    loops, used_loops = (collect_loops(*k.instructions) for k in (kernel, raised))
    unused = loops - used_loops
    return lp.remove_unused_inames(raised, unused) if unused else raised


def _build_value(nest: RaisedNest, k: int) -> Any:
    einsum = nest.einsum
    row = einsum.rows[k]
    factors = tuple(
        RuleUse(row[position], einsum.inputs[position]).call()
        # C multiplies from left to right: narrow operands first would round
        for position in order_by_precision(op.dtype for op in row)
    )
    value = make_product(factors)
    if einsum.summation_indices:
        value = lp.Reduction("sum", einsum.summation_indices, value)
    scale, shift = nest.scale[k], nest.shift[k]
    if not (isinstance(scale, int) and scale == 1):
        value = p.Product((scale, value))
    return value if isinstance(shift, int) and shift == 0 else p.Sum((shift, value))


MAX_LINE = 160
"""Maximum characters of a line of the kernel in a message."""

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
        "let every loop around it occur in the subscripts of its assignee, as in "
        "t[e,i] for t[i]"
    ),
    "reduction": (
        "keep this reduction, which no einsum has, in an instruction of its own, and "
        "write the sums of products in others"
    ),
    "repeated-sum": "give the inner sum an iname of its own",
    "sum-of-products": "assign each product in its own instruction, and add these",
    "unbound-index": "sum over the iname, or subscript the result with it",
    "unbound-sum": "multiply by the extent of the iname instead",
}
"""Suggested rewrites by rule. The reasons of other rules already contain one, or a
rewrite would gain nothing."""


def with_rewrite(refused: RefusedNest, given_kernel: lp.LoopKernel) -> RefusedNest:
    """Add the line of the given kernel and a suggested rewrite to a refusal."""
    instructions = (
        given_kernel.id_to_insn.get(insn_id) for insn_id in refused.instructions
    )
    lines = "; ".join(_format_line(insn) for insn in instructions if insn is not None)
    rewrite = REWRITES.get(refused.rule)
    reason = f"{refused.reason}. The line: {lines}" if lines else refused.reason
    return replace(
        refused, reason=f"{reason}. Instead, {rewrite}" if rewrite else reason
    )


def _format_line(insn: lp.InstructionBase) -> str:
    is_assignment = isinstance(insn, lp.Assignment)
    text = f"{insn.assignee} = {insn.expression}" if is_assignment else str(insn)
    text = " ".join(text.split())
    return text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]} ..."


def identify_as_einsum(
    t_unit: lp.TranslationUnit,
    reference: BatchedEinsum,
    *,
    instructions: str | None = None,
    kernel_name: str | None = None,
    long_extent: int = LONG_EXTENT,
) -> tuple[lp.TranslationUnit, LoopNest]:
    """Match a kernel with the einsum ``reference``.

    Returns:
        The kernel with its operands behind substitution rules; and the nest in the
        names of ``reference``, with the iname of each index, the rule of each operand
        and the instruction of each row.

    Raises:
        NotAnEinsumError: if the kernel is not an einsum, or is another one (rule
            ``other-einsum``).

    Source: paper, section 7, algorithm 4.

    >>> from feinsum.codegen import generate_loopy
    >>> from feinsum.ir import array, einsum
    >>> ours = einsum("ij,j->i", array("A", (3, 4)), array("x", 4))
    >>> theirs = generate_loopy(einsum("q,pq->p", array("v", 4), array("M", (3, 4))))
    >>> _, nest = identify_as_einsum(theirs, ours)
    >>> nest.inames["i"], nest.rules["A"]
    ('p', 'M_rule')
    """
    raised = raise_kernel(
        t_unit,
        instructions=instructions,
        kernel_name=kernel_name,
        long_extent=long_extent,
    )
    nest_found = single_nest(raised)
    # isomorphic einsums are equal in canonical names
    form = canonicalize(reference)
    if form.einsum != nest_found.form.einsum:
        raise NotAnEinsumError(
            f"the kernel is the einsum {nest_found.form.text!r}, not {form.text!r}",
            rule="other-einsum",
            instructions=nest_found.instructions,
        )
    return raised.t_unit, nest_found.canonical_nest.relabel(form.relabeling.inverse())


def single_nest(raised: RaisedKernel) -> RaisedNest:
    """Return the only nest of a kernel.

    Raises:
        NotAnEinsumError: if an instruction was refused (with the rule of the refusal),
            or if there are several nests (rule ``several-nests``).
    """
    if refusal := raised.first_refusal:
        raise refusal
    if len(raised.raised) != 1:
        ids_by_nest = [" ".join(nest.instructions) for nest in raised.raised]
        raise NotAnEinsumError(
            f"kernel {raised.kernel_name!r} has "
            f"{format_count(len(ids_by_nest), 'einsum')} "
            f"({ids_by_nest}), "
            "expected one; instructions= chooses among them",
            rule="several-nests",
            instructions=tuple(i for nest in raised.raised for i in nest.instructions),
        )
    return raised.raised[0]
