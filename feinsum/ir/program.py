"""Programs of einsums: a graph of statements over arrays.

Source: EinDecomp, section 3 (EinGraph).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from math import inf, pi, prod
from typing import Any

import numpy as np
from constantdict import constantdict

from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir.expression_values import evaluate_body
from feinsum.ir.expressions import get_operand_name, list_names
from feinsum.ir.numpy_calls import infer_numpy_dtype, infer_numpy_shape, is_view
from feinsum.ir.operand import Extent, Operand, SizeParam, bind_shape
from feinsum.ir.reductions import check_reduction, check_reduction_dtype, is_truth
from feinsum.ir.statement import Statement
from feinsum.subscripts import IndexList
from feinsum.words import format_brief, format_count


@dataclass(frozen=True)
class Program:
    """Statements in dataflow order, over input arrays.

    Args:
        inputs: the input arrays.
        statements: each reads inputs and results of earlier statements.
        outputs: names of the results to return.

    Raises:
        ProgramError: naming every broken rule of :data:`RULES`.

    >>> f8 = np.dtype("float64")
    >>> program = Program(
    ...     (Operand("X", (3, 4), f8),),
    ...     (Statement("M", ("i",), (("i", "j"),), ("X",), reduction="max"),),
    ...     ("M",),
    ... )
    >>> print(program)
    X[3,4]:<f8
    M[i] = max x0 : X[i,j]
    -> M
    """

    inputs: tuple[Operand, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        # the class is frozen, and callers may give lists
        for name in ("inputs", "statements", "outputs"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_program(self)

    @cached_property
    def arrays(self) -> Mapping[str, Operand]:
        """Every array by name: inputs, then results."""
        arrays = {operand.name: operand for operand in self.inputs}
        # in dataflow order: operands come before their readers
        for statement in self.statements:
            arrays[statement.result] = _infer_result(statement, arrays)
        return constantdict(arrays)

    @cached_property
    def producers(self) -> Mapping[str, Statement]:
        """The statement of each result."""
        return constantdict(
            {statement.result: statement for statement in self.statements}
        )

    @cached_property
    def shared(self) -> frozenset[str]:
        """The arrays that may share memory with others."""
        return frozenset(
            name
            for statement in self.statements
            if statement.is_numpy and is_view(statement.body, len(statement.operands))
            for name in (statement.result, *statement.operands)
        )

    @cached_property
    def size_params(self) -> tuple[SizeParam, ...]:
        extents = (x for operand in self.inputs for x in operand.shape)
        return tuple(dict.fromkeys(x for x in extents if isinstance(x, SizeParam)))

    def extents(self, statement: Statement) -> Mapping[str, Extent]:
        """Return the extent of every index of a statement."""
        return constantdict(_collect_extents(statement, self.arrays))

    def extents_at(
        self, statement: Statement, sizes: Mapping[str, int]
    ) -> dict[str, int]:
        """Return the extents, with these values of size parameters."""
        extents = self.extents(statement)
        return dict(zip(extents, bind_shape(extents.values(), sizes), strict=True))

    def shape_at(self, name: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of an array."""
        return bind_shape(self.arrays[name].shape, sizes)

    def n_bytes(self, name: str, sizes: Mapping[str, int]) -> int:
        """Return the size of an array in bytes."""
        return prod(self.shape_at(name, sizes)) * self.arrays[name].dtype.itemsize

    def readers(self, name: str) -> tuple[Statement, ...]:
        """Return the statements that read an array."""
        return tuple(
            statement for statement in self.statements if name in statement.operands
        )

    def __repr__(self) -> str:
        return format_brief(self, str(self).replace("\n", "; "))

    def __str__(self) -> str:
        lines = [*map(str, self.inputs), *map(str, self.statements)]
        return "\n".join([*lines, f"-> {', '.join(self.outputs)}"])


def _collect_extents(
    statement: Statement, arrays: Mapping[str, Operand]
) -> dict[str, Extent]:
    extents: dict[str, Extent] = {}
    if statement.is_numpy:
        shapes = [arrays[name].shape for name in statement.operands]
        shape = infer_numpy_shape(statement.body, shapes)
        extents |= dict(zip(statement.output, shape, strict=True))
    for term, name in zip(statement.inputs, statement.operands, strict=True):
        extents |= dict(zip(term, arrays[name].shape, strict=True))
    return {index: extents[index] for index in statement.indices}


def _infer_result(statement: Statement, arrays: Mapping[str, Operand]) -> Operand:
    extents = _collect_extents(statement, arrays)
    shape = tuple(extents[index] for index in statement.output)
    return Operand(statement.result, shape, _infer_dtype(statement, arrays))


def _infer_dtype(statement: Statement, arrays: Mapping[str, Operand]) -> np.dtype[Any]:
    # "any" and "all" return booleans for every dtype that they reduce
    if is_truth(statement.reduction) and statement.reduced_indices:
        return np.dtype(np.bool_)
    dtypes = [arrays[name].dtype for name in statement.operands]
    if statement.is_numpy:
        return infer_numpy_dtype(statement.body, dtypes)
    dtype = infer_body_dtype(statement.body, dtypes, statement.indices)
    if statement.reduced_indices:
        check_reduction_dtype(statement.reduction, dtype)
    return dtype


