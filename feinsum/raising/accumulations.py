"""Rewrites of loops that add to an entry into sums, including their initial values.

::

    for i:  out[i] = 0                       {id=clear}
    for i, j:  out[i] = out[i] + A[i,j]*x[j] {id=add}

``with_sums`` turns ``add`` into a sum, since all iterations over ``j`` add to one
entry::

    for i:  out[i] = out[i] + sum(j, A[i,j]*x[j])

``with_shifts`` replaces ``out[i]`` by the value that ``clear`` assigns, since nothing
happens in between. An instruction that then adds several sums is split into several
instructions (``with_single_sums``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

import islpy as isl
import loopy as lp
from loopy.library.reduction import SumReductionOperation
from loopy.symbolic import Reduction, get_dependencies
from pymbolic import primitives as p

from feinsum.dtypes import is_inexact
from feinsum.errors import NotAnEinsumError
from feinsum.raising.affine import find_box_extents
from feinsum.raising.dependences import have_own_entries
from feinsum.raising.expressions import (
    Expression,
    find_added_term,
    get_subscripts,
    has_reduction,
    is_zero,
    list_terms,
    make_product,
    rename,
)
from feinsum.raising.rewriting import RewrittenKernel, is_plain


def with_sums(program: RewrittenKernel) -> RewrittenKernel:
    """Turn accumulations over loops that nothing else needs into sums.

    Rewrite::

        for i, j:  out[i] = out[i] + A[i,j]*x[j]

        for i:  out[i] = out[i] + sum(j, A[i,j]*x[j])
    """
    for insn_id in program.kernel.id_to_insn:
        insn = program.kernel.id_to_insn[insn_id]
        if (accumulation := _find_accumulation(insn, program)) is None:
            continue
        loops, added = accumulation
        # sorted, so that every process builds the same kernel
        total = Reduction("sum", tuple(sorted(loops)), added)
        changed = insn.copy(
            expression=p.Sum((insn.assignee, total)),
            within_inames=insn.within_inames - loops,
        )
        program = program.with_instructions({insn.id: changed})
        program = program.with_own_sums(insn.id)
    return program


def _find_accumulation(
    insn: lp.InstructionBase, program: RewrittenKernel
) -> tuple[frozenset[str], Expression] | None:
    """Return the loops over which an instruction accumulates, and the added term."""
    added = find_added(insn, program)
    if added is None:
        return None
    kernel = program.kernel
    (name,) = insn.assignee_var_names()
    other_users = program.touching[name] - {insn.id}
    shared = frozenset[str]().union(
        *(
            kernel.id_to_insn[other].within_inames
            for other in other_users
            if not program.never_meet(insn.id, other, name)
        )
    )
    # instructions that share these loops may depend on partial sums
    loops = insn.within_inames - get_dependencies(insn.assignee) - shared
    is_free = (
        loops
        and not _are_in_bounds(kernel, loops, insn.within_inames - loops)
        and not any(kernel.inames[iname].tags for iname in loops)
    )
    if not is_free or not _has_constant_reads(insn, loops, program):
        return None
    return loops, added


def find_added(insn: lp.InstructionBase, program: RewrittenKernel) -> Expression | None:
    """Return the term that an instruction adds to its assignee, if it adds one."""
    if not is_plain(insn) or insn.id not in program.exact:
        return None
    added = find_added_term(insn.assignee, insn.expression)
    if added is None:
        return None
    (name,) = insn.assignee_var_names()
    # integers, such as counters, stay loops; a term that reads the entry is not added
    is_sum = program.is_inexact(added) and name not in program.names(added)
    return added if is_sum else None


def _are_in_bounds(
    kernel: lp.LoopKernel, loops: frozenset[str], other_loops: frozenset[str]
) -> bool:
    """Return whether the bounds of other loops depend on these loops."""
    domain = kernel.get_inames_domain(other_loops) if other_loops else None
    names = domain.get_var_names(isl.dim_type.param) if domain is not None else ()
    return bool(loops & set(names))


def _has_constant_reads(
    insn: lp.Assignment, loops: frozenset[str], program: RewrittenKernel
) -> bool:
    """Return whether the values that an instruction reads do not change in ``loops``.

    An iteration may read entries that it writes, if no other iteration writes them.
    """
    kernel = program.kernel
    read = program.reads[insn.id] - set(insn.assignee_var_names())
    for writer in sorted(program.find_writers_in_storage(read) - {insn.id}):
        other = kernel.id_to_insn[writer]
        common = loops & other.within_inames
        if not common:
            continue
        if writer not in program.before[insn.id] or not is_plain(other):
            return False
        (name,) = other.assignee_var_names()
        accesses = [*program.accesses(insn.id, name), *program.accesses(writer, name)]
        # a second writer could change the entry between two iterations
        is_alone = program.writers[name] == (writer,)
        if not is_alone or not have_own_entries(accesses, common):
            return False
    return True


def with_shifts(program: RewrittenKernel) -> RewrittenKernel:
    """Start sums from the value that another instruction assigned.

    Rewrite::

        for i:  out[i] = 0
        for j:  out[j] = out[j] + sum(k, A[j,k])

        for j:  out[j] = sum(k, A[j,k])
    """
    for insn_id in program.kernel.id_to_insn:
        insn = program.kernel.id_to_insn.get(insn_id)
        if insn is None or (added := find_added(insn, program)) is None:
            continue
        if (first := _find_beginning(insn, program)) is None:
            continue
        if (names := _find_renaming(first, insn, program)) is None:
            continue
        begin = rename(first.expression, names)
        changed = insn.copy(
            expression=added if is_zero(begin) else p.Sum((begin, added)),
            depends_on=(insn.depends_on | first.depends_on) - {first.id},
        )
        program = program.with_instructions({first.id: None, insn.id: changed})
    return program


def _find_beginning(
    insn: lp.Assignment, program: RewrittenKernel
) -> lp.Assignment | None:
    """Find the instruction that initializes the array to which ``insn`` adds.

    Return None if another instruction reads or writes it before ``insn`` does.
    """
    kernel = program.kernel
    (name,) = insn.assignee_var_names()
    # accesses inside rules are not rewritten
    if name in program.in_rules:
        return None
    other_users = program.touching[name] - {insn.id}
    firsts = [o for o in other_users if o in program.before[insn.id]]
    if len(firsts) != 1 or any(
        insn.id not in program.before[other] for other in other_users - {*firsts}
    ):
        return None
    first = kernel.id_to_insn[firsts[0]]
    is_first = (
        is_plain(first)
        and first.id in program.exact
        and name not in program.reads[first.id]
        and not program.names(first.expression) & program.writers.keys()
    )
    return first if is_first else None


def _find_renaming(
    first: lp.Assignment, insn: lp.Assignment, program: RewrittenKernel
) -> dict[str, str] | None:
    """Map the inames of ``first`` to those of ``insn``.

    Return None unless both run over the same entries in the same iterations.
    """
    mine, theirs = get_subscripts(insn.assignee), get_subscripts(first.assignee)
    if len(mine) != len(theirs):
        return None
    names: dict[str, str] = {}
    for a, b in zip(theirs, mine, strict=True):
        if isinstance(a, p.Variable) and isinstance(b, p.Variable):
            names[a.name] = b.name
        elif a != b:
            return None
    inames = program.kernel.all_inames()
    if not {*names, *names.values()} <= inames or len({*names.values()}) < len(names):
        return None
    # both have to be inside the same outer loops
    around = first.within_inames - names.keys()
    if around != insn.within_inames - {*names.values()}:
        return None
    try:
        first_extents, insn_extents = (
            find_box_extents(program.kernel, row.within_inames, row.id)
            for row in (first, insn)
        )
    except NotAnEinsumError:
        return None
    is_equal = all(first_extents[a] == insn_extents[b] for a, b in names.items())
    return names if is_equal else None


MOST_TERMS = 32
"""Maximum terms of an expanded value; the number grows exponentially with factors."""


def with_single_sums(
    program: RewrittenKernel, refused: Callable[[lp.LoopKernel], frozenset[str]]
) -> RewrittenKernel:
    """Split instructions that add several sums into instructions that add one each.

    A product is multiplied out only if it would be refused otherwise: if a factor is a
    sum of terms, and no single array has all of its indices.

    Rewrite::

        out[i] = y[i] + sum(j, A[i,j]*x[j]) + 2*sum(k, B[i,k]*z[k])

        out[i] = y[i] + sum(j, A[i,j]*x[j])
        out[i] = out[i] + 2*sum(k, B[i,k]*z[k])

    Args:
        program: the kernel to rewrite.
        refused: returns the ids of a kernel's instructions that are not yet einsums.
    """
    # First split sums only. Then multiply out instructions that are still refused,
    # since that adds terms.
    looked_at, refused_ids = program.kernel, refused(program.kernel)
    for is_fine in (False, True):
        if program.kernel is not looked_at:
            looked_at, refused_ids = program.kernel, refused(program.kernel)
        for insn_id in sorted(refused_ids):
            insn = program.kernel.id_to_insn[insn_id]
            # it has to compute in a single floating point dtype
            if not is_plain(insn) or insn.id not in program.summable:
                continue
            dtype = program.dtypes.get(insn.assignee_var_names()[0])
            if dtype is not None and is_inexact(dtype):
                program = _split(insn, program, is_fine=is_fine)
    return program


def _split(
    insn: lp.Assignment, program: RewrittenKernel, *, is_fine: bool
) -> RewrittenKernel:
    (name,) = insn.assignee_var_names()
    terms = list(
        islice(_expand_terms(insn.expression, is_fine=is_fine), MOST_TERMS + 1)
    )
    reads_own = [
        term for term in terms if name in program.names(term) and term != insn.assignee
    ]
    has_sums = any(map(has_reduction, terms))
    # terms without a sum stay in the first instruction
    summands = [
        t for t in terms if (has_reduction(t) if has_sums else t != insn.assignee)
    ]
    is_inexact = all(map(program.is_inexact, summands))
    if len(summands) < 2 or len(terms) > MOST_TERMS or reads_own or not is_inexact:
        return program
    first = [term for term in terms if term not in summands]
    fresh = program.kernel.get_instruction_id_generator()
    ids = [str(fresh(f"{insn.id}_part")) for _ in summands[1:]]
    steps = [
        insn.copy(
            id=step_id,
            expression=p.Sum((*before, summand)),
            depends_on=insn.depends_on | {*waits},
            depends_on_is_final=True,
        )
        for step_id, summand, before, waits in zip(
            [*ids, insn.id],
            summands,
            [first, *([insn.assignee] for _ in ids)],
            [(), *((i,) for i in ids)],
            strict=True,
        )
    ]
    # the last step keeps the id, since other instructions depend on the whole sum
    kernel = program.kernel
    instructions = [
        step
        for given_insn in kernel.instructions
        for step in (steps if given_insn.id == insn.id else [given_insn])
    ]
    # all steps compute in the dtype of the instruction, which was checked
    program = replace(
        program,
        kernel=kernel.copy(instructions=instructions),
        summable=program.summable | {*ids},
    )
    for insn_id in ids:
        program = program.with_own_sums(insn_id)
    return program


def _expand_terms(expression: Expression, *, is_fine: bool) -> Iterator[Expression]:
    """Yield the terms of an expression, with its products of sums multiplied out.

    Args:
        expression: the expression to expand.
        is_fine: whether to multiply out products without a reduction, too.

    >>> from pymbolic import parse
    >>> product = parse("(a + b)*(c - d)")
    >>> [str(term) for term in _expand_terms(product, is_fine=True)]
    ['a*c', 'a*(-1)*d', 'b*c', 'b*(-1)*d']
    >>> [str(term) for term in _expand_terms(product, is_fine=False)]
    ['(a + b)*(c + (-1)*d)']
    """
    match expression:
        case p.Sum():
            for term in list_terms(expression):
                yield from _expand_terms(term, is_fine=is_fine)
        case p.Product() if is_fine or has_reduction(expression):
            yield from map(
                make_product, _expand_product(expression.children, is_fine=is_fine)
            )
        case p.Quotient() if has_reduction(expression.numerator):
            # (a + b)/d becomes a*(1/d) + b*(1/d), so that factors stay separate
            divisor = p.Quotient(1, expression.denominator)
            for term in _expand_terms(expression.numerator, is_fine=is_fine):
                yield make_product((*_list_factors(term), divisor))
        case Reduction() if _is_sum(expression):
            for term in _expand_terms(expression.expr, is_fine=is_fine):
                yield Reduction("sum", expression.inames, term)
        case _:
            yield expression


def _expand_product(
    factors: tuple[Expression, ...], *, is_fine: bool
) -> Iterator[tuple[Expression, ...]]:
    """Yield the terms of a product, each as its factors."""
    if not factors:
        yield ()
        return
    first, *later = factors
    is_apart = is_fine or has_reduction(first)
    for term in _expand_terms(first, is_fine=is_fine) if is_apart else (first,):
        for later_terms in _expand_product(tuple(later), is_fine=is_fine):
            yield (*_list_factors(term), *later_terms)


def _list_factors(term: Expression) -> tuple[Expression, ...]:
    return term.children if isinstance(term, p.Product) else (term,)


def _is_sum(expression: Reduction) -> bool:
    return isinstance(expression.operation, SumReductionOperation) and not isinstance(
        expression.expr, tuple
    )
