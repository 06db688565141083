"""The meaning of a batched einsum: a reference evaluator in numpy.

Source: paper, equation 1 and the definition of a batched einsum (section 4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from feinsum.errors import InvalidEinsumError
from feinsum.ir.einsum import BatchedEinsum
from feinsum.ir.operand import SizeParam
from feinsum.paths import contract_greedily

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
