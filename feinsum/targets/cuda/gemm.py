"""Products of stacks of matrices, with the arguments of BLAS.

BLAS expects matrices in Fortran's order. A matrix in C order is the transposed matrix
in Fortran's order, so ``C = A @ B`` in C order is computed as ``C.T = B.T @ A.T``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

ANY = 0
"""The stride of an axis with one value."""


@dataclass(frozen=True)
class Gemm:
    """``out[b,i,j] = sum(left[b,i,k] * right[b,k,j])``.

    Attributes:
        sizes: numbers of values of b, i, j and k.
        left, right, out: strides in entries, in the order of the subscripts. The second
            stride of ``out`` is 1: its matrices are in Fortran's order.
        is_swapped: whether the left matrices are those of the second operand.
    """

    sizes: tuple[int, int, int, int]
    left: tuple[int, int, int]
    right: tuple[int, int, int]
    out: tuple[int, int, int]
    is_swapped: bool

    @cached_property
    def flags(self) -> tuple[bool, bool]:
        """Whether BLAS has to transpose left, and right."""
        return self.left[1] not in (1, ANY), self.right[1] not in (1, ANY)

    @property
    def leads(self) -> tuple[int, int, int]:
        """Leading dimensions of left, right and out."""
        _, m, n, k = self.sizes
        is_left_transposed, is_right_transposed = self.flags
        return (
            # BLAS checks leading dimensions even if a single column does not use them
            max(
                self.left[1 if is_left_transposed else 2],
                k if is_left_transposed else m,
                1,
            ),
            max(
                self.right[1 if is_right_transposed else 2],
                n if is_right_transposed else k,
                1,
            ),
            max(self.out[2], m, 1),
        )

    @property
    def numbers(self) -> tuple[int, ...]:
        """The integers that BLAS expects for a stack, in its order.

        These are two flags, m, n and k, leading dimension and step of left, right and
        out, and the number of products.
        """
        b, m, n, k = self.sizes
        lda, ldb, ldc = self.leads
        return (
            *map(int, self.flags), m, n, k,
            lda, self.left[0], ldb, self.right[0], ldc, self.out[0], b,
        )  # fmt: skip

    def split(self, n_parts: int) -> Gemm:
        """Split the sum into parts; return the products to be added, one matrix each.

        Args:
            n_parts: number of parts; divides the length of the sum.
        """
        _, m, n, k = self.sizes
        part_length = k // n_parts
        return replace(
            self,
            sizes=(n_parts, m, n, part_length),
            left=(self.left[2] * part_length, *self.left[1:]),
            right=(self.right[1] * part_length, *self.right[1:]),
            out=(m * n, *self.out[1:]),
        )

    def arguments(self, *, is_stack: bool) -> Callable[..., tuple[int, ...]]:
        """Return the arguments of BLAS after its handle.

        They are a function of the addresses of 1, 0, left, right and out.

        Args:
            is_stack: whether the function multiplies a stack of matrices, or single
                ones.
        """
        *head, lda, left_step, ldb, right_step, ldc, out_step, b = self.numbers
        if not is_stack:
            return lambda unit, zero, left, right, out: (
                *head, unit, left, lda, right, ldb, zero, out, ldc
            )  # fmt: skip
        return lambda unit, zero, left, right, out: (
            *head, unit, left, lda, left_step, right, ldb, right_step,
            zero, out, ldc, out_step, b,
        )  # fmt: skip


def multiply_reference(gemm: Gemm, left: Any, right: Any, out: Any) -> None:
    """Multiply flat arrays of numpy: the reference for a product."""
    b, m, n, k = gemm.sizes
    shapes = (b, m, k), (b, k, n), (b, m, n)
    # with the addresses and strides that BLAS gets, so that tests notice wrong ones
    views = [
        np.lib.stride_tricks.as_strided(
            array, shape, [stride * array.itemsize for stride in strides]
        )
        for array, shape, strides in zip(
            (left, right, out), shapes, (gemm.left, gemm.right, gemm.out), strict=True
        )
    ]
    np.matmul(views[0], views[1], out=views[2])
