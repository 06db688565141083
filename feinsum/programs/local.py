"""Programs on one node: contractions by recipes, the rest in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from typing import Any, Self

import numpy as np

from feinsum.ir import SizeParam
from feinsum.programs.blocks import Block, Box, blocks_of
from feinsum.programs.contraction import contracted
from feinsum.programs.evaluate import checked_arrays, evaluate_statement
from feinsum.programs.fused import race_of
from feinsum.programs.program import Program
from feinsum.programs.stages import Stage
from feinsum.programs.statement import Statement

__all__ = ["run_program", "sizes_of"]

Array = np.ndarray[Any, np.dtype[Any]]

PART_BYTES = 1 << 18
"""Of the largest array of a part: several of them fit into a second-level cache."""


def run_program(program: Program, arrays: Mapping[str, Any]) -> Mapping[str, Array]:
    """Run a program on this machine; returns outputs by name.

    Contractions call :func:`feinsum.call_einsum`. An intermediate result is freed after
    its last use.

    Args:
        arrays: for each input's name an array of its shape and dtype.

    Raises:
        ProgramError: if an array is missing or has the wrong shape or dtype.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> _ = p.softmax(array("X", (2, 2)), name="Y")
    >>> run_program(p.build(), {"X": np.zeros((2, 2))})["Y"].tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    from feinsum.targets.host.threads import n_threads  # programs are read without it

    known = dict(checked_arrays(program, arrays))
    blocks = blocks_of(program, sizes_of(program, known))
    last = _last_uses(program, blocks)
    with _Run(program, sizes_of(program, known), n_threads()) as run:
        for k, block in enumerate(blocks):
            known |= run.block(block, known)
            for name in [name for name in known if last.get(name, -1) <= k]:
                del known[name]
    return {name: known[name] for name in program.outputs}


def sizes_of(program: Program, arrays: Mapping[str, Any]) -> dict[str, int]:
    """The values of the size parameters, from the shapes of the arrays.

    Raises:
        ProgramError: if an array is missing or has the wrong shape or dtype.
    """
    known = checked_arrays(program, arrays)
    return {
        extent.name: n
        for operand in program.inputs
        for extent, n in zip(operand.shape, known[operand.name].shape, strict=True)
        if isinstance(extent, SizeParam)
    }


def _last_uses(program: Program, blocks: Sequence[Block]) -> dict[str, int]:
    """The number of the block that reads an array last; outputs stay."""
    last = dict.fromkeys(program.outputs, len(blocks))
    for k, block in enumerate(blocks):
        for name in {name for one in block.statements for name in one.operands}:
            last[name] = max(last.get(name, k), k)
    return last


