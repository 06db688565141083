"""An einsum as a flat list of steps, each of one or two arrays.

``ab,bc,cd->ad`` along the path (0, 1), (0, 1) is

    0: ab, 1: bc  ->  3: ac
    2: cd, 3: ac  ->  4: ad

Sums over indices of one operand alone come first, since they make it smaller. The steps
depend on the subscripts and the path, not on extents: they are found once and run
often.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from feinsum.contraction.by_numpy import einsum_by_numpy
from feinsum.contraction.pairwise import (
    DTYPES,
    IS_BUILT,
    MAX_INDICES,
    contract_pair,
    encode_indices,
)
from feinsum.targets.host.results import aligned_empty

if TYPE_CHECKING:
    from feinsum.ir import IndexList
    from feinsum.paths import Path

__all__ = ["Step", "find_steps", "run_steps"]

SHORT = 20_000
"""Multiplications that ``numpy.einsum`` does before it would know how to call BLAS."""

Arrays = Sequence[Any]


@dataclass(frozen=True)
class Step:
    """One or two arrays become one.

    Attributes:
        operands: the numbers of the arrays, of which each is used once.
        inputs, output: their indices, and those of the result.
    """

    operands: tuple[int, ...]
    inputs: tuple[IndexList, ...]
    output: IndexList

    @property
    def has_sum(self) -> bool:
        """Whether an index of the operands is not in the result."""
        return not {*self.output} >= set().union(*self.inputs)


def find_steps(
    inputs: Sequence[IndexList], output: IndexList, path: Path | None = None
) -> tuple[Step, ...]:
    """The steps of an einsum along a path; the result of step ``k`` has number
    ``len(inputs) + k``.

    Args:
        path: positions among the arrays left, as of opt_einsum; by default from left to
            right. A step of three arrays and more multiplies them in this order.
    """
    uses = Counter(index for term in (*inputs, output) for index in {*term})
    left = [(number, tuple(term)) for number, term in enumerate(inputs)]
    steps: list[Step] = []

    def add(arrays: Sequence[tuple[int, IndexList]]) -> tuple[int, IndexList]:
        terms = tuple(term for _, term in arrays)
        for term in terms:
            uses.subtract({*term})
        indices = dict.fromkeys(i for term in terms for i in term)
        kept = _in_order([i for i in indices if uses[i] > 0], terms)
        uses.update(kept)
        steps.append(Step(tuple(number for number, _ in arrays), terms, kept))
        return len(inputs) + len(steps) - 1, kept

    def without_lone_sums(array: tuple[int, IndexList]) -> tuple[int, IndexList]:
        _, term = array
        is_alone = any(uses[index] == 1 for index in term)
        return add([array]) if is_alone or len({*term}) < len(term) else array

    left = [without_lone_sums(x) for x in left] if len(inputs) > 1 else left
    for chosen in path or [(0, 1)] * (len(inputs) - 1):
        arrays = [left[at] for at in chosen]
        left = [x for at, x in enumerate(left) if at not in chosen]
        made = arrays[0]
        for other in arrays[1:]:
            made = add([made, other])
        left.append(made)
    (last,) = left
    if not steps or last[1] != tuple(output):
        if steps and len(steps[-1].inputs) == 2:
            steps[-1] = Step(steps[-1].operands, steps[-1].inputs, tuple(output))
        else:
            steps.append(Step((last[0],), (last[1],), tuple(output)))
    return tuple(steps)


def _in_order(kept: Sequence[str], terms: Sequence[IndexList]) -> IndexList:
    """The batch first, then the rows, then the columns: as a product of matrices."""
    return tuple(sorted(kept, key=lambda i: _group(i, terms)))


def _group(index: str, terms: Sequence[IndexList]) -> int:
    is_first, is_second = (index in term for term in (*terms, ())[:2])
    return 0 if is_first and is_second else 1 if is_first else 2


def run_steps(steps: Sequence[Step], arrays: Arrays) -> Any:
    """The result for arrays of one dtype; axes of extent 1 are broadcast.

    Returns:
        A new array in C order; for a single array without a sum, a view of it.
    """
    values: list[Any] = [*arrays]
    with np.errstate(all="ignore"):
        for step in steps:
            operands = [values[number] for number in step.operands]
            for number in step.operands:
                values[number] = None  # frees intermediates
            values.append(_run(step, operands))
    return values[-1]


def _run(step: Step, operands: Arrays) -> Any:
    if len(operands) == 2 and _is_for_kernel(step, operands):
        out = aligned_empty(_shape(step, operands), operands[0].dtype)
        indices = encode_indices(*step.inputs, step.output)
        contract_pair(indices, operands[0], operands[1], out)
        return out
    return _by_numpy(step, operands)


def _is_for_kernel(step: Step, operands: Arrays) -> bool:
    """Whether the kernel takes the arrays, and is not slower than numpy.

    Products without a sum of complex numbers, and products of complex matrices with
    vectors, fill a small part of its register tiles.
    """
    dtype = operands[0].dtype
    if not IS_BUILT or dtype not in DTYPES or operands[1].dtype != dtype:
        return False
    if dtype.kind == "c" and not (step.has_sum and _has_matrices(step, operands)):
        return False
    n_indices = len({*step.inputs[0], *step.inputs[1]})
    return n_indices <= MAX_INDICES and all(map(_is_readable, operands))


def _has_matrices(step: Step, operands: Arrays) -> bool:
    first, second = step.inputs
    rows = [n for i, n in zip(first, operands[0].shape, strict=True) if i not in second]
    columns = [
        n for i, n in zip(second, operands[1].shape, strict=True) if i not in first
    ]
    return max(rows, default=1) > 2 and max(columns, default=1) > 2


def _is_readable(array: Any) -> bool:
    flags, size = array.flags, array.itemsize
    if flags.c_contiguous:
        return bool(flags.aligned)
    return bool(flags.aligned) and not any(step % size for step in array.strides)


def _shape(step: Step, operands: Arrays) -> tuple[int, ...]:
    extents: dict[str, int] = {}
    for term, array in zip(step.inputs, operands, strict=True):
        for index, n in zip(term, array.shape, strict=True):
            if n != 1 or index not in extents:
                extents[index] = n
    return tuple(extents[index] for index in step.output)


def _by_numpy(step: Step, operands: Arrays) -> Any:
    """By BLAS, where numpy calls it and it is worth finding out how."""
    extents = {i: n for t, a in zip(step.inputs, operands, strict=True)
               for i, n in zip(t, a.shape, strict=True)}  # fmt: skip
    is_short = prod(extents.values()) < SHORT or len(operands) == 1
    return einsum_by_numpy(step.inputs, step.output, operands, is_blas=not is_short)
