"""The meaning of einsums and programs: the reference evaluator, in numpy.

A row of an einsum is one call of ``numpy.einsum``. A statement of a program evaluates
its body on arrays that broadcast to all indices, and then reduces some axes::

    M[i] = max x0 - x1 : A[i,j], x[j]      x0: shape (n_i, n_j)      body: (n_i, n_j)
                                           x1: shape (1, n_j)        M = max over j

Source: paper, equation 1 and the definition of a batched einsum (section 4); EinDecomp,
section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from feinsum.contraction.by_numpy import MAX_LETTERS
from feinsum.contraction.paths import contract_greedily
from feinsum.dtypes import get_sum_dtype
from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir.einsums import BatchedEinsum
from feinsum.ir.expression_values import evaluate_body, evaluate_into
from feinsum.ir.expressions import get_operand_name
from feinsum.ir.numpy_calls import evaluate_numpy
from feinsum.ir.operand import Operand, SizeParam
from feinsum.ir.program import CONSTANTS, Program
from feinsum.ir.reductions import reduce_axes
from feinsum.ir.statement import Statement
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
    # refuses missing arrays and shapes that do not fit, by name
    bind_sizes(einsum, {name: np.shape(value) for name, value in arrays.items()})
    for operand in einsum.operands:
        dtype = np.asarray(arrays[operand.name]).dtype
        if dtype != operand.dtype:
            raise InvalidEinsumError(
                f"array {operand.name!r} has dtype {dtype}, expected {operand.dtype}",
                rules=("dtype",),
            )
    return tuple(
        # converted to the result's dtype: numpy multiplies integers in their own dtype
        _evaluate_row(
            einsum,
            [np.array(arrays[op.name], get_sum_dtype(dtype)) for op in row],
            optimize,
        ).astype(dtype, copy=False)
        for row, dtype in zip(einsum.rows, einsum.output_dtypes, strict=True)
    )


def bind_sizes(
    einsum: BatchedEinsum, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """Return the value of every size parameter, from the shapes of the operands.

    Raises:
        InvalidEinsumError: with the rule ``shape``.
    """
    sizes: dict[str, int] = {}
    for operand in einsum.operands:
        shape = shapes.get(operand.name)
        if shape is None or len(shape) != operand.rank:
            problem = "is missing" if shape is None else f"has shape {shape}"
            raise InvalidEinsumError(
                f"array {operand.name!r} {problem}, expected {operand}",
                rules=("shape",),
            )
        for axis, (expected, extent) in enumerate(
            zip(operand.shape, shape, strict=True)
        ):
            if isinstance(expected, SizeParam):
                value = sizes.setdefault(expected.name, extent)
            else:
                value = expected
            if value != extent:
                raise InvalidEinsumError(
                    f"axis {axis} of array {operand.name!r} has extent {extent}, "
                    f"expected {expected} = {value}",
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
    if len(number) > MAX_LETTERS:
        return np.asarray(contract_greedily(*args, output))
    return np.asarray(np.einsum(*args, output, optimize=optimize))


def evaluate_program(
    program: Program, arrays: Mapping[str, Any]
) -> Mapping[str, Array]:
    """Evaluate a program statement by statement.

    Args:
        program: the program.
        arrays: for each input's name an array of its shape and dtype.

    Returns:
        The outputs by name.

    Raises:
        ProgramError: if an array is missing or has the wrong shape or dtype.

    >>> from feinsum.ir import array
    >>> rows = Statement("S", ("i",), (("i", "j"),), ("X",), "exp(x0)")
    >>> program = Program((array("X", (2, 2)),), (rows,), ("S",))
    >>> evaluate_program(program, {"X": np.zeros((2, 2))})["S"].tolist()
    [2.0, 2.0]
    """
    checked, _ = check_arrays(program, arrays)
    values = dict(checked)
    for statement in program.statements:
        operands = [values[name] for name in statement.operands]
        result = evaluate_statement(statement, operands)
        values[statement.result] = result.astype(
            program.arrays[statement.result].dtype, copy=False
        )
    return {name: values[name] for name in program.outputs}


def evaluate_statement(
    statement: Statement,
    operands: Sequence[Array],
    first: Mapping[str, int] | None = None,
    steps: Mapping[str, int] | None = None,
) -> Array:
    """Return the result of one statement.

    Args:
        statement: the statement.
        operands: the arrays that it reads, in order.
        first: the first value of each index, if the operands are parts of arrays.
        steps: the step between consecutive values of each index; by default 1.

    >>> best = Statement("M", ("i",), (("i", "j"), ("j",)), ("A", "x"), reduction="max")
    >>> evaluate_statement(best, [np.eye(2), np.array([3.0, 4.0])]).tolist()
    [3.0, 4.0]
    """
    if statement.is_numpy:
        return evaluate_numpy(statement.body, operands)
    # sums of products go to BLAS; all else needs the products in memory
    if _is_plain(statement, operands):
        arrays = {get_operand_name(p): array for p, array in enumerate(operands)}
        shapes = [array.shape for array in operands]
        dtypes = [array.dtype for array in operands]
        (result,) = evaluate(
            convert_to_einsum(statement, shapes, dtypes), arrays, optimize=True
        )
        return result if statement.factor == 1 else result * statement.factor
    names = _bind_names(statement, operands, first or {}, steps or {})
    shape = statement.shape_of(operands, statement.indices)
    # reduced indices come last among the indices of a statement
    axes = [*range(len(statement.output), len(shape))]
    values = np.broadcast_to(np.asarray(evaluate_body(statement.body, names)), shape)
    return reduce_axes(statement.reduction, values, axes) if axes else np.array(values)


def map_into(
    statement: Statement,
    operands: Sequence[Array],
    out: Array,
    first: Mapping[str, int] | None = None,
    spent: int | None = None,
) -> None:
    """Evaluate a statement without reductions into an array, which may be an operand.

    ``spent`` is the number of the operand that has the memory of ``out``. For
    ``first``, see :func:`evaluate_statement`.

    >>> less = Statement("D", "ij", ("ij", "j"), ("A", "x"), "x0 - x1")
    >>> A = np.eye(2)
    >>> map_into(less, [A, np.array([3.0, 4.0])], A, spent=0)
    >>> A.tolist()
    [[-2.0, -4.0], [-3.0, -3.0]]
    """
    names = _bind_names(statement, operands, first or {}, {})
    evaluate_into(
        statement.body, names, out, "" if spent is None else get_operand_name(spent)
    )


def _bind_names(
    statement: Statement,
    operands: Sequence[Array],
    first: Mapping[str, int],
    steps: Mapping[str, int],
) -> dict[str, Any]:
    """Return the values of the names in a body, which broadcast over all indices."""
    indices = statement.indices
    names: dict[str, Any] = {
        get_operand_name(p): _align(array, term, indices)
        for p, (term, array) in enumerate(zip(statement.inputs, operands, strict=True))
    }
    # bodies such as "x0 if t <= s else 0" compare indices as numbers
    if used := statement.counted_indices:
        shape = statement.shape_of(operands, indices)
        counts = zip(indices, np.indices(shape, sparse=True), strict=True)
        names |= {
            i: count * steps.get(i, 1) + first.get(i, 0)
            for i, count in counts
            if i in used
        }
    return {**CONSTANTS, **names}


def convert_to_einsum(
    statement: Statement,
    shapes: Sequence[Sequence[Any]],
    dtypes: Sequence[np.dtype[Any]],
    names: Sequence[str] | None = None,
) -> BatchedEinsum:
    """Convert a statement that sums products to an einsum of arrays of these shapes.

    By default, operands are named after their positions.
    """
    operand_names = names or [get_operand_name(p) for p in range(len(shapes))]
    row = tuple(
        Operand(name, tuple(shape), dtype)
        for name, shape, dtype in zip(operand_names, shapes, dtypes, strict=True)
    )
    return BatchedEinsum(statement.output, statement.inputs, (row,))


def check_arrays(
    program: Program, arrays: Mapping[str, Any]
) -> tuple[Mapping[str, Array], Mapping[str, int]]:
    """Return the inputs of the program, and the values of its size parameters.

    Raises:
        ProgramError: describing the first array that does not match.
    """
    sizes: dict[str, int] = {}
    if unknown := sorted(set(arrays) - {operand.name for operand in program.inputs}):
        names = ", ".join(operand.name for operand in program.inputs)
        raise ProgramError(f"the program has no input {unknown[0]!r}; it has {names}")
    checked: dict[str, Array] = {}
    for operand in program.inputs:
        if operand.name not in arrays:
            raise ProgramError(f"input {operand} is missing")
        try:
            array = checked[operand.name] = np.asarray(arrays[operand.name])
        except TypeError as error:  # of arrays on a GPU
            raise ProgramError(
                f"input {operand.name!r} is not converted to numpy: {error}; pass an "
                "array on the host"
            ) from None
        expected = tuple(
            sizes.setdefault(extent.name, actual)
            if isinstance(extent, SizeParam)
            else extent
            # not strict: another rank is refused below
            for extent, actual in zip(operand.shape, array.shape, strict=False)
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
    return checked, sizes


def _align(array: Array, term: IndexList, indices: IndexList) -> Array:
    """Give an array one axis per index of a statement; missing ones have extent 1."""
    distinct, order, new_axes = _find_alignment(term, indices)
    # a repeated index reads the diagonal
    if len(distinct) < len(term):
        number = {index: k for k, index in enumerate(distinct)}
        array = np.einsum(array, [number[i] for i in term], [*range(len(distinct))])
    aligned: Array = array.transpose(order)[new_axes]
    return aligned


@lru_cache(maxsize=1024)
def _find_alignment(
    term: IndexList, indices: IndexList
) -> tuple[IndexList, tuple[int, ...], tuple[slice | None, ...]]:
    """Return the distinct indices of a term, their order, and the index of new axes."""
    distinct = tuple(dict.fromkeys(term))
    order = sorted(range(len(distinct)), key=lambda k: indices.index(distinct[k]))
    new_axes = tuple(slice(None) if i in distinct else None for i in indices)
    return distinct, tuple(order), new_axes


def _is_plain(statement: Statement, operands: Sequence[Array]) -> bool:
    """Return whether numpy's einsum computes the statement, which booleans rule out."""
    if len(operands) == 1:  # a plain reduction has less overhead
        return False
    kinds = {array.dtype.kind for array in operands}
    # a factor such as 0.5 would turn integers into floats after the sum
    is_exact = statement.factor == 1 or kinds <= {"f", "c"}
    return statement.is_einsum and is_exact and "b" not in kinds
