"""What einsums and programs mean: the reference evaluator, in numpy.

Source: paper, equation 1 and the definition of a batched einsum (section 4); EinDecomp,
section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir.einsum import BatchedEinsum
from feinsum.ir.expression_values import body_into, body_value
from feinsum.ir.expressions import operand_name
from feinsum.ir.numpy_calls import numpy_value
from feinsum.ir.operand import Operand, SizeParam
from feinsum.ir.program import CONSTANTS, Program
from feinsum.ir.reductions import reduced
from feinsum.ir.statement import Statement
from feinsum.paths import contract_greedily
from feinsum.subscripts import IndexList

Array = np.ndarray[Any, np.dtype[Any]]


def evaluate(
    einsum: BatchedEinsum, arrays: Mapping[str, Any], *, optimize: bool = False
) -> tuple[Array, ...]:
    """Evaluate all rows of an einsum with numpy: the reference.

    Args:
        einsum: the einsum to evaluate.
        arrays: arrays by operand name, with the operands' shapes and dtypes.
        optimize: contract pairwise in a cheap order instead of evaluating the
            definition term by term; results are equal up to rounding.

    Returns:
        One new array per row, of shape ``einsum.output_shape`` and of the row's
        dtype in ``einsum.output_dtypes``.

    Raises:
        InvalidEinsumError: if an array is missing or has another shape or dtype.

    >>> from feinsum.ir.build import array, einsum
    >>> e = einsum("ij,j->i", array("A", (2, 2)), array("x", 2))
    >>> evaluate(e, {"A": np.eye(2), "x": np.array([3.0, 4.0])})[0].tolist()
    [3.0, 4.0]
    """
    if not isinstance(arrays, Mapping):
        raise InvalidEinsumError(
            f"expected arrays by name, got {type(arrays).__name__}", rules=("shape",)
        )
    bind_sizes(einsum, {name: np.shape(value) for name, value in arrays.items()})
    for operand in einsum.operands:
        given = np.asarray(arrays[operand.name]).dtype
        if given != operand.dtype:
            raise InvalidEinsumError(
                f"array {operand.name!r} has dtype {given}, expected {operand.dtype}",
                rules=("dtype",),
            )
    return tuple(
        _evaluate_row(
            einsum, [np.array(arrays[op.name], dtype) for op in row], optimize
        )
        for row, dtype in zip(einsum.rows, einsum.output_dtypes, strict=True)
    )


def bind_sizes(
    einsum: BatchedEinsum, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """The value of every size parameter, from the shapes of the operands.

    Raises:
        InvalidEinsumError: with the rule ``shape``.
    """
    sizes: dict[str, int] = {}
    for operand in einsum.operands:
        shape = shapes.get(operand.name)
        if shape is None or len(shape) != operand.rank:
            what = "is missing" if shape is None else f"has shape {shape}"
            raise InvalidEinsumError(
                f"array {operand.name!r} {what}, expected {operand}", rules=("shape",)
            )
        for axis, (expected, given) in enumerate(
            zip(operand.shape, shape, strict=True)
        ):
            if isinstance(expected, SizeParam):
                known = sizes.setdefault(expected.name, given)
            else:
                known = expected
            if known != given:
                raise InvalidEinsumError(
                    f"axis {axis} of array {operand.name!r} has extent {given}, "
                    f"expected {expected} = {known}",
                    rules=("shape",),
                )
    return sizes


def _evaluate_row(
    einsum: BatchedEinsum, operands: list[Array], optimize: bool
) -> Array:
    number = {index: k for k, index in enumerate(einsum.indices)}
    args: list[Any] = []
    for term, operand in zip(einsum.inputs, operands, strict=True):
        args += [operand, [number[index] for index in term]]
    output = [number[index] for index in einsum.output]
    if len(number) > 52:  # numpy's own limit on numbered indices
        return np.asarray(contract_greedily(*args, output))
    return np.asarray(np.einsum(*args, output, optimize=optimize))


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
