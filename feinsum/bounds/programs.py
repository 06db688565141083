"""Lower bounds of programs: statements that share arrays, and keep intermediates.

``bicg`` of PolyBench has two statements and reads its matrix once for both::

    q[i] = sum x0 * x1 : A[i,j], p[j]        compulsory: A, p, r, q, s
    s[j] = sum x0 * x1 : A[i,j], r[i]        excess: nothing beyond them

A statement on its own moves its arrays once, and an *excess* beyond them that
:mod:`feinsum.bounds.finite` proves. In a program, three things move less:

1. An intermediate may stay in the fast memory between its statements. Storing each of
   its entries once after it is computed, and loading it once before it is read, would
   make either statement an execution on its own. So each moves at least its bound less
   the intermediate's bytes: the excess remains.
2. Statements of one form (the query, key and value projections of a transformer, say)
   are the rows of one batch: an operand that they share is loaded once for all of them.
3. Of batches of different forms that read the same array, one load may serve both, so
   only the larger excess counts. All others add up.

Source: Kwasniewski et al. 2021, *Pebbles, Graphs, and a Pinch of Combinatorics*
(statements that share arrays).
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from math import prod

from feinsum.bounds.factors import (
    build_factors,
    get_extent_value,
    list_always_evaluated,
)
from feinsum.bounds.finite import (
    Certificate,
    FastMemory,
    certify_all,
    survey_statements,
)
from feinsum.bounds.paths import BoundedProduct, PathBound
from feinsum.bounds.soap import SoapAccess, SoapStatement
from feinsum.ir.evaluation import convert_to_einsum
from feinsum.ir.expressions import get_operand_name
from feinsum.ir.operand import bind_shape
from feinsum.ir.program import Program
from feinsum.ir.statement import Statement

Form = tuple[tuple[tuple[int, ...], int], ...]
"""The indices of a statement without their names: the accesses and extent of each."""


@dataclass(frozen=True)
class _Batch:
    """Statements of one form.

    Attributes:
        arrays: the arrays that they read.
        results: the names of their results, for display.
    """

    statement: SoapStatement
    arrays: frozenset[str]
    results: str


def bound_program_traffic(
    program: Program, sizes: Mapping[str, int], memories: Sequence[FastMemory]
) -> list[PathBound]:
    """Bound the bytes that a program moves to and from each memory.

    Every statement is executed as written, in any order and interleaved at will.
    Statements that are not products of two arrays count by their arrays alone: a sum
    of any other expression may be split into sums that read less.

    Args:
        program: the program.
        sizes: the value of every size parameter.
        memories: the fast memories, each bounded on its own.

    Raises:
        BoundError: if a size has no value.
    """
    compulsory = count_compulsory_bytes(program, sizes)
    batches = list(_list_batches(program, sizes))
    if not batches or not memories:
        return [PathBound(compulsory, ()) for _ in memories]
    surveys = survey_statements([batch.statement for batch in batches], memories)
    proofs = certify_all(surveys, memories)
    return [
        PathBound(compulsory, tuple(_disjoint(batches, certificates)))
        for certificates in zip(*proofs, strict=True)
    ]


def count_compulsory_bytes(program: Program, sizes: Mapping[str, int]) -> int:
    """Count the bytes of all inputs that are surely read, and of all outputs, once."""
    sizes = {x.name: get_extent_value(x, sizes) for x in program.size_params}
    entries: Counter[str] = Counter()
    inputs = {operand.name for operand in program.inputs}
    for statement in program.statements:
        extents = program.extents_at(statement, sizes)
        if not prod(extents.values()):
            continue
        for name, term in _list_certain_reads(statement):
            if name in inputs:  # an intermediate may stay in the fast memory
                n_entries = prod(extents[index] for index in set(term))
                # two statements may read the same part of an array
                entries[name] = max(entries[name], n_entries)
    for name in program.outputs:
        # a view of an input is not written
        if name not in program.shared:
            entries[name] = prod(program.shape_at(name, sizes))
    arrays = program.arrays
    return sum(n * arrays[name].dtype.itemsize for name, n in entries.items())


def _list_certain_reads(statement: Statement) -> Iterator[tuple[str, Sequence[str]]]:
    """List the operands that every evaluation of the body reads, with their indices."""
    if statement.is_numpy:
        return
    body = ast.parse(statement.body, mode="eval").body
    names = {
        node.id for node in list_always_evaluated(body) if isinstance(node, ast.Name)
    }
    for position, (name, term) in enumerate(statement.accesses):
        if get_operand_name(position) in names:
            yield name, term


def _list_batches(program: Program, sizes: Mapping[str, int]) -> Iterator[_Batch]:
    """Group the products of two arrays by their forms."""
    groups: dict[tuple[Form, bool, str], dict[str, SoapStatement]] = defaultdict(dict)
    for statement in program.statements:
        if statement.is_einsum and len(statement.operands) == 2:
            access = _make_access(program, statement, sizes)
            if access.n_points:
                form, ordered = _normalize(access)
                # Forms of their own: a product of an array with itself may use its
                # symmetry, and views share memory under different names.
                has_view = not program.shared.isdisjoint(statement.operands)
                single = statement.result if has_view else ""
                groups[form, access.symmetry > 1, single][statement.result] = ordered
    for rows in groups.values():
        batch = _join(tuple(rows.values()))
        operands = {name for row in rows for name in program.producers[row].operands}
        # arrays that may be views of each other count as one
        arrays = frozenset("" if x in program.shared else x for x in operands)
        yield _Batch(batch, arrays, ", ".join(rows))


def _make_access(
    program: Program, statement: Statement, sizes: Mapping[str, int]
) -> SoapStatement:
    """Return what a product of two arrays accesses."""
    arrays = [program.arrays[name] for name in statement.operands]
    einsum = convert_to_einsum(
        statement,
        [bind_shape(array.shape, sizes) for array in arrays],
        [array.dtype for array in arrays],
        statement.operands,
    )
    access = build_factors(einsum, {}).statement(((0,), (1,)))
    *operands, out = access.accesses
    # what a statement stores is not what another one loads, even of one array
    stored = replace(out, name=f"{statement.result}=")
    return replace(access, accesses=(*operands, stored))


def _normalize(statement: SoapStatement) -> tuple[Form, SoapStatement]:
    """Order the accesses alike in all statements of one form."""

    def form(accesses: Sequence[SoapAccess]) -> Form:
        return tuple(
            sorted(
                (tuple(k for k, a in enumerate(accesses) if index in a.indices), extent)
                for index, extent in statement.extents.items()
            )
        )

    # of orders that are alike, the one by names: shared arrays have one position
    orders = permutations(sorted(statement.accesses, key=lambda access: access.name))
    best = min(orders, key=form)
    return form(best), replace(statement, accesses=best)


def _join(statements: Sequence[SoapStatement]) -> SoapStatement:
    """Join statements of one form to a batch whose rows share arrays."""
    first, *others = statements
    if not others:
        return first
    columns = list(zip(*(statement.accesses for statement in statements), strict=True))
    # An array at several positions is loaded once for all of them: each position counts
    # for its part of the bytes.
    n_positions = Counter(
        name for column in columns for name in {access.name for access in column}
    )
    accesses = []
    for column in columns:
        arrays = {access.name: access for access in column}
        counts = Counter(access.name for access in column)
        accesses.append(
            SoapAccess(
                " ".join(arrays),
                column[0].indices,
                # fewer bytes an entry allow more steps in a piece, so the minimum keeps
                # the bound valid
                min(a.entry_bytes / n_positions[a.name] for a in column),
                sum(
                    (a.total_bytes / n_positions[a.name] for a in arrays.values()),
                    Fraction(0),
                ),
                max(counts.values()),
            )
        )
    return replace(
        first,
        accesses=tuple(accesses),
        n_instances=len(statements),
        symmetry=max(statement.symmetry for statement in statements),
    )


def _disjoint(
    batches: Sequence[_Batch], certificates: Sequence[Certificate]
) -> Iterator[BoundedProduct]:
    """Choose batches that read no array in common, the largest excess first."""
    products = [
        BoundedProduct((), certificate, batch.results)
        for batch, certificate in zip(batches, certificates, strict=True)
    ]
    pairs = zip(batches, products, strict=True)
    counted: set[str] = set()
    # every disjoint choice is a valid bound; a greedy one need not be the largest
    for batch, bounded in sorted(pairs, key=lambda pair: -pair[1].excess_bytes):
        if bounded.excess_bytes and counted.isdisjoint(batch.arrays):
            counted |= batch.arrays
            yield bounded
