"""Products of matrices that cuBLAS computes between the launches of a kernel.

This is a separate module, because Loopy's cache on disk refers to it by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pymbolic.mapper.evaluator import evaluate
from pytools.tag import Tag

from feinsum.targets.cuda.gemm import Gemm


@dataclass(frozen=True)
class MatrixProduct(Tag):  # type: ignore[misc]
    """``result[s] = left[s] @ right[s]``, as a replacement for a statement of a kernel.

    The library makes a launch of its own; no other statement may be in this launch.

    Attributes:
        left, right, result: names of arrays, which are stacks of matrices in C order.
        sizes: numbers of values of s, rows, columns, and terms of a sum, as expressions
            of the kernel.
        are_turned: whether the matrices of left and right are stored transposed.
        are_single: whether left and right are the same matrix for all s.
    """

    left: str
    right: str
    result: str
    sizes: tuple[Any, Any, Any, Any]
    are_turned: tuple[bool, bool]
    are_single: tuple[bool, bool]

    code = "/* cuBLAS multiplies */;"

    @property
    def read_names(self) -> frozenset[str]:
        return frozenset({self.left, self.right})

    @property
    def written_array(self) -> str:
        return self.result

    def gemm(self, scalars: Mapping[str, int]) -> Gemm:
        """Return the call of BLAS for the values of the scalars.

        The operands are exchanged: see :mod:`feinsum.targets.cuda.gemm`.

        >>> whole, turned = (False, False), (False, True)
        >>> MatrixProduct("A", "B", "C", (1, 2, 3, 4), turned, whole).gemm({}).left
        (12, 4, 1)
        """
        n_products, rows, columns, summed = (
            int(evaluate(size, dict(scalars))) for size in self.sizes
        )
        # a step of 0, if all products have the same matrix
        left_steps, right_steps = (
            0 if is_single else length * summed
            for length, is_single in zip((rows, columns), self.are_single, strict=True)
        )
        left_is_turned, right_is_turned = self.are_turned
        return Gemm(
            (n_products, columns, rows, summed),
            (right_steps, *((summed, 1) if right_is_turned else (1, columns))),
            (left_steps, *((rows, 1) if left_is_turned else (1, summed))),
            (rows * columns, 1, columns),
            is_swapped=True,
        )
