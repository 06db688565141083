"""Batched einsums as plain data, and their well-formedness rules, each with a name.

Source: paper, sections 2 (einsum; 2.2: conditions for equation 1 to be sound) and 4
(batched einsum).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from importlib import import_module
from itertools import chain, zip_longest
from typing import Any, TypeVar, cast

import numpy as np
from constantdict import constantdict

from feinsum.errors import InvalidEinsumError
from feinsum.ir.operand import (
    Extent,
    Operand,
    SizeParam,
    Violation,
    bind_shape,
    raise_if_any,
)
from feinsum.subscripts import IndexList, is_index_name, write_subscripts
from feinsum.words import format_brief, format_count, format_html_table

T = TypeVar("T")


@dataclass(frozen=True)
class BatchedEinsum:
    """b einsums with one index notation over shared operands.

    Row ``k`` computes ``sum(product of rows[k][p][inputs[p]] over p)`` for all
    values of the ``output`` indices, summed over all other indices.

    Args:
        output: index names of every result, one per axis.
        inputs: for each of the n operand positions its index names.
        rows: b tuples of n operands; rows may share operands.

    Raises:
        InvalidEinsumError: naming every broken rule of :mod:`feinsum.ir.einsums`.

    Source: paper, section 4, definition of a batched einsum.

    >>> f8 = np.dtype("float64")
    >>> A, x, y = (Operand(n, s, f8) for n, s in
    ...            [("A", (3, 4)), ("x", (4,)), ("y", (4,))])
    >>> e = BatchedEinsum(("i",), (("i", "j"), ("j",)), ((A, x), (A, y)))
    >>> e.subscripts, e.batch_size, e.summation_indices
    ('ij,j->i', 2, ('j',))
    """

    output: IndexList
    inputs: tuple[IndexList, ...]
    rows: tuple[tuple[Operand, ...], ...]

    def __post_init__(self) -> None:
        # the class is frozen, and callers may give lists
        object.__setattr__(self, "output", tuple(self.output))
        object.__setattr__(self, "inputs", tuple(map(tuple, self.inputs)))
        object.__setattr__(self, "rows", tuple(map(tuple, self.rows)))
        check_einsum(self)

    def __hash__(self) -> int:
        """Hash the first row only: einsums that share it rarely differ in others."""
        return hash((self.output, self.inputs, self.rows[0], len(self.rows)))

    @property
    def batch_size(self) -> int:
        return len(self.rows)

    @property
    def n_operands(self) -> int:
        """Number of operand positions (not of distinct arrays)."""
        return len(self.inputs)

    @cached_property
    def indices(self) -> IndexList:
        """Every index once: the free ones in output order, then the others."""
        return _deduplicate(chain(self.output, *self.inputs))

    @property
    def free_indices(self) -> IndexList:
        return self.output

    @property
    def summation_indices(self) -> IndexList:
        return self.indices[len(self.output) :]

    @cached_property
    def extents(self) -> constantdict[str, Extent]:
        """The extent of every index, in the order of :attr:`indices`."""
        extents: dict[str, Extent] = {}
        # all rows agree on the extents: a rule of well-formed einsums
        for term, operand in zip(self.inputs, self.rows[0], strict=True):
            extents.update(zip(term, operand.shape, strict=True))
        return constantdict({index: extents[index] for index in self.indices})

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The distinct operands, in order of first use."""
        return _deduplicate(chain.from_iterable(self.rows))

    @property
    def sparse_position(self) -> int | None:
        """Position of the operand stored as a tree; None if all are dense."""
        # the same in all rows: a rule of well-formed einsums
        stored = (p for p, operand in enumerate(self.rows[0]) if operand.storage)
        return next(stored, None)

    @cached_property
    def size_params(self) -> tuple[SizeParam, ...]:
        """The distinct size parameters, in the order of :attr:`indices`."""
        return _deduplicate(
            x for x in self.extents.values() if isinstance(x, SizeParam)
        )

    def extents_at(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the extent of every index, with these values of size parameters."""
        return dict(
            zip(self.extents, bind_shape(self.extents.values(), sizes), strict=True)
        )

    @property
    def output_shape(self) -> tuple[Extent, ...]:
        return tuple(self.extents[index] for index in self.output)

    @cached_property
    def output_dtypes(self) -> tuple[np.dtype[Any], ...]:
        """One dtype per row: numpy's result type of the row's operands."""
        return tuple(np.result_type(*(op.dtype for op in row)) for row in self.rows)

    @property
    def subscripts(self) -> str:
        """The notation as text; see :func:`write_subscripts`."""
        return write_subscripts(self.inputs, self.output)

    def operand_indices(self, name: str) -> tuple[IndexList, ...]:
        """Return the distinct index lists with which the named operand is accessed."""
        return _deduplicate(
            term
            for row in self.rows
            for term, operand in zip(self.inputs, row, strict=True)
            if operand.name == name
        )

    def __str__(self) -> str:
        rows = "; ".join(" ".join(op.name for op in row) for row in self.rows)
        operands = ", ".join(str(operand) for operand in self.operands)
        return f"{self.subscripts} of ({rows}) with {operands}"

    def __repr__(self) -> str:
        return format_brief(self, str(self))

    def _repr_html_(self) -> str:
        operands = ((op.name, op.shape_text, op.dtype) for op in self.operands)
        table = format_html_table(["operand", "shape", "dtype"], operands)
        return f"<code>{escape(self.subscripts)}</code>{table}{self._repr_svg_() or ''}"

    def _repr_svg_(self) -> str | None:
        """Return the induced graph, where matplotlib is installed."""
        # imported when a notebook calls this: drawing is in a higher layer
        return cast("str | None", import_module("feinsum.drawing").draw_svg(self))


def _deduplicate(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))


def require_dense(einsum: BatchedEinsum) -> BatchedEinsum:
    """Return the einsum, if no operand of it is sparse.

    Raises:
        InvalidEinsumError: with the rule ``storage``, naming the sparse operand.
    """
    sparse = [operand.name for operand in einsum.operands if operand.storage]
    if not sparse:
        return einsum
    raise InvalidEinsumError(
        f"operand {sparse[0]!r} of {einsum.subscripts} is sparse, but dense operands "
        "are required here; use feinsum.call_einsum to compute with sparse operands, "
        "or feinsum.nests to find loop nests for them",
        rules=("storage",),
    )


def require_einsum(value: object) -> BatchedEinsum:
    """Return the value, if it is an einsum.

    Raises:
        InvalidEinsumError: naming the type of the value, and how to make an einsum.
    """
    if isinstance(value, BatchedEinsum):
        return value
    raise InvalidEinsumError(
        f"expected an einsum made by feinsum.einsum or feinsum.batched_einsum, got "
        f"{value!r:.60} of type {type(value).__name__}; make one, as in "
        "feinsum.einsum('ij,j->i', feinsum.array('A', (3, 4)), feinsum.array('x', 4))",
        rules=("type",),
    )


Rule = Callable[["BatchedEinsum"], Iterator[str]]


def _check_has_rows(einsum: BatchedEinsum) -> Iterator[str]:
    """Refuse a batch without rows."""
    if not einsum.rows:
        yield "the batch has no rows; give at least one row of operands"


def _check_has_operands(einsum: BatchedEinsum) -> Iterator[str]:
    """Refuse an einsum without operands."""
    if not einsum.inputs:
        yield "the einsum has no operands; give at least one"


def _check_index_names(einsum: BatchedEinsum) -> Iterator[str]:
    """Refuse index names that contain a space or characters of the notation."""
    names = dict.fromkeys([*einsum.output, *(i for t in einsum.inputs for i in t)])
    for name in names:
        if not is_index_name(name):
            yield (
                f"index {name!r} is not a name such as 'i' or 'dof', without spaces "
                "and without any of { } , . | ->"
            )


def _check_row_length(einsum: BatchedEinsum) -> Iterator[str]:
    """Refuse a row that does not have one operand per term of the subscripts."""
    n = len(einsum.inputs)
    for k, row in enumerate(einsum.rows):
        if len(row) != n:
            yield (
                f"row {k} has {format_count(len(row), 'operand')}, the subscripts have "
                f"{format_count(n, 'term')}"
            )


def _check_rank(einsum: BatchedEinsum) -> Iterator[str]:
    """Refuse a term that does not have one index per axis of its operand."""
    for p, term, operand in _list_accesses(einsum):
        if len(term) != len(operand.shape):
            text = " ".join(map(str, term)) or "(empty)"
            # the first row with this operand, since rows may share it
            k = next(
                k for k, row in enumerate(einsum.rows) if operand in row[p : p + 1]
            )
            yield (
                f"operand {operand.name!r} (row {k}, position {p}) has "
                f"{format_count(operand.rank, 'axis')}, its term {text!r} has "
                f"{format_count(len(term), 'index')}"
            )


def _check_extents(einsum: BatchedEinsum) -> Iterator[str]:
    """Refuse axes that carry the same index and differ in extent."""
    first_extents: dict[str, Extent] = {}
    for _, term, operand in _list_accesses(einsum):
        for axis, (index, extent) in enumerate(zip(term, operand.shape, strict=False)):
            expected = first_extents.setdefault(index, extent)
            if expected is not extent and expected != extent:
                yield (
                    f"index {index!r} has extent {expected} on "
                    f"{_find_first(einsum, index)} "
                    f"and extent {extent} on axis {axis} of {operand.name!r}"
                )


def _find_first(einsum: BatchedEinsum, index: str) -> str:
    """Return the first axis that carries an index."""
    for _, term, operand in _list_accesses(einsum):
        if index in term:
            return f"axis {term.index(index)} of {operand.name!r}"
    raise AssertionError(index)


def _check_output_bound(einsum: BatchedEinsum) -> Iterator[str]:
    """Refuse an output index that occurs in no term."""
    bound = {index for term in einsum.inputs for index in term}
    for index in einsum.output:
        if index not in bound:
            names = sorted(bound, key=str)
            yield f"output index {index!r} occurs in no term, they have {names}"


def _check_output_distinct(einsum: BatchedEinsum) -> Iterator[str]:
    """Refuse a repeated output index."""
    if len(set(einsum.output)) == len(einsum.output):
        return
    for index, count in Counter(einsum.output).items():
        if count > 1:
            yield f"output index {index!r} is repeated {count} times"


def _check_names(einsum: BatchedEinsum) -> Iterator[str]:
    """Refuse operands that share a name and differ in shape or dtype."""
    first_uses: dict[str, Operand] = {}
    for _, _, operand in _list_accesses(einsum):
        first_use = first_uses.setdefault(operand.name, operand)
        if first_use is not operand and first_use != operand:
            yield f"two arrays are named {operand.name!r}: {first_use} and {operand}"


def _check_storage(einsum: BatchedEinsum) -> Iterator[str]:
    """Refuse several sparse operands, and one that repeats an index or lacks a row."""
    stored = [(p, t, op) for p, t, op in _list_accesses(einsum) if op.storage]
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
    "no-rows": _check_has_rows,
    "no-operands": _check_has_operands,
    "index-name": _check_index_names,
    "row-length": _check_row_length,
    "rank": _check_rank,
    "extent-clash": _check_extents,
    "unbound-output-index": _check_output_bound,
    "repeated-output-index": _check_output_distinct,
    "name-clash": _check_names,
    "storage": _check_storage,
}
"""The check of each rule of a batched einsum, by the code of the rule."""


def violations(einsum: BatchedEinsum) -> tuple[Violation, ...]:
    """Return every violation of a rule by an einsum, with a message for each place."""
    return tuple(
        Violation(code, message)
        for code, rule in RULES.items()
        # unique: rows that share an operand break a rule with the same message
        for message in dict.fromkeys(rule(einsum))
    )


def check_einsum(einsum: BatchedEinsum) -> None:
    """Raise :class:`InvalidEinsumError` naming every broken rule."""
    # all rules at once, so that one error names everything that is wrong
    raise_if_any(violations(einsum))


def _list_accesses(
    einsum: BatchedEinsum,
) -> Iterator[tuple[int, IndexList, Operand]]:
    """Yield each position with its term and the operands that rows have there."""
    columns = zip_longest(*einsum.rows)
    for p, (term, column) in enumerate(zip(einsum.inputs, columns, strict=False)):
        for operand in dict.fromkeys(column):
            if operand is not None:
                yield p, term, operand
