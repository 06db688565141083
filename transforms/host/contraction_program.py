"""Einsums of two operands by the compiled contraction kernel, in place of a loop nest.

Arrays are read where they are, in any order of their axes. The kernel applies affine
functions of one array, such as ``alpha*A[i,k] + b``, where it packs entries. Operands
that are other functions are evaluated into memory that is kept between calls, by
several threads, in boxes of few entries. With blocks of the rows of A, the evaluated
entries are still in the caches when the kernel reads them::

    for block:  left = A(block)          threads evaluate boxes of the block
                sums = left * right      the kernel, with all threads
                out = shift + scale*sums

"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np

from feinsum.contraction import (
    IDENTITY,
    Affine,
    Step,
    classify_indices,
    contract_into,
)
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
class ContractionRow:
    """A row of an einsum of two operands.

    Attributes:
        step: the indices of the operands and of the result.
        operands: the values of the operands.
        result: the array to write.
        finish: the result as a function of the sum, which is named :data:`SUM`.
        index: the index that is cut into blocks; None for one block.
        block: its values per block.
        dtype: dtype of the operands.
    """

    step: Step
    operands: tuple[ArrayFunction, ...]
    result: ArrayRead
    finish: ArrayFunction
    index: str | None
    block: int
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class ContractionProgram:
    """Rows of an einsum that are computed in place of a kernel, one after the other.

    Attributes:
        extents: the extent of each index in terms of the kernel.
    """

    rows: tuple[ContractionRow, ...]
    extents: Mapping[str, Extent]

    def run(self, values: Mapping[str, Any], scratch: dict[Any, Any]) -> None:
        sizes = {
            index: int(values[n.name]) if isinstance(n, SizeParam) else n
            for index, n in self.extents.items()
        }
        for row in self.rows:
            _Run(row, values, sizes, scratch).run_all_blocks()


@dataclass(frozen=True)
class _Run:
    row: ContractionRow
    values: Mapping[str, Any]
    sizes: Mapping[str, int]
    scratch: dict[Any, Any]

    def run_all_blocks(self) -> None:
        """Compute all blocks; evaluate operands without the index of blocks once."""
        row = self.row
        operands: dict[int, tuple[Array, Affine]] = {}
        for box in self._list_blocks():
            for k, term in enumerate(row.step.inputs):
                if k not in operands or row.index in term:
                    operands[k] = self._get_operand(k, box)
            self._contract(operands[0], operands[1], box)

    def _list_blocks(self) -> Iterator[Box]:
        index, block = self.row.index, self.row.block
        if index is None:
            yield {}
            return
        for start in range(0, self.sizes[index], block):
            yield {index: slice(start, min(start + block, self.sizes[index]))}

    @cached_property
    def _is_fused(self) -> bool:
        """Whether the kernel gets affine functions as operands."""
        return takes_functions(self.row.step, self.sizes, self.row.dtype)

    def _find_scale(self) -> float | None:
        """Return the factor of the sum, if the result is such a product."""
        finish = self.row.finish
        if finish.is_variable:
            return 1.0
        is_scalar = self._is_fused and not finish.arrays
        affine = finish.find_affine(SUM, self.values) if is_scalar else None
        return affine.scale if affine is not None and affine.shift == 0 else None

    def _get_operand(self, k: int, box: Box) -> tuple[Array, Affine]:
        """Return the array for an operand, and the function of its entries.

        The array is the caller's if the operand is an affine function of it.
        """
        function, term = self.row.operands[k], self.row.step.inputs[k]
        if len(function.arrays) == 1:
            (read,) = function.arrays
            array = read.view(self.values, term, box)
            is_plain = function.read is not None
            affine = IDENTITY if is_plain else None
            if not is_plain and self._is_fused:
                affine = function.find_affine(read, self.values)
            if affine is not None and array.dtype == self.row.dtype:
                return array, affine
        memory = self._get_memory(k, term, box)
        starts = _get_starts(term, box)

        def evaluate(piece: Box) -> None:
            target = memory[_slice(term, piece, starts)]
            function.into(target, self.values, term, piece)

        evaluate_boxes(evaluate, self._get_ranges(term, box), term[-1:], count_cores())
        return memory, IDENTITY

    def _contract(
        self, left: tuple[Array, Affine], right: tuple[Array, Affine], box: Box
    ) -> None:
        """Contract the operands of a block, in place if the result is a scaled sum."""
        row, output = self.row, self.row.step.output
        arrays, functions = (left[0], right[0]), (left[1], right[1])
        result = row.result.view(self.values, output, box)
        scale = self._find_scale() if result.dtype == row.dtype else None
        if scale is not None:
            scaled = Affine(*(scale * x for x in functions[0]))
            contract_into(result, row.step, arrays, (scaled, functions[1]))
            return
        sums = self._get_memory(SUM, output, box)
        contract_into(sums, row.step, arrays, functions)
        starts = _get_starts(output, box)

        def finish(piece: Box) -> None:
            part = _slice(output, piece, starts)
            values = {**self.values, SUM: sums[part]}
            row.finish.into(result[part], values, output, piece)

        near = *output[-1:], *map(str, row.result.positions[-1:])
        evaluate_boxes(finish, self._get_ranges(output, box), near, count_cores())

    def _get_ranges(self, indices: IndexList, box: Box) -> dict[str, slice]:
        return {i: box.get(i, slice(0, self.sizes[i])) for i in indices}

    def _get_memory(self, name: int | str, indices: IndexList, box: Box) -> Array:
        """Return memory that is reused between calls, so that its pages are mapped."""
        ranges = self._get_ranges(indices, box).values()
        shape, dtype = tuple(r.stop - r.start for r in ranges), self.row.dtype
        flat = self.scratch.get((name, dtype))
        if flat is None or flat.size < prod(shape):
            flat = self.scratch[name, dtype] = np.empty(prod(shape), dtype)
        memory: Array = flat[: prod(shape)].reshape(shape)
        return memory


def takes_functions(step: Step, sizes: Mapping[str, int], dtype: np.dtype[Any]) -> bool:
    """Return whether the kernel takes affine functions of arrays as operands.

    These are real operands that it packs, with rows and columns. Operands with an index
    that is summed alone are summed before.

    >>> sizes, f8 = dict.fromkeys("ijk", 100), np.dtype(float)
    >>> takes_functions(Step((0, 1), ("ik", "kj"), "ij"), sizes, f8)
    True
    >>> takes_functions(Step((0, 1), ("ik", "k"), "i"), sizes, f8)
    False
    """
    first, second = step.inputs
    kinds = classify_indices(first, second, step.output)
    sides = [prod(map(sizes.__getitem__, x)) for x in (kinds.rows, kinds.columns)]
    is_matrix = kinds.rows | kinds.columns <= {*step.output}
    return dtype.kind == "f" and is_matrix and min(sides) >= cpu.MIN_FUSED_SIDE


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


def _get_starts(indices: IndexList, box: Box) -> list[int]:
    return [box[index].start if index in box else 0 for index in indices]


def _slice(indices: IndexList, piece: Box, starts: Sequence[int]) -> tuple[slice, ...]:
    """Return the subscript of a piece in an array whose entries begin at ``starts``."""
    return tuple(
        slice(piece[index].start - start, piece[index].stop - start)
        for index, start in zip(indices, starts, strict=True)
    )
