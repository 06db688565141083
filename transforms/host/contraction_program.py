"""Einsums of two operands by the compiled contraction kernel, in place of a loop nest.

Operands that are functions are evaluated into memory that is kept between calls, by
several threads, in boxes of few entries. Arrays are read where they are, in any order
of their axes. With blocks of the rows of A, the evaluated entries are still in the
caches when the kernel reads them::

    for block:  left = A(block)          threads evaluate boxes of the block
                sums = left * right      the kernel, with all threads
                out = shift + scale*sums

"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from feinsum.contraction import Step, contract_into
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
        arrays: dict[int, Array] = {}
        for box in self._list_blocks():
            for k, term in enumerate(row.step.inputs):
                if k not in arrays or row.index in term:
                    arrays[k] = self._get_operand(k, box)
            self._contract(arrays[0], arrays[1], box)

    def _list_blocks(self) -> Iterator[Box]:
        index, block = self.row.index, self.row.block
        if index is None:
            yield {}
            return
        for start in range(0, self.sizes[index], block):
            yield {index: slice(start, min(start + block, self.sizes[index]))}

    def _get_operand(self, k: int, box: Box) -> Array:
        """Return an operand along its indices: the caller's array if it is one."""
        function, term = self.row.operands[k], self.row.step.inputs[k]
        if function.read is not None:
            array = function.read.view(self.values, term, box)
            if array.dtype == self.row.dtype:
                return array
        memory = self._get_memory(k, term, box)
        starts = _get_starts(term, box)

        def evaluate(piece: Box) -> None:
            target = memory[_slice(term, piece, starts)]
            function.into(target, self.values, term, piece)

        evaluate_boxes(evaluate, self._get_ranges(term, box), term[-1:], count_cores())
        return memory

    def _contract(self, left: Array, right: Array, box: Box) -> None:
        """Contract the operands of a block, in place if the sum is the result."""
        row, output = self.row, self.row.step.output
        result = row.result.view(self.values, output, box)
        if row.finish.is_variable and result.dtype == row.dtype:
            contract_into(result, row.step, (left, right))
            return
        sums = self._get_memory(SUM, output, box)
        contract_into(sums, row.step, (left, right))
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
