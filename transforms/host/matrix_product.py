"""A row of an einsum as matrix products, which numpy computes by BLAS.

Operands that are functions, or arrays in another order, are evaluated into memory that
is kept between calls, by several threads, in boxes of few entries. Then numpy
multiplies whole matrices, or one block after the other, so that the evaluated entries
are still in the caches when BLAS reads them. With blocks of the rows of A::

    for block:  left = A(block)          threads evaluate boxes of the block
                sums = left @ right      BLAS
                out = shift + scale*sums

"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from feinsum.ir import Extent, IndexList, SizeParam
from feinsum.threads import count_cores
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.host.array_function import (
    Array,
    ArrayFunction,
    ArrayRead,
    Box,
)

SUM = "feinsum sum"
"""The name of a row's sum in expressions; no argument can have that name."""


@dataclass(frozen=True)
class MatrixOperand:
    """An operand as a stack of matrices.

    Attributes:
        function: its value.
        term: its indices.
        rows, columns: the indices of a matrix.
    """

    function: ArrayFunction
    term: IndexList
    rows: IndexList
    columns: IndexList


@dataclass(frozen=True)
class ProductRow:
    """A row of an einsum as a stack of matrix products.

    Attributes:
        left, right: the operands; the columns of the left one and the rows of the right
            one are the summed indices.
        result: the array to write, along the output indices.
        finish: the result as a function of the sum, which is named :data:`SUM`.
        stack: output indices with one product per value.
        index: the index that is cut into blocks; None for one block.
        block: its values per block.
        dtype: dtype of the operands.
    """

    left: MatrixOperand
    right: MatrixOperand
    result: ArrayRead
    finish: ArrayFunction
    stack: IndexList
    index: str | None
    block: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class LibraryProgram:
    """Products of matrices in place of a kernel, one after the other.

    Attributes:
        extents: the extent of each index in terms of the kernel.
    """

    products: tuple[ProductRow, ...]
    extents: Mapping[str, Extent]

    def run(self, values: Mapping[str, Any], scratch: dict[Any, Any]) -> None:
        sizes = {
            index: int(values[n.name]) if isinstance(n, SizeParam) else n
            for index, n in self.extents.items()
        }
        available = count_cores()
        for product in self.products:
            _Run(product, values, sizes, scratch).run_all_blocks(available)
            # BLAS's threads keep spinning for a while, and would compete for the cores
            available = 1


@dataclass(frozen=True)
class _Run:
    product: ProductRow
    values: Mapping[str, Any]
    sizes: Mapping[str, int]
    scratch: dict[Any, Any]

    def run_all_blocks(self, n_cores: int) -> None:
        """Compute all blocks; operands without the index of blocks are evaluated once.

        Args:
            n_cores: cores for evaluations before the first product. After it, BLAS's
                threads keep spinning, and one core has to do.
        """
        product = self.product
        evaluated: dict[str, Array] = {}
        for box in self._list_blocks():
            for name, side in (("left", product.left), ("right", product.right)):
                if name not in evaluated or product.index in side.term:
                    evaluated[name] = self._get_matrices(name, side, box, n_cores)
            self._multiply(evaluated["left"], evaluated["right"], box)
            n_cores = 1

    def _list_blocks(self) -> Iterator[Box]:
        index, block = self.product.index, self.product.block
        if index is None:
            yield {}
            return
        for start in range(0, self.sizes[index], block):
            yield {index: slice(start, min(start + block, self.sizes[index]))}

    def _get_matrices(
        self, name: str, side: MatrixOperand, box: Box, n_cores: int
    ) -> Array:
        """Return an operand as matrices, as a view of the array if possible."""
        product, function = self.product, side.function
        order = (*product.stack, *side.rows, *side.columns)
        lengths = (*[1] * len(product.stack), len(side.rows), len(side.columns))
        if function.read is not None:
            array = function.read.view(self.values, order, box)
            view = merge_axes(array, lengths)
            if array.dtype == product.dtype and view is not None and suits_blas(view):
                return view
        axes = tuple(index for index in order if index in side.term)
        memory = self._get_memory(name, self._get_shape(axes, box))

        def evaluate(piece: Box) -> None:
            target = _cut_piece(memory, axes, box, piece)
            function.into(target, self.values, axes, piece)

        near = axes[-1:] + side.term[-1:]
        evaluate_boxes(evaluate, self._get_ranges(axes, box), near, n_cores)
        expanded = memory[tuple(slice(None) if i in axes else None for i in order)]
        matrices = merge_axes(expanded, lengths)
        assert matrices is not None
        return matrices

    def _multiply(self, left: Array, right: Array, box: Box) -> None:
        """Multiply the matrices of a block, into the result if BLAS can write there."""
        product = self.product
        order = (*product.stack, *product.left.rows, *product.right.columns)
        result = product.result.view(self.values, order, box)
        lengths = (
            *[1] * len(product.stack),
            len(product.left.rows),
            len(product.right.columns),
        )
        # if the sum is the result, BLAS writes it in place
        if product.finish.is_variable and result.dtype == product.dtype:
            matrices = merge_axes(result, lengths)
            if matrices is not None and matrices.strides[-1] == result.itemsize:
                np.matmul(left, right, out=matrices)
                return
        sums = self._get_memory("sums", result.shape)
        matrices = merge_axes(sums, lengths)
        assert matrices is not None
        np.matmul(left, right, out=matrices)

        def finish(piece: Box) -> None:
            target = _cut_piece(result, order, box, piece)
            values = {**self.values, SUM: _cut_piece(sums, order, box, piece)}
            product.finish.into(target, values, order, piece)

        near = *order[-1:], *map(str, product.result.positions[-1:])
        evaluate_boxes(finish, self._get_ranges(order, box), near, n_cores=1)

    def _get_ranges(self, indices: Iterable[str], box: Box) -> dict[str, slice]:
        return {i: box.get(i, slice(0, self.sizes[i])) for i in indices}

    def _get_shape(self, indices: Iterable[str], box: Box) -> tuple[int, ...]:
        return tuple(r.stop - r.start for r in self._get_ranges(indices, box).values())

    def _get_memory(self, name: str, shape: tuple[int, ...]) -> Array:
        return get_kept_memory(self.scratch, name, shape, self.product.dtype)


