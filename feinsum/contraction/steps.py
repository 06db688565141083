"""An einsum as a flat list of steps, each of one or two arrays.

Along the path (0, 1), (0, 1), ``ab,bc,cd->ad`` has the steps ::

    0: ab, 1: bc  ->  3: ac
    2: cd, 3: ac  ->  4: ad

Sums over indices of a single operand come first, since they make it smaller. The steps
depend on the subscripts and the path, but not on extents: they are found once, and run
often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from feinsum.contraction.by_numpy import compute_shape, evaluate_by_numpy
from feinsum.contraction.pairwise import (
    DTYPES,
    IDENTITY,
    IS_BUILT,
    MAX_INDICES,
    SHORT_BYTES,
    Affine,
    contract,
    contract_pair,
    encode_indices,
)
from feinsum.result_memory import LARGE_BYTES, make_aligned
from feinsum.threads import get_n_threads

if TYPE_CHECKING:
    from feinsum.subscripts import IndexList

SHORT = 20_000
"""Multiplications of ``numpy.einsum`` that take as long as preparing a BLAS call."""

Arrays = Sequence[Any]


@dataclass(frozen=True)
class Step:
    """A step that replaces one or two arrays by their product or sum.

    Attributes:
        operands: the numbers of the arrays; each array is used once.
        inputs: their indices.
        output: the indices of the result.
    """

    operands: tuple[int, ...]
    inputs: tuple[IndexList, ...]
    output: IndexList


def find_steps(
    inputs: Sequence[Iterable[Any]],
    output: Iterable[Any],
    path: Sequence[Sequence[int]] | None = None,
    *,
    is_pairwise: bool = True,
    has_sums_first: bool = True,
) -> tuple[Step, ...]:
    """Return the steps of an einsum along a path.

    The result of step ``k`` has number ``len(inputs) + k``.

    Args:
        inputs: indices of each operand.
        output: indices of the result.
        path: positions among the arrays left, as of opt_einsum; by default from left to
            right.
        is_pairwise: whether a step of three or more arrays becomes steps of two, in
            this order, and indices of results are in the order batch, rows, columns;
            otherwise they are in the order of first use.
        has_sums_first: whether operands are first summed over indices of no other one.

    >>> [step.output for step in find_steps(["ij", "jk", "kl"], "il", ((1, 2), (0, 1)))]
    [('j', 'l'), ('i', 'l')]
    """
    result = tuple(output)
    uses = Counter(index for term in (*inputs, result) for index in {*term})
    arrays_left = [(number, tuple(term)) for number, term in enumerate(inputs)]
    steps: list[Step] = []

    def add(arrays: Sequence[tuple[int, IndexList]]) -> tuple[int, IndexList]:
        terms = tuple(term for _, term in arrays)
        for term in terms:
            uses.subtract({*term})
        indices = dict.fromkeys(i for term in terms for i in term)
        needed = [i for i in indices if uses[i] > 0]
        product = _order_indices(needed, terms) if is_pairwise else tuple(needed)
        uses.update(product)
        steps.append(Step(tuple(number for number, _ in arrays), terms, product))
        return len(inputs) + len(steps) - 1, product

    def without_lone_sums(array: tuple[int, IndexList]) -> tuple[int, IndexList]:
        _, term = array
        is_alone = any(uses[index] == 1 for index in term)
        return add([array]) if is_alone or len({*term}) < len(term) else array

    if has_sums_first and len(inputs) > 1:
        arrays_left = [without_lone_sums(x) for x in arrays_left]
    for chosen in path or [(0, 1)] * (len(inputs) - 1):
        arrays = [arrays_left[position] for position in chosen]
        arrays_left = [
            x for position, x in enumerate(arrays_left) if position not in chosen
        ]
        if is_pairwise:
            product = arrays[0]
            for factor in arrays[1:]:
                product = add([product, factor])
        else:
            product = add(arrays)
        arrays_left.append(product)
    # the last result has the order of indices that the caller needs
    last = steps.pop() if steps else Step((0,), (arrays_left[0][1],), result)
    return (*steps, Step(last.operands, last.inputs, result))


class ProductIndices(NamedTuple):
    """The roles of indices in a stack of matrix products.

    Attributes:
        batch: indices of both operands and the result.
        rows: indices of the first operand alone.
        columns: indices of the second operand alone.
        summed: indices of both operands that the result lacks.
    """

    batch: frozenset[str]
    rows: frozenset[str]
    columns: frozenset[str]
    summed: frozenset[str]


def classify_indices(
    left: Iterable[str], right: Iterable[str], output: Iterable[str]
) -> ProductIndices:
    """Classify the indices of a product of two operands by their roles.

    >>> [*map(sorted, classify_indices("bik", "bkj", "bij"))]
    [['b'], ['i'], ['j'], ['k']]
    """
    first, second, result = frozenset(left), frozenset(right), frozenset(output)
    shared = first & second
    return ProductIndices(
        shared & result, first - second, second - first, shared - result
    )


def _order_indices(indices: Sequence[str], terms: Sequence[IndexList]) -> IndexList:
    """Order indices as in a product of matrices: batch, rows, columns."""
    first, second = (*terms, ())[:2]
    *kinds, _ = classify_indices(first, second, indices)
    return tuple(index for kind in kinds for index in indices if index in kind)


class PlannedStep(NamedTuple):
    """A step for arrays of known shapes.

    Attributes:
        operands: the operands of the step.
        indices: encoded indices for the kernel; None if numpy computes the step.
        shape: shape of the result.
        dtype: dtype of the result.
        threads: threads of the kernel; 0 for all.
        step: the step.
    """

    operands: tuple[int, ...]
    indices: bytes | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    threads: int
    step: Step


def plan_steps(steps: Sequence[Step], arrays: Arrays) -> tuple[PlannedStep, ...]:
    """Choose between kernel and numpy for each step and these arrays."""
    values = [(a.shape, a.dtype, _is_readable(a)) for a in arrays]
    plan = []
    for step in steps:
        operands = [values[number] for number in step.operands]
        shapes = [shape for shape, _, _ in operands]
        shape = compute_shape(step.inputs, step.output, shapes)
        dtype = np.result_type(*(dtype for _, dtype, _ in operands))
        indices, threads = None, 0
        if _is_for_kernel(step, operands):
            second = step.inputs[1] if len(operands) == 2 else ()
            indices = encode_indices(step.inputs[0], second, step.output)
            n_entries = sum(prod(shape) for shape in (shape, *(x[0] for x in operands)))
            threads = int(n_entries * dtype.itemsize < SHORT_BYTES)
        plan.append(PlannedStep(step.operands, indices, shape, dtype, threads, step))
        values.append(
            # a view of an operand has its strides, which the kernel may not support
            (shape, dtype, all(is_readable for _, _, is_readable in operands))
        )
    return tuple(plan)


def run_steps(steps: Sequence[Step], arrays: Arrays) -> Any:
    """Evaluate steps for arrays of one dtype; axes of extent 1 are broadcast.

    Returns:
        A new array in C order; for a single array without a sum, a view of it.
    """
    return run_plan(plan_steps(steps, arrays), arrays)


def run_plan(plan: Sequence[PlannedStep], arrays: Arrays) -> Any:
    """Run a plan made for arrays with these shapes, dtypes and strides."""
    values: list[Any] = [*arrays]
    for operands, indices, shape, dtype, threads, step in plan:
        if indices is None:
            step_operands = [values[number] for number in operands]
            value = _evaluate_by_numpy(step, step_operands, shape, dtype)
        else:
            first = values[operands[0]]
            second = values[operands[1]] if len(operands) == 2 else np.ones((), dtype)
            value = make_aligned(shape, dtype)
            contract(
                indices,
                first,
                second,
                value,
                threads or get_n_threads(),
            )
        for number in operands:
            values[number] = None  # frees intermediates
        values.append(value)
    return values[-1]


def contract_into(
    out: Any,
    step: Step,
    arrays: Arrays,
    functions: tuple[Affine, Affine] = (IDENTITY, IDENTITY),
) -> None:
    """Write the result of a step of two arrays to one that overlaps neither.

    Args:
        out: the result, of the dtype of the arrays, which is one of :data:`DTYPES`.
        step: the step.
        arrays: its two operands.
        functions: of the entries of real operands, which are contracted in their place.

    >>> out = np.empty(2)
    >>> (step,) = find_steps(["ij", "j"], "i")
    >>> contract_into(out, step, [np.eye(2), np.array([1.0, 2.0])])
    >>> out
    array([1., 2.])
    """
    if IS_BUILT and all(_is_readable(array) for array in (*arrays, out)):
        first, second = step.inputs
        indices = encode_indices(first, second, step.output)
        contract_pair(indices, arrays[0], arrays[1], out, functions)
    else:
        arrays = [
            x if f == IDENTITY else x.dtype.type(f.scale) * x + x.dtype.type(f.shift)
            for x, f in zip(arrays, functions, strict=True)
        ]
        evaluate_by_numpy(step.inputs, step.output, arrays, is_blas=True, out=out)


def _is_for_kernel(
    step: Step, operands: Sequence[tuple[tuple[int, ...], np.dtype[Any], bool]]
) -> bool:
    """Return whether the kernel supports the arrays: two, or one that is summed."""
    _, dtype, _ = operands[0]
    if not IS_BUILT or len(operands) > 2 or dtype not in DTYPES:
        return False
    indices = {index for term in step.inputs for index in term}
    if len(operands) == 1 and len(indices) == len(step.output):
        return False  # a view
    if len(operands) == 1 and dtype.kind == "c":
        return False  # the kernel would multiply by 1, and an infinity by 0j
    return len(indices) <= MAX_INDICES and all(
        other == dtype and is_readable for _, other, is_readable in operands
    )


def _is_readable(array: Any) -> bool:
    flags, size = array.flags, array.itemsize
    # numpy may give axes of extent 1 any stride, which nothing uses
    if flags.c_contiguous:
        return bool(flags.aligned)
    # the kernel counts strides in entries
    return bool(flags.aligned) and not any(step % size for step in array.strides)


def _evaluate_by_numpy(
    step: Step, operands: Arrays, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Any:
    """Evaluate a step with numpy, by BLAS if the step is long enough."""
    if len(operands) == 1:
        return evaluate_by_numpy(step.inputs, step.output, operands)
    out = None
    if prod(shape) * dtype.itemsize >= LARGE_BYTES and dtype.kind in "fciu":
        out = make_aligned(shape, dtype)
    extents = {i: n for t, a in zip(step.inputs, operands, strict=True)
               for i, n in zip(t, a.shape, strict=True)}  # fmt: skip
    is_blas = prod(extents.values()) >= SHORT
    return evaluate_by_numpy(
        step.inputs, step.output, operands, is_blas=is_blas, out=out
    )
