"""Programs of einsums: a graph of statements over arrays.

Source: EinDecomp, section 3 (EinGraph).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import inf, pi
from typing import Any

import numpy as np
from constantdict import constantdict

from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir.expression_values import body_value
from feinsum.ir.expressions import names_in, operand_name
from feinsum.ir.numpy_calls import is_view, numpy_dtype, numpy_shape
from feinsum.ir.operand import Extent, Operand, SizeParam
from feinsum.ir.reductions import check_reduction, is_truth
from feinsum.ir.statement import Statement
from feinsum.subscripts import IndexList
from feinsum.words import brief, counted


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
        for name in ("inputs", "statements", "outputs"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        raise_if_ill_formed(self)

    @cached_property
    def arrays(self) -> Mapping[str, Operand]:
        """Every array by name: inputs, then results."""
        found = {operand.name: operand for operand in self.inputs}
        for statement in self.statements:
            found[statement.result] = _result(statement, found)
        return constantdict(found)

    @cached_property
    def producers(self) -> Mapping[str, Statement]:
        """The statement of each result."""
        return constantdict({one.result: one for one in self.statements})

    @cached_property
    def shared(self) -> frozenset[str]:
        """The arrays that may have their memory in common with others."""
        return frozenset(
            name
            for one in self.statements
            if one.is_numpy and is_view(one.body, len(one.operands))
            for name in (one.result, *one.operands)
        )

    @cached_property
    def size_params(self) -> tuple[SizeParam, ...]:
        extents = (x for operand in self.inputs for x in operand.shape)
        return tuple(dict.fromkeys(x for x in extents if isinstance(x, SizeParam)))

    def extents(self, statement: Statement) -> Mapping[str, Extent]:
        """The extent of every index of a statement."""
        return constantdict(_extents(statement, self.arrays))

    def readers(self, name: str) -> tuple[Statement, ...]:
        """The statements that read an array."""
        return tuple(one for one in self.statements if name in one.operands)

    def __repr__(self) -> str:
        return brief(self, str(self).replace("\n", "; "))

    def __str__(self) -> str:
        lines = [*map(str, self.inputs), *map(str, self.statements)]
        return "\n".join([*lines, f"-> {', '.join(self.outputs)}"])


def _extents(statement: Statement, arrays: Mapping[str, Operand]) -> dict[str, Extent]:
    found: dict[str, Extent] = {}
    if statement.is_numpy:
        shapes = [arrays[name].shape for name in statement.operands]
        shape = numpy_shape(statement.body, shapes)
        found |= dict(zip(statement.output, shape, strict=True))
    for term, name in zip(statement.inputs, statement.operands, strict=True):
        found |= dict(zip(term, arrays[name].shape, strict=True))
    return {index: found[index] for index in statement.indices}


def _result(statement: Statement, arrays: Mapping[str, Operand]) -> Operand:
    extents = _extents(statement, arrays)
    shape = tuple(extents[index] for index in statement.output)
    return Operand(statement.result, shape, _dtype(statement, arrays))


def _dtype(statement: Statement, arrays: Mapping[str, Operand]) -> np.dtype[Any]:
    if is_truth(statement.reduction) and statement.reduced_indices:
        return np.dtype(np.bool_)
    dtypes = [arrays[name].dtype for name in statement.operands]
    if statement.is_numpy:
        return numpy_dtype(statement.body, dtypes)
    return body_dtype(statement.body, dtypes, statement.indices)


CONSTANTS: Mapping[str, float] = {"inf": inf, "pi": pi}
"""Names that every body may use."""


def body_dtype(
    body: str, dtypes: Sequence[np.dtype[Any]], indices: IndexList
) -> np.dtype[Any]:
    """The dtype of a body for operands of these dtypes.

    Raises:
        ProgramError: if the body uses anything that is not allowed.

    >>> body_dtype("sqrt(x0) + x1", [np.dtype("float32"), np.dtype("float32")], ())
    dtype('float32')
    """
    return _body_dtype(body, tuple(dtypes), tuple(indices))


@lru_cache(maxsize=256)
def _body_dtype(
    body: str, dtypes: tuple[np.dtype[Any], ...], indices: IndexList
) -> np.dtype[Any]:
    ones = {operand_name(p): np.ones(1, dtype) for p, dtype in enumerate(dtypes)}
    zeros = {index: np.zeros(1, np.int64) for index in indices}
    try:
        value = body_value(body, {**CONSTANTS, **zeros, **ones})
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
"""Yields each place where a rule is broken."""


def has_statements(program: Program) -> Iterator[str]:
    """A program has statements, and outputs."""
    if not program.statements:
        yield "the program has no statements"
    if not program.outputs:
        yield "the program has no outputs; name a result that is wanted"


def names(program: Program) -> Iterator[str]:
    """Names of arrays and indices are identifiers, and names of arrays are unique."""
    results = [one.result for one in program.statements]
    counts = Counter([*(operand.name for operand in program.inputs), *results])
    for name, count in counts.items():
        if count > 1:
            yield (
                f"{counted(count, 'array')} are named {name!r}; give each another name"
            )
        if not (isinstance(name, str) and name.isidentifier()):
            yield f"{name!r} is no name of an array; take one such as 'scores'"
    for one in program.statements:
        for index in one.indices:
            if not (isinstance(index, str) and index.isidentifier()):
                yield f"{one.result}: index {index!r} is no identifier"
            elif index in CONSTANTS or index in map(operand_name, range(64)):
                yield f"{one.result}: the name of index {index!r} means something else"


def dense(program: Program) -> Iterator[str]:
    """All arrays are dense."""
    for operand in program.inputs:
        if operand.storage:
            yield f"array {operand.name!r} is sparse; programs have dense arrays only"


def dataflow(program: Program) -> Iterator[str]:
    """A statement reads inputs or earlier results; every output is listed once."""
    results = {one.result: k for k, one in enumerate(program.statements)}
    given = {operand.name for operand in program.inputs}
    if cycle := _cycle(program):
        yield f"the statements depend on each other: {' -> '.join(cycle)}"
        return
    for k, one in enumerate(program.statements):
        for name in one.operands:
            if name not in given and name not in results:
                known = ", ".join(sorted([*given, *results]))
                yield (
                    f"{one.result} reads {name!r}, which nothing computes; known: "
                    f"{known}"
                )
            elif results.get(name, -1) >= k:
                yield f"{one.result} reads {name!r}, which a later statement computes"
    for name, count in Counter(program.outputs).items():
        if name not in results:
            yield f"output {name!r} is no result of a statement"
        elif count > 1:
            yield f"output {name!r} is named {count} times"


def terms(program: Program) -> Iterator[str]:
    """A statement has operands, each with one index per axis."""
    ranks = {operand.name: operand.rank for operand in program.inputs}
    for one in program.statements:
        ranks[one.result] = len(one.output)
        if not (one.operands or one.is_numpy):
            yield f"{one.result} has no operands"
        if len(one.inputs) != len(one.operands):
            yield (
                f"{one.result} has {counted(len(one.inputs), 'term')} and "
                f"{len(one.operands)} "
                "operands"
            )
        for name, term in zip(one.operands, one.inputs, strict=False):
            if len(term) != ranks[name]:
                yield (
                    f"edge {name} -> {one.result}: {name!r} has "
                    f"{counted(ranks[name], 'axis')}, "
                    f"its term {' '.join(term) or '(empty)'!r} has "
                    f"{counted(len(term), 'index')}"
                )


def output_indices(program: Program) -> Iterator[str]:
    """Every index of a result occurs once in it, and in an operand.

    In a numpy statement, every axis has an index of its own.
    """
    for one in program.statements:
        if one.is_numpy:
            places = Counter(i for term in (one.output, *one.inputs) for i in term)
            for index, count in places.items():
                if count > 1:
                    yield f"{one.result}: index {index!r} of {count} axes of numpy's"
            continue
        bound = {index for term in one.inputs for index in term}
        for index, count in Counter(one.output).items():
            if index not in bound:
                yield f"{one.result}: index {index!r} of the result is in no operand"
            if count > 1:
                yield f"{one.result}: index {index!r} is {count} times in the result"


def extents(program: Program) -> Iterator[str]:
    """All axes with the same index in a statement have the same extent."""
    arrays = {operand.name: operand.shape for operand in program.inputs}
    for one in program.statements:
        known: dict[str, tuple[Extent, str]] = {}
        for name, term in zip(one.operands, one.inputs, strict=True):
            for axis, index in enumerate(term):
                extent = arrays[name][axis]
                first, where = known.setdefault(index, (extent, name))
                if first != extent:
                    yield (
                        f"edge {name} -> {one.result}: index {index!r} has extent "
                        f"{extent} on axis {axis} of {name!r}, and {first} in {where!r}"
                    )
        if not one.is_numpy:
            arrays[one.result] = tuple(known[index][0] for index in one.output)
            continue
        shape = numpy_shape(one.body, [arrays[name] for name in one.operands])
        if len(shape) != len(one.output):
            yield (
                f"{one.result} has {counted(len(shape), 'axis')}, not {len(one.output)}"
            )
            return
        arrays[one.result] = shape


def bodies(program: Program) -> Iterator[str]:
    """A body uses all its operands, possibly indices, and nothing else."""
    for one in program.statements:
        if one.is_numpy:
            continue  # its shape was found
        try:
            used = names_in(one.body)
        except InvalidEinsumError as error:
            yield f"{one.result}: {error}"
            continue
        operands = [operand_name(p) for p in range(len(one.operands))]
        known = {*operands, *one.indices, *CONSTANTS}
        for name in used:
            if name not in known:
                yield (
                    f"{one.result}: body {one.body!r} uses {name!r}; known are "
                    f"{', '.join([*operands, *one.indices])}"
                )
        for name in operands:
            if name not in used:
                yield f"{one.result}: body {one.body!r} does not use {name}"


def reductions(program: Program) -> Iterator[str]:
    """A reduction is associative and commutative, as tested on samples."""
    for one in program.statements:
        if one.is_numpy:
            continue
        try:
            check_reduction(one.reduction)
        except ProgramError as error:
            yield f"{one.result}: {error}"


def dtypes(program: Program) -> Iterator[str]:
    """Every body is defined for the dtypes of its operands."""
    try:
        kinds = {name: array.dtype.kind for name, array in program.arrays.items()}
    except ProgramError as error:
        yield str(error)
    else:
        for name, kind in kinds.items():
            if kind not in "biufc":
                yield f"{name} is no array of numbers"


RULES: dict[str, tuple[Rule, ...]] = {
    "no-statements": (has_statements,),
    "name": (names,),
    "storage": (dense,),
    "dataflow": (dataflow,),
    "term": (terms,),
    "output-index": (output_indices,),
    "extent-clash": (extents,),
    "body": (bodies, dtypes),
    "reduction": (reductions,),
}
"""Code of each rule, and what checks it.

Checking stops at the first broken rule, because later rules assume earlier ones:
shapes, for example, assume that there is no cycle.
"""


def raise_if_ill_formed(program: Program) -> None:
    """
    Raises:
        ProgramError: naming every place in which the first broken rule is broken.
    """
    for code, rules in RULES.items():
        for rule in rules:
            if found := list(dict.fromkeys(rule(program))):
                text = "; ".join(f"[{code}] {message}" for message in found)
                raise ProgramError(f"ill-formed program: {text}", rules=(code,))


def _cycle(program: Program) -> list[str]:
    """Results that depend on each other, the first one again at the end."""
    reads = {one.result: one.operands for one in program.statements}
    done: set[str] = set()
    for start in reads:
        path: list[str] = []
        stack: list[tuple[str, Iterator[str]]] = [(start, iter(reads[start]))]
        path.append(start)
        while stack:
            name, rest = stack[-1]
            following = next((n for n in rest if n in reads and n not in done), None)
            if following is None:
                done.add(name)
                stack.pop()
                path.pop()
            elif following in path:
                return [*path[path.index(following) :], following][::-1]
            else:
                path.append(following)
                stack.append((following, iter(reads[following])))
    return []