def get_kept_memory(
    scratch: dict[Any, Any], name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """Return memory that is reused between calls, so that its pages are mapped."""
    flat = scratch.get((name, dtype))
    if flat is None or flat.size < prod(shape):
        flat = scratch[name, dtype] = np.empty(prod(shape), dtype)
    memory: Array = flat[: prod(shape)].reshape(shape)
    return memory


def merge_axes(array: Array, lengths: Iterable[int]) -> Array | None:
    """Return a view with one axis for each group of axes; None if there is none.

    Args:
        array: the array.
        lengths: the number of axes of each group.

    >>> merge_axes(np.empty((2, 3, 4)), (2, 1)).shape
    (6, 4)
    >>> merge_axes(np.empty((2, 3, 4)).transpose(1, 0, 2), (2, 1)) is None
    True
    """
    shape = _compute_merged_shape(array.shape, array.strides, tuple(lengths))
    return None if shape is None else array.reshape(shape)


@lru_cache(maxsize=256)
def _compute_merged_shape(
    shape: tuple[int, ...], strides: tuple[int, ...], lengths: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the shape of a view with merged axes; None if they are not contiguous."""
    merged_shape: list[int] = []
    axis = 0
    for n_axes in lengths:
        axes = [
            (length, stride)
            for length, stride in zip(
                shape[axis : axis + n_axes], strides[axis : axis + n_axes], strict=True
            )
            if length != 1
        ]
        axis += n_axes
        for (_, outer), (length, stride) in pairwise(axes):
            if outer != length * stride and 0 not in shape:
                return None
        merged_shape.append(prod(length for length, _ in axes))
    return tuple(merged_shape)


def evaluate_boxes(
    evaluate: Callable[[Box], None],
    ranges: Mapping[str, slice],
    near: IndexList,
    n_cores: int,
) -> None:
    """Evaluate over ranges, box by box; numpy releases the GIL, so threads help.

    Args:
        evaluate: writes the entries of one box, and no others.
        ranges: the range of each index.
        near: indices along which boxes are longer.
        n_cores: number of cores that share the boxes.
    """
    n_entries = prod(r.stop - r.start for r in ranges.values())
    share = max(-(-n_entries // n_cores), cpu.GROUP_POINTS)
    pieces = list(split_into_boxes(ranges, near, min(share, cpu.PIECE_ENTRIES)))
    is_shared = n_cores > 1 and len(pieces) > 1
    # one pool for each process: a fork inherits the pool, but not its threads
    spread = _get_threads(n_cores, os.getpid()).map if is_shared else map
    for _ in spread(evaluate, pieces):
        pass  # an error of a thread is raised here


@cache
def _get_threads(n: int, process: int) -> ThreadPoolExecutor:
    """Return a pool of threads, which is kept: new threads share a core at first.

    Args:
        n: number of threads.
        process: id of the calling process, which distinguishes pools of forks.
    """
    return ThreadPoolExecutor(n, f"feinsum-{process}")


def split_into_boxes(
    ranges: Mapping[str, slice], near: IndexList, limit: int = cpu.PIECE_ENTRIES
) -> Iterator[Box]:
    """Cut ranges into boxes of few entries, which are longer along ``near`` indices.

    >>> [len(list(split_into_boxes({"i": slice(0, 8), "j": slice(0, 4)}, ("j",), n)))
    ...  for n in (32, 16, 4)]
    [1, 2, 8]
    """
    steps = {index: max(r.stop - r.start, 1) for index, r in ranges.items()}
    while prod(steps.values()) > limit:
        longest = max(steps, key=lambda i: steps[i] / (32 if i in near else 1))
        # near indices are halved last, so that boxes remain long runs of memory
        steps[longest] = -(-steps[longest] // 2)

    def cut(indices: list[str]) -> Iterator[dict[str, slice]]:
        if not indices:
            yield {}
            return
        first, *inner = indices
        full_range, step = ranges[first], steps[first]
        for start in range(full_range.start, full_range.stop, step):
            piece = slice(start, min(start + step, full_range.stop))
            for inner_box in cut(inner):
                yield {first: piece, **inner_box}

    return cut(list(ranges))


def _cut_piece(array: Array, order: IndexList, box: Box, piece: Box) -> Array:
    """Cut a piece out of an array that holds a box."""
    starts = {index: box[index].start if index in box else 0 for index in order}
    return array[
        tuple(
            slice(piece[i].start - starts[i], piece[i].stop - starts[i]) for i in order
        )
    ]


def suits_blas(array: Array) -> bool:
    """Return whether numpy passes the matrices to BLAS without copying."""
    height, width = array.strides[-2:]
    n_rows, n_columns = array.shape[-2:]
    size = array.itemsize
    is_by_rows = width == size and height >= n_columns * size
    return is_by_rows or (height == size and width >= n_rows * size)
