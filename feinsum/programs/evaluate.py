"""The meaning of a program: a reference evaluator in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from feinsum.errors import ProgramError
from feinsum.ir import (
    BatchedEinsum,
    IndexList,
    Operand,
    SizeParam,
    body_into,
    body_value,
    evaluate,
)
from feinsum.programs.body import operand_name
from feinsum.programs.dtypes import CONSTANTS
from feinsum.programs.numpy_calls import numpy_value
from feinsum.programs.program import Program
from feinsum.programs.reductions import reduced
from feinsum.programs.statement import Statement

Array = np.ndarray[Any, np.dtype[Any]]


def evaluate_program(
    program: Program, arrays: Mapping[str, Any]
) -> Mapping[str, Array]:
    """Evaluate a program statement by statement; returns outputs by name.


    Args:
        arrays: for each input's name an array of its shape and dtype.

    Raises:
        ProgramError: if an array is missing or has the wrong shape or dtype.

    >>> from feinsum.ir import array
    >>> rows = Statement("S", ("i",), (("i", "j"),), ("X",), "exp(x0)")
    >>> program = Program((array("X", (2, 2)),), (rows,), ("S",))
    >>> evaluate_program(program, {"X": np.zeros((2, 2))})["S"].tolist()
    [2.0, 2.0]
    """
    known = dict(checked_arrays(program, arrays))
    for one in program.statements:
        operands = [known[name] for name in one.operands]
        result = evaluate_statement(one, operands)
        known[one.result] = result.astype(program.arrays[one.result].dtype, copy=False)
    return {name: known[name] for name in program.outputs}


def evaluate_statement(
    statement: Statement,
    operands: Sequence[Array],
    first: Mapping[str, int] | None = None,
    steps: Mapping[str, int] | None = None,
) -> Array:
    """The result of one statement.

    Args:
        first: the first value of each index, if the operands are parts of arrays.
        steps: the difference of its consecutive values, likewise; by default 1.

    >>> best = Statement("M", ("i",), (("i", "j"), ("j",)), ("A", "x"), reduction="max")
    >>> evaluate_statement(best, [np.eye(2), np.array([3.0, 4.0])]).tolist()
    [3.0, 4.0]
    """
    if statement.is_numpy:
        return numpy_value(statement.body, operands)
    if _is_plain(statement, operands):
        arrays = {operand_name(p): array for p, array in enumerate(operands)}
        shapes = [array.shape for array in operands]
        dtypes = [array.dtype for array in operands]
        (result,) = evaluate(
            einsum_of(statement, shapes, dtypes), arrays, optimize=True
        )
        return result if statement.factor == 1 else result * statement.factor
    names = _names_of(statement, operands, first or {}, steps or {})
    shape = statement.shape_of(operands, statement.indices)
    axes = [*range(len(statement.output), len(shape))]
    whole = np.broadcast_to(np.asarray(body_value(statement.body, names)), shape)
    return reduced(statement.reduction, whole, axes) if axes else np.array(whole)


def map_into(
    statement: Statement,
    operands: Sequence[Array],
    out: Array,
    first: Mapping[str, int] | None = None,
    spent: int | None = None,
) -> None:
    """Evaluate a statement without reductions into an array.

    Args:
        first: as for :func:`evaluate_statement`.
        spent: the number of an operand that is ``out``, and overwritten.

    >>> less = Statement("D", "ij", ("ij", "j"), ("A", "x"), "x0 - x1")
    >>> A = np.eye(2)
    >>> map_into(less, [A, np.array([3.0, 4.0])], A, spent=0)
    >>> A.tolist()
    [[-2.0, -4.0], [-3.0, -3.0]]
    """
    names = _names_of(statement, operands, first or {}, {})
    body_into(statement.body, names, out, "" if spent is None else operand_name(spent))


def _names_of(
    statement: Statement,
    operands: Sequence[Array],
    first: Mapping[str, int],
    steps: Mapping[str, int],
) -> dict[str, Any]:
    """The names of a body: arrays that broadcast to the shape of all indices."""
    indices = statement.indices
    names: dict[str, Any] = {
        operand_name(p): _aligned(array, term, indices)
        for p, (term, array) in enumerate(zip(statement.inputs, operands, strict=True))
    }
    if used := statement.counted_indices:
        shape = statement.shape_of(operands, indices)
        counts = zip(indices, np.indices(shape, sparse=True), strict=True)
        names |= {
            i: count * steps.get(i, 1) + first.get(i, 0)
            for i, count in counts
            if i in used
        }
    return {**CONSTANTS, **names}


def einsum_of(
    statement: Statement,
    shapes: Sequence[Sequence[Any]],
    dtypes: Sequence[np.dtype[Any]],
    names: Sequence[str] | None = None,
) -> BatchedEinsum:
    """A sum of products as an einsum of arrays of these shapes.

    Args:
        names: names of its operands; by default derived from their positions.
    """
    given = names or [operand_name(p) for p in range(len(shapes))]
    row = tuple(
        Operand(name, tuple(shape), dtype)
        for name, shape, dtype in zip(given, shapes, dtypes, strict=True)
    )
    return BatchedEinsum(statement.output, statement.inputs, (row,))


def checked_arrays(program: Program, arrays: Mapping[str, Any]) -> Mapping[str, Array]:
    """The given arrays, checked against the inputs of the program.

    Raises:
        ProgramError: describing the first one that does not match.
    """
    sizes: dict[str, int] = {}
    if unknown := sorted(set(arrays) - {operand.name for operand in program.inputs}):
        known = ", ".join(operand.name for operand in program.inputs)
        raise ProgramError(f"the program has no input {unknown[0]!r}; it has {known}")
    found: dict[str, Array] = {}
    for operand in program.inputs:
        if operand.name not in arrays:
            raise ProgramError(f"input {operand} is missing")
        array = found[operand.name] = np.asarray(arrays[operand.name])
        expected = tuple(
            sizes.setdefault(extent.name, given)
            if isinstance(extent, SizeParam)
            else extent
            for extent, given in zip(operand.shape, array.shape, strict=False)
        )
        if array.shape != expected or array.ndim != operand.rank:
            raise ProgramError(
                f"input {operand.name!r} has shape {array.shape}, expected {operand}"
            )
        if array.dtype != operand.dtype:
            raise ProgramError(
                f"input {operand.name!r} has dtype {array.dtype}, expected "
                f"{operand.dtype}"
            )
    return found


def _aligned(array: Array, term: IndexList, indices: IndexList) -> Array:
    """With one axis for each index of a statement, of extent one where it has none."""
    distinct, order, place = _alignment(term, indices)
    if len(distinct) < len(term):
        number = {index: k for k, index in enumerate(distinct)}
        array = np.einsum(array, [number[i] for i in term], [*range(len(distinct))])
    turned: Array = array.transpose(order)[place]
    return turned


@lru_cache(maxsize=1024)
def _alignment(
    term: IndexList, indices: IndexList
) -> tuple[IndexList, tuple[int, ...], tuple[slice | None, ...]]:
    """The distinct indices of a term, their order in a statement, and new axes."""
    distinct = tuple(dict.fromkeys(term))
    order = sorted(range(len(distinct)), key=lambda k: indices.index(distinct[k]))
    place = tuple(slice(None) if i in distinct else None for i in indices)
    return distinct, tuple(order), place


def _is_plain(statement: Statement, operands: Sequence[Array]) -> bool:
    """Whether numpy's einsum computes it: of booleans that is no sum."""
    if len(operands) == 1:  # numpy reduces one array with less ado
        return False
    kinds = {array.dtype.kind for array in operands}
    is_exact = statement.factor == 1 or kinds <= {"f", "c"}
    return statement.is_einsum and is_exact and "b" not in kinds
