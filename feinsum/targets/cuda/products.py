"""Products of matrices that cuBLAS computes between the launches of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pymbolic.mapper.evaluator import evaluate
from pytools.tag import Tag

__all__ = ["BlasCall", "MatrixProduct"]


class BlasCall(NamedTuple):
    """Sizes of a strided batched product, in the order in which cuBLAS takes them.

    Its matrices are in Fortran's order, in which those of C are transposed: the right
    matrix comes first. ``turn`` is 1 for a matrix that is to be transposed; ``ld`` and
    ``step`` are from a column to the next one, and from a product to the next one.
    """

    turn_first: int
    turn_second: int
    m: int
    n: int
    k: int
    ld_first: int
    step_first: int
    ld_second: int
    step_second: int
    ld_result: int
    step_result: int
    n_products: int


@dataclass(frozen=True)
class MatrixProduct(Tag):  # type: ignore[misc]
    """``result[s] = left[s] @ right[s]``, in the place of a statement of a kernel.

    Attributes:
        left, right, result: arrays, which are stacks of matrices in C order.
        sizes: in terms of the kernel: values of s, rows, columns, and terms of a sum.
        are_turned: whether the matrices of left and right are stored transposed.
        are_single: whether left and right are the same matrix for all s.
    """

    left: str
    right: str
    result: str
    sizes: tuple[Any, Any, Any, Any]
    are_turned: tuple[bool, bool]
    are_single: tuple[bool, bool]

    def call(self, scalars: Mapping[str, int]) -> BlasCall:
        """For the values of the scalars.

        >>> whole, turned = (False, False), (False, True)
        >>> MatrixProduct("A", "B", "C", (1, 2, 3, 4), turned, whole).call({})[:7]
        (1, 0, 3, 2, 4, 4, 12)
        """
        n_products, rows, columns, summed = (
            int(evaluate(size, dict(scalars))) for size in self.sizes
        )
        left, right = self.are_turned
        steps = [
            0 if is_single else length * summed
            for length, is_single in zip((rows, columns), self.are_single, strict=True)
        ]
        return BlasCall(
            int(right), int(left), columns, rows, summed,
            summed if right else columns, steps[1],
            rows if left else summed, steps[0],
            columns, rows * columns, n_products,
        )  # fmt: skip
