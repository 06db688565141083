"""A row of an einsum as matrix products, which numpy hands to its BLAS.

Operands that are functions, or arrays in another order, are evaluated into memory that
is kept between calls, in boxes of few entries by several threads. Then numpy multiplies
whole matrices, or one block after the other, so that what was evaluated is still in the
caches when BLAS reads it.
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
from feinsum.threads import n_cores
from feinsum.transforms import heuristics as cpu
from feinsum.transforms.host.array_function import (
    Array,
    ArrayFunction,
    ArrayRead,
    Box,
)

SUM = "feinsum sum"
"""What expressions call the sum of a row; no argument can have that name."""


@dataclass(frozen=True)
class Side:
    """An operand as a stack of matrices.

    Attributes:
        term: its indices.
        rows, columns: those of a matrix.
    """

    function: ArrayFunction
    term: IndexList
    rows: IndexList
    columns: IndexList


@dataclass(frozen=True)
class ProductRow:
    """A row: the result is a stack of products of matrices.

    Attributes:
        left, right: the operands; the columns of the left one and the rows of the right
            one are the summed indices.
        result: the array that is written, along the output indices.
        finish: from the sum, named :data:`SUM`, to the result.
        stack: output indices with one product per value.
        index: the index along which blocks are made; None for one block.
        block: its values per block.
        dtype: of the operands.
    """

    left: Side
    right: Side
    result: ArrayRead
    finish: ArrayFunction
    stack: IndexList
    index: str | None
    block: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class Intermediate:
    """An array over some indices, in C order."""

    name: str
    indices: IndexList
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class LibraryProgram:
    """Products of matrices in place of a kernel, one after the other.

    Attributes:
        extents: the extent of each index in terms of the kernel.
        intermediates: arrays that products write and later ones read.
    """

    products: tuple[ProductRow, ...]
    extents: Mapping[str, Extent]
    intermediates: tuple[Intermediate, ...] = ()

    def run(self, values: Mapping[str, Any], scratch: dict[Any, Any]) -> None:
        sizes = {
            index: int(values[n.name]) if isinstance(n, SizeParam) else n
            for index, n in self.extents.items()
        }
        intermediates = {
            x.name: kept_memory(
                scratch, x.name, tuple(sizes[i] for i in x.indices), x.dtype
            )
            for x in self.intermediates
        }
        available = n_cores()
        for product in self.products:
            _Run(product, {**values, **intermediates}, sizes, scratch).all_blocks(
                available
            )
            # threads of BLAS go on spinning for a while, and would share the cores
            available = 1


@dataclass(frozen=True)
class _Run:
    product: ProductRow
    values: Mapping[str, Any]
    sizes: Mapping[str, int]
    scratch: dict[Any, Any]

    def all_blocks(self, n_cores: int) -> None:
        """Compute all blocks; operands without their index are evaluated once.

        Args:
            n_cores: for what comes before the first product; threads of the library
                go on spinning after it.
        """
        p = self.product
        evaluated: dict[str, Array] = {}
        for box in self._blocks():
            for name, side in (("left", p.left), ("right", p.right)):
                if name not in evaluated or p.index in side.term:
                    evaluated[name] = self._matrices(name, side, box, n_cores)
            self._multiply(evaluated["left"], evaluated["right"], box)
            n_cores = 1

    def _blocks(self) -> Iterator[Box]:
        index, block = self.product.index, self.product.block
        if index is None:
            yield {}
            return
        for start in range(0, self.sizes[index], block):
            yield {index: slice(start, min(start + block, self.sizes[index]))}

    def _matrices(self, name: str, side: Side, box: Box, n_cores: int) -> Array:
        """Return an operand as matrices, as a view of the array if possible."""
        p, function = self.product, side.function
        order = (*p.stack, *side.rows, *side.columns)
        lengths = (*[1] * len(p.stack), len(side.rows), len(side.columns))
        if function.read is not None:
            array = function.read.view(self.values, order, box)
            whole = merged(array, lengths)
            if array.dtype == p.dtype and whole is not None and suits_blas(whole):
                return whole
        axes = tuple(index for index in order if index in side.term)
        memory = self._memory(name, self._shape(axes, box))

        def evaluate(piece: Box) -> None:
            part = _part(memory, axes, box, piece)
            function.into(part, self.values, axes, piece)

        near = axes[-1:] + side.term[-1:]
        each_box(evaluate, self._ranges(axes, box), near, n_cores)
        full = memory[tuple(slice(None) if i in axes else None for i in order)]
        matrices = merged(full, lengths)
        assert matrices is not None
        return matrices

    def _multiply(self, left: Array, right: Array, box: Box) -> None:
        """Multiply the matrices of a block, into the result if it has their form."""
        p = self.product
        # without a sum, BLAS would be called for columns of one entry
        multiply = np.matmul if p.left.columns else np.multiply
        order = (*p.stack, *p.left.rows, *p.right.columns)
        result = p.result.view(self.values, order, box)
        lengths = (*[1] * len(p.stack), len(p.left.rows), len(p.right.columns))
        # the sum is the result: BLAS writes it where it belongs
        if p.finish.is_variable and result.dtype == p.dtype:
            matrices = merged(result, lengths)
            if matrices is not None and matrices.strides[-1] == result.itemsize:
                multiply(left, right, out=matrices)
                return
        sums = self._memory("sums", result.shape)
        matrices = merged(sums, lengths)
        assert matrices is not None
        multiply(left, right, out=matrices)

        def finish(piece: Box) -> None:
            part = _part(result, order, box, piece)
            values = {**self.values, SUM: _part(sums, order, box, piece)}
            p.finish.into(part, values, order, piece)

        near = *order[-1:], *map(str, p.result.positions[-1:])
        each_box(finish, self._ranges(order, box), near, n_cores=1)

    def _ranges(self, indices: Iterable[str], box: Box) -> dict[str, slice]:
        return {i: box.get(i, slice(0, self.sizes[i])) for i in indices}

    def _shape(self, indices: Iterable[str], box: Box) -> tuple[int, ...]:
        return tuple(r.stop - r.start for r in self._ranges(indices, box).values())

    def _memory(self, name: str, shape: tuple[int, ...]) -> Array:
        return kept_memory(self.scratch, name, shape, self.product.dtype)


def kept_memory(
    scratch: dict[Any, Any], name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """Return memory that is reused between calls, whose pages are mapped already."""
    flat = scratch.get((name, dtype))
    if flat is None or flat.size < prod(shape):
        flat = scratch[name, dtype] = np.empty(prod(shape), dtype)
    part: Array = flat[: prod(shape)].reshape(shape)
    return part


def merged(array: Array, lengths: Iterable[int]) -> Array | None:
    """Return a view with one axis for each group of axes; None if there is none.

    Args:
        array: the array.
        lengths: the number of axes of each group.

    >>> merged(np.empty((2, 3, 4)), (2, 1)).shape
    (6, 4)
    >>> merged(np.empty((2, 3, 4)).transpose(1, 0, 2), (2, 1)) is None
    True
    """
    shape = _merged_shape(array.shape, array.strides, tuple(lengths))
    return None if shape is None else array.reshape(shape)


@lru_cache(maxsize=256)
def _merged_shape(
    shape: tuple[int, ...], strides: tuple[int, ...], lengths: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the shape of a view with merged axes; None if they are not contiguous."""
    merged_shape: list[int] = []
    at = 0
    for n in lengths:
        axes = [
            (length, stride)
            for length, stride in zip(
                shape[at : at + n], strides[at : at + n], strict=True
            )
            if length != 1
        ]
        at += n
        for (_, outer), (length, stride) in pairwise(axes):
            if outer != length * stride and 0 not in shape:
                return None
        merged_shape.append(prod(length for length, _ in axes))
    return tuple(merged_shape)