CONSTANTS: Mapping[str, float] = {"inf": inf, "pi": pi}
"""Names that every body may use."""


def infer_body_dtype(
    body: str, dtypes: Sequence[np.dtype[Any]], indices: IndexList
) -> np.dtype[Any]:
    """Return the dtype of a body for operands of these dtypes.

    Raises:
        ProgramError: if the body uses anything that is not allowed.

    >>> infer_body_dtype("sqrt(x0) + x1", [np.dtype("float32"), np.dtype("float32")],
    ...     ())
    dtype('float32')
    """
    return _infer_body_dtype(body, tuple(dtypes), tuple(indices))


@lru_cache(maxsize=256)
def _infer_body_dtype(
    body: str, dtypes: tuple[np.dtype[Any], ...], indices: IndexList
) -> np.dtype[Any]:
    operands = {
        get_operand_name(p): np.ones(1, dtype) for p, dtype in enumerate(dtypes)
    }
    zeros = {index: np.zeros(1, np.int64) for index in indices}
    try:
        value = evaluate_body(body, {**CONSTANTS, **zeros, **operands})
    except InvalidEinsumError as error:
        raise ProgramError(f"body {body!r:.200}: {error}", rules=("body",)) from None
    except (TypeError, ValueError, OverflowError) as error:  # numpy, on bits of floats
        raise ProgramError(
            f"body {body!r:.200} is not defined for {', '.join(map(str, dtypes))}: "
            f"{error}",
            rules=("body",),
        ) from None
    return np.asarray(value).dtype


Rule = Callable[[Program], Iterator[str]]
"""A function that yields a message for each violation of a rule."""


def _check_has_statements(program: Program) -> Iterator[str]:
    """Refuse a program without statements or outputs."""
    if not program.statements:
        yield "the program has no statements"
    if not program.outputs:
        yield "the program has no outputs; name a result that is wanted"


def _check_names(program: Program) -> Iterator[str]:
    """Refuse names that are not identifiers, and arrays with the same name."""
    results = [statement.result for statement in program.statements]
    counts = Counter([*(operand.name for operand in program.inputs), *results])
    for name, count in counts.items():
        if count > 1:
            yield (
                f"{format_count(count, 'array')} are named {name!r}; give each "
                "another name"
            )
        if not (isinstance(name, str) and name.isidentifier()):
            yield f"{name!r} is no name of an array; take one such as 'scores'"
    for statement in program.statements:
        for index in statement.indices:
            if not (isinstance(index, str) and index.isidentifier()):
                yield f"{statement.result}: index {index!r} is no identifier"
            # 64 operands are more than any body has
            elif index in CONSTANTS or index in map(get_operand_name, range(64)):
                yield (
                    f"{statement.result}: the name of index {index!r} means something "
                    "else"
                )


def _check_dense(program: Program) -> Iterator[str]:
    """Refuse sparse arrays."""
    for operand in program.inputs:
        if operand.storage:
            yield f"array {operand.name!r} is sparse; programs have dense arrays only"


def _check_dataflow(program: Program) -> Iterator[str]:
    """Refuse reads of later results or unknown arrays, and outputs listed twice."""
    results = {statement.result: k for k, statement in enumerate(program.statements)}
    inputs = {operand.name for operand in program.inputs}
    reads = {statement.result: statement.operands for statement in program.statements}
    try:
        TopologicalSorter(reads).prepare()
    except CycleError as error:  # clearer than the messages about the order below
        yield f"the statements depend on each other: {' -> '.join(error.args[1])}"
        return
    for k, statement in enumerate(program.statements):
        for name in statement.operands:
            if name not in inputs and name not in results:
                names = ", ".join(sorted([*inputs, *results]))
                yield (
                    f"{statement.result} reads {name!r}, which nothing computes; "
                    f"known: {names}"
                )
            elif results.get(name, -1) >= k:
                yield (
                    f"{statement.result} reads {name!r}, which a later statement "
                    "computes"
                )
    for name, count in Counter(program.outputs).items():
        if name not in results:
            yield f"output {name!r} is no result of a statement"
        elif count > 1:
            yield f"output {name!r} is named {count} times"


def _check_terms(program: Program) -> Iterator[str]:
    """Refuse a statement without operands, or a term without one index per axis."""
    ranks = {operand.name: operand.rank for operand in program.inputs}
    for statement in program.statements:
        ranks[statement.result] = len(statement.output)
        if not (statement.operands or statement.is_numpy):
            yield f"{statement.result} has no operands"
        if len(statement.inputs) != len(statement.operands):
            yield (
                f"{statement.result} has "
                f"{format_count(len(statement.inputs), 'term')} and "
                f"{len(statement.operands)} "
                "operands"
            )
        for name, term in zip(statement.operands, statement.inputs, strict=False):
            if len(term) != ranks[name]:
                yield (
                    f"edge {name} -> {statement.result}: {name!r} has "
                    f"{format_count(ranks[name], 'axis')}, "
                    f"its term {' '.join(term) or '(empty)'!r} has "
                    f"{format_count(len(term), 'index')}"
                )