@dataclass
class _Run:
    """A run of a program: its sizes, and threads once they are needed."""

    program: Program
    sizes: Mapping[str, int]
    n_workers: int
    _opened: list[ThreadPoolExecutor] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._opened:
            pool.shutdown()

    def each(self, run: Callable[[Any], None], parts: Sequence[Any]) -> None:
        """Run all parts; numpy works without the lock of the interpreter."""
        if min(self.n_workers, len(parts)) < 2:
            for part in parts:
                run(part)
            return
        if not self._opened:
            self._opened.append(ThreadPoolExecutor(self.n_workers))
        list(self._opened[0].map(run, parts))

    def block(self, block: Block, known: Mapping[str, Array]) -> dict[str, Array]:
        """The results of a block that are kept."""
        if block.fusion is not None:
            return self.fused(block, known)
        if not block.cuts:
            (stage,) = block.stages
            return self.stage(stage, _Frame(known, {}))
        results = {
            name: _empty(self._shape(name), self.program.arrays[name].dtype)
            for name in block.kept
        }
        alone = _Run(self.program, self.sizes, n_workers=1)

        def run(values: Sequence[slice]) -> None:
            frame = _Frame(
                known,
                {x.result: block.box_of(x.result, values) for x in block.statements},
            )
            for stage in block.stages:
                frame.inside.update(alone.stage(stage, frame))
                for one in stage.statements:
                    if one.result in results:
                        part = taken(results[one.result], one.output, frame.box(one))
                        part[...] = frame.inside[one.result]

        self.each(run, [*block.boxes()])
        return results

    def fused(self, block: Block, known: Mapping[str, Array]) -> dict[str, Array]:
        """The results of a fusion: by its kernel, or statement by statement."""
        fusion = block.fusion
        assert fusion is not None

        def plain() -> dict[str, Array]:
            frame = _Frame(known, {})
            for stage in block.stages:
                frame.inside.update(self.stage(stage, frame))
            return {name: frame.inside[name] for name in fusion.results}

        if any(0 in known[name].shape for name in fusion.operands):
            return plain()
        arrays = {name: known[name] for name in fusion.operands}
        race = race_of(self.program, fusion, self.sizes)
        return race.run(arrays, plain)

    def stage(self, stage: Stage, frame: _Frame) -> dict[str, Array]:
        """The results of a stage that are kept, within a box."""
        if stage.is_contraction:
            (one,) = stage.statements
            return {one.result: self.einsum(one, frame.operands(one))}
        given = {one.result: frame.operands(one) for one in stage.statements}
        extents = {
            one.result: self._extents(one, frame.box(one)) for one in stage.statements
        }
        results = {
            one.result: _empty(
                tuple(extents[one.result][i] for i in one.output),
                self.program.arrays[one.result].dtype,
            )
            for one in stage.statements
            if one.result in stage.kept
        }

        def run(boxes: Mapping[str, Box]) -> None:
            self._part(stage, given, results, boxes, frame)

        self.each(run, [*self._parts(stage, extents)])
        return results

    def einsum(self, one: Statement, operands: Sequence[Array]) -> Array:
        dtype = self.program.arrays[one.result].dtype
        return contracted(one, operands).astype(dtype, copy=False)

    def _parts(
        self, stage: Stage, extents: Mapping[str, Mapping[str, int]]
    ) -> Iterable[Mapping[str, Box]]:
        """Values of the index that is cut, for each statement; none for all of them."""
        if not stage.cuts:
            return [{}]
        largest = max(
            prod(extents[one.result].values())
            * self.program.arrays[one.result].dtype.itemsize
            for one in stage.statements
        )
        n_parts = max(1, -(-largest // PART_BYTES))
        first = stage.statements[0].result
        lengths = [extents[first][cut[first]] for cut in stage.cuts]
        most = max(lengths)
        extent, cut = next(
            (n, cut)
            for n, cut in zip(lengths, stage.cuts, strict=True)
            if n >= min(n_parts, most)
        )
        length = max(1, extent // n_parts)
        return (
            {
                one.result: {cut[one.result]: slice(low, min(low + length, extent))}
                for one in stage.statements
            }
            for low in range(0, max(extent, 1), length)
        )

    def _part(
        self,
        stage: Stage,
        given: Mapping[str, Sequence[Array | None]],
        results: Mapping[str, Array],
        boxes: Mapping[str, Box],
        frame: _Frame,
    ) -> None:
        """One part of all statements of a stage, one after the other."""
        inside: dict[str, Array] = {}
        for one in stage.statements:
            box = boxes.get(one.result, {})
            operands = [
                inside[name] if array is None else taken(array, term, box)
                for name, array, term in zip(
                    one.operands, given[one.result], one.inputs, strict=True
                )
            ]
            first = {index: s.start for index, s in frame.box(one).items()}
            for index, values in box.items():
                first[index] = first.get(index, 0) + values.start
            value = evaluate_statement(one, operands, first)
            dtype = self.program.arrays[one.result].dtype
            inside[one.result] = value.astype(dtype, copy=False)
            if one.result in results:
                taken(results[one.result], one.output, box)[...] = inside[one.result]

    def _extents(self, one: Statement, box: Box) -> dict[str, int]:
        return {
            index: box[index].stop - box[index].start
            if index in box
            else self._value(n)
            for index, n in self.program.extents(one).items()
        }

    def _shape(self, name: str) -> tuple[int, ...]:
        return tuple(map(self._value, self.program.arrays[name].shape))

    def _value(self, extent: int | SizeParam) -> int:
        return extent if isinstance(extent, int) else self.sizes[extent.name]


@dataclass
class _Frame:
    """What statements see: arrays, of which some indices have some values only.

    Attributes:
        boxes: these values, by the result of the statement.
        inside: results that were computed for these values alone.
    """

    known: Mapping[str, Array]
    boxes: Mapping[str, Box]
    inside: dict[str, Array] = field(default_factory=dict)

    def box(self, one: Statement) -> Box:
        return self.boxes.get(one.result, {})

    def operands(self, one: Statement) -> list[Any]:
        """Of a statement; None for what its own stage computes."""
        return [
            self.inside[name]
            if name in self.inside
            else taken(self.known[name], term, self.box(one))
            if name in self.known
            else None
            for name, term in zip(one.operands, one.inputs, strict=True)
        ]


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """A new array, in memory that is used again."""
    from feinsum.targets.host.results import aligned_empty

    return aligned_empty(shape, dtype)


def taken(array: Array, term: Sequence[str], box: Box) -> Array:
    """The part of an array at some values of its indices, as a view."""
    if not any(index in box for index in term):
        return array
    return array[tuple(box.get(index, slice(None)) for index in term)]