def each_box(
    evaluate: Callable[[Box], None],
    ranges: Mapping[str, slice],
    near: IndexList,
    n_cores: int,
) -> None:
    """Evaluate over ranges, box by box; numpy releases the GIL meanwhile.

    Args:
        evaluate: writes the entries of one box, and no others.
        ranges: the range of each index.
        near: indices along which boxes are longer.
        n_cores: number of cores that share the boxes.
    """
    n_entries = prod(r.stop - r.start for r in ranges.values())
    share = max(-(-n_entries // n_cores), cpu.FEW_ENTRIES)
    pieces = list(boxes(ranges, near, min(share, cpu.PIECE_ENTRIES)))
    is_shared = n_cores > 1 and len(pieces) > 1
    # by process, as a forked one inherits the pool without its threads
    spread = _threads(n_cores, os.getpid()).map if is_shared else map
    for _ in spread(evaluate, pieces):
        pass  # an error of a thread is raised here


@cache
def _threads(n: int, process: int) -> ThreadPoolExecutor:
    """Return a pool of threads, kept between calls; new threads share a core at first.

    Args:
        n: number of threads.
        process: id of the calling process, since a fork does not inherit threads.
    """
    return ThreadPoolExecutor(n, f"feinsum-{process}")


def boxes(
    ranges: Mapping[str, slice], near: IndexList, limit: int = cpu.PIECE_ENTRIES
) -> Iterator[Box]:
    """Cut ranges in boxes of few entries, which are longer along ``near`` indices.

    >>> [len(list(boxes({"i": slice(0, 8), "j": slice(0, 4)}, ("j",), n)))
    ...  for n in (32, 16, 4)]
    [1, 2, 8]
    """
    steps = {index: max(r.stop - r.start, 1) for index, r in ranges.items()}
    while prod(steps.values()) > limit:
        longest = max(steps, key=lambda i: steps[i] / (32 if i in near else 1))
        # near indices are halved last, so that boxes stay long lines of memory
        steps[longest] = -(-steps[longest] // 2)

    def cut(left: list[str]) -> Iterator[dict[str, slice]]:
        if not left:
            yield {}
            return
        first, *others = left
        whole, step = ranges[first], steps[first]
        for start in range(whole.start, whole.stop, step):
            part = slice(start, min(start + step, whole.stop))
            for rest in cut(others):
                yield {first: part, **rest}

    return cut(list(ranges))


def _part(array: Array, order: IndexList, box: Box, piece: Box) -> Array:
    """Cut a piece out of an array that holds a box."""
    starts = {index: box[index].start if index in box else 0 for index in order}
    return array[
        tuple(
            slice(piece[i].start - starts[i], piece[i].stop - starts[i]) for i in order
        )
    ]


def suits_blas(array: Array) -> bool:
    """Tell whether numpy passes the matrices to BLAS without copying."""
    height, width = array.strides[-2:]
    n_rows, n_columns = array.shape[-2:]
    size = array.itemsize
    is_by_rows = width == size and height >= n_columns * size
    return is_by_rows or (height == size and width >= n_rows * size)