def _check_output_indices(program: Program) -> Iterator[str]:
    """Refuse a result's index that is repeated in it, or occurs in no operand.

    In a numpy statement, every axis has an index of its own.
    """
    for statement in program.statements:
        # numpy computes whole arrays, so a shared index would have no meaning
        if statement.is_numpy:
            counts = Counter(
                i for term in (statement.output, *statement.inputs) for i in term
            )
            for index, count in counts.items():
                if count > 1:
                    yield (
                        f"{statement.result}: index {index!r} of {count} axes of "
                        "numpy's"
                    )
            continue
        bound = {index for term in statement.inputs for index in term}
        for index, count in Counter(statement.output).items():
            if index not in bound:
                yield (
                    f"{statement.result}: index {index!r} of the result is in no "
                    "operand"
                )
            if count > 1:
                yield (
                    f"{statement.result}: index {index!r} is {count} times in the "
                    "result"
                )


def _check_extents(program: Program) -> Iterator[str]:
    """Refuse axes of a statement that carry the same index and differ in extent."""
    arrays = {operand.name: operand.shape for operand in program.inputs}
    for statement in program.statements:
        seen: dict[str, tuple[Extent, str]] = {}
        for name, term in zip(statement.operands, statement.inputs, strict=True):
            for axis, index in enumerate(term):
                extent = arrays[name][axis]
                expected, owner = seen.setdefault(index, (extent, name))
                if expected != extent:
                    yield (
                        f"edge {name} -> {statement.result}: index {index!r} has "
                        f"extent {extent} on axis {axis} of {name!r}, and "
                        f"{expected} in {owner!r}"
                    )
        if not statement.is_numpy:
            arrays[statement.result] = tuple(
                seen[index][0] for index in statement.output
            )
            continue
        shape = infer_numpy_shape(
            statement.body, [arrays[name] for name in statement.operands]
        )
        if len(shape) != len(statement.output):
            yield (
                f"{statement.result} has {format_count(len(shape), 'axis')}, not "
                f"{len(statement.output)}"
            )
            return
        arrays[statement.result] = shape


def _check_bodies(program: Program) -> Iterator[str]:
    """Refuse a body that does not use all its operands, or uses unknown names."""
    for statement in program.statements:
        if statement.is_numpy:
            continue  # the rule "extents" has evaluated its shape
        try:
            used = list_names(statement.body)
        except InvalidEinsumError as error:
            yield f"{statement.result}: {error}"
            continue
        operands = [get_operand_name(p) for p in range(len(statement.operands))]
        names = {*operands, *statement.indices, *CONSTANTS}
        for name in used:
            if name not in names:
                yield (
                    f"{statement.result}: body {statement.body!r} uses {name!r}; "
                    f"known are {', '.join([*operands, *statement.indices])}"
                )
        for name in operands:
            if name not in used:
                yield f"{statement.result}: body {statement.body!r} does not use {name}"


def _check_reductions(program: Program) -> Iterator[str]:
    """Refuse a reduction that is not associative and commutative on samples."""
    for statement in program.statements:
        if statement.is_numpy:
            continue
        try:
            # parts of a sum are combined in any order
            check_reduction(statement.reduction)
        except ProgramError as error:
            yield f"{statement.result}: {error}"


def _check_dtypes(program: Program) -> Iterator[str]:
    """Refuse a body that is not defined for the dtypes of its operands."""
    try:
        kinds = {name: array.dtype.kind for name, array in program.arrays.items()}
    except ProgramError as error:
        yield str(error)
    else:
        for name, kind in kinds.items():
            if kind not in "biufc":
                yield f"{name} is no array of numbers"


RULES: dict[str, tuple[Rule, ...]] = {
    "no-statements": (_check_has_statements,),
    "name": (_check_names,),
    "storage": (_check_dense,),
    "dataflow": (_check_dataflow,),
    "term": (_check_terms,),
    "output-index": (_check_output_indices,),
    "extent-clash": (_check_extents,),
    "body": (_check_bodies, _check_dtypes),
    "reduction": (_check_reductions,),
}
"""The checks of each rule, by the code of the rule.

Checking stops at the first broken rule, because later rules assume earlier ones:
shapes, for example, assume that there is no cycle.
"""


def check_program(program: Program) -> None:
    """Raise unless a program is well-formed.

    Raises:
        ProgramError: with every violation of the first broken rule.
    """
    for code, rules in RULES.items():
        for rule in rules:
            if messages := list(dict.fromkeys(rule(program))):
                text = "; ".join(f"[{code}] {message}" for message in messages)
                raise ProgramError(f"ill-formed program: {text}", rules=(code,))
