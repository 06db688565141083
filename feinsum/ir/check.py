"""The well-formedness rules of batched einsums, each with a name.

Source: paper, section 2.2 (conditions for equation 1 to be sound), section 4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from feinsum.ir.operand import Extent, Operand
from feinsum.ir.violation import Violation, raise_if_any
from feinsum.subscripts import is_index_name
from feinsum.words import counted

if TYPE_CHECKING:
    from feinsum.ir.einsum import BatchedEinsum
    from feinsum.subscripts import IndexList

__all__ = ["RULES", "raise_if_ill_formed", "violations"]

Rule = Callable[["BatchedEinsum"], Iterator[str]]


def has_rows(einsum: BatchedEinsum) -> Iterator[str]:
    """A batch has at least one row."""
    if not einsum.rows:
        yield "the batch has no rows; give at least one row of operands"


def has_operands(einsum: BatchedEinsum) -> Iterator[str]:
    """An einsum has at least one operand."""
    if not einsum.inputs:
        yield "the einsum has no operands; give at least one"


def index_names(einsum: BatchedEinsum) -> Iterator[str]:
    """The name of an index has no space and nothing of the notation."""
    names = dict.fromkeys([*einsum.output, *(i for t in einsum.inputs for i in t)])
    for name in names:
        if not is_index_name(name):
            yield (
                f"index {name!r} is not a name such as 'i' or 'dof', without spaces "
                "and without any of { } , . | ->"
            )


def row_length(einsum: BatchedEinsum) -> Iterator[str]:
    """Every row has one operand per term of the subscripts."""
    n = len(einsum.inputs)
    for k, row in enumerate(einsum.rows):
        if len(row) != n:
            yield (
                f"row {k} has {counted(len(row), 'operand')}, the subscripts have "
                f"{counted(n, 'term')}"
            )


def rank(einsum: BatchedEinsum) -> Iterator[str]:
    """A term has one index per axis of its operand."""
    for p, term, operand in _accesses(einsum):
        if len(term) != len(operand.shape):
            text = " ".join(map(str, term)) or "(empty)"
            k = next(
                k for k, row in enumerate(einsum.rows) if operand in row[p : p + 1]
            )
            yield (
                f"operand {operand.name!r} (row {k}, position {p}) has "
                f"{counted(operand.rank, 'axis')}, its term {text!r} has "
                f"{counted(len(term), 'index')}"
            )


def extents(einsum: BatchedEinsum) -> Iterator[str]:
    """All axes that carry one index have one extent."""
    known: dict[str, Extent] = {}
    for _, term, operand in _accesses(einsum):
        for axis, (index, extent) in enumerate(zip(term, operand.shape, strict=False)):
            first = known.setdefault(index, extent)
            if first is not extent and first != extent:
                yield (
                    f"index {index!r} has extent {first} on {_first(einsum, index)} "
                    f"and extent {extent} on axis {axis} of {operand.name!r}"
                )


def _first(einsum: BatchedEinsum, index: str) -> str:
    """The first axis that carries an index."""
    for _, term, operand in _accesses(einsum):
        if index in term:
            return f"axis {term.index(index)} of {operand.name!r}"
    raise AssertionError(index)


def output_bound(einsum: BatchedEinsum) -> Iterator[str]:
    """Every output index occurs in a term."""
    bound = {index for term in einsum.inputs for index in term}
    for index in einsum.output:
        if index not in bound:
            known = sorted(bound, key=str)
            yield f"output index {index!r} occurs in no term, they have {known}"


def output_distinct(einsum: BatchedEinsum) -> Iterator[str]:
    """No output index is repeated."""
    if len(set(einsum.output)) == len(einsum.output):
        return
    for index, count in Counter(einsum.output).items():
        if count > 1:
            yield f"output index {index!r} is repeated {count} times"


def one_name_one_array(einsum: BatchedEinsum) -> Iterator[str]:
    """Operands of one name have one shape and one dtype."""
    first: dict[str, Operand] = {}
    for _, _, operand in _accesses(einsum):
        known = first.setdefault(operand.name, operand)
        if known is not operand and known != operand:
            yield f"two arrays are named {operand.name!r}: {known} and {operand}"


def storage(einsum: BatchedEinsum) -> Iterator[str]:
    """At most one operand is sparse, once in every row, and repeats no index."""
    stored = [(p, t, op) for p, t, op in _accesses(einsum) if op.storage]
    if not stored:
        return
    names = [operand.name for _, _, operand in stored]
    position = stored[0][0]
    for k, row in enumerate(einsum.rows):
        if not row[position].storage:
            yield (
                f"row {k} has the dense operand {row[position].name!r} where others "
                f"have sparse {names[0]!r}; all rows must have it at one position"
            )
    if len(stored) > 1:
        yield (
            f"operands {names} are sparse; at most one may be, and only once: make "
            "the others dense"
        )
    for _, term, operand in stored:
        if len(set(term)) < len(term):
            yield f"an index is repeated in the term {term} of sparse {operand.name!r}"
        if operand.storage == "csf=" and sorted(term) != sorted(einsum.output):
            yield (
                f"the result has the pattern of {operand.name!r}, and therefore its "
                f"indices {term} and no other; the output has {einsum.output}"
            )


RULES: dict[str, Rule] = {
    "no-rows": has_rows,
    "no-operands": has_operands,
    "index-name": index_names,
    "row-length": row_length,
    "rank": rank,
    "extent-clash": extents,
    "unbound-output-index": output_bound,
    "repeated-output-index": output_distinct,
    "name-clash": one_name_one_array,
    "storage": storage,
}
"""Code of each rule of a batched einsum and the check that it stands for."""


def violations(einsum: BatchedEinsum) -> tuple[Violation, ...]:
    """Every rule that ``einsum`` breaks, with a message for each place."""
    return tuple(
        Violation(code, message)
        for code, rule in RULES.items()
        for message in dict.fromkeys(rule(einsum))
    )


def raise_if_ill_formed(einsum: BatchedEinsum) -> None:
    """Raise :class:`InvalidEinsumError` naming every broken rule."""
    raise_if_any(violations(einsum))


def _accesses(
    einsum: BatchedEinsum,
) -> Iterator[tuple[int, IndexList, Operand]]:
    """Every position with its term and the different operands that rows have there."""
    columns = zip_longest(*einsum.rows)
    for p, (term, column) in enumerate(zip(einsum.inputs, columns, strict=False)):
        for operand in dict.fromkeys(column):
            if operand is not None:
                yield p, term, operand
