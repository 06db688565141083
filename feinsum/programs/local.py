"""Programs on one node: contractions by recipes, the rest in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from feinsum.ir import SizeParam
from feinsum.ir.evaluate import checked_arrays, evaluate_statement
from feinsum.ir.program import Program
from feinsum.ir.statement import Statement
from feinsum.programs.blocks import Block, Box, blocks_of, inner_bytes
from feinsum.programs.contraction import contracted
from feinsum.programs.fused import race_of
from feinsum.programs.parts import Part, compute, taken
from feinsum.programs.race import TOLERANCE, Race, kept_race
from feinsum.programs.stages import Stage
from feinsum.programs.workers import run_each

Array = np.ndarray[Any, np.dtype[Any]]

MOST_WHOLE_BYTES = 1 << 25
"""Largest results inside a block for which parts are timed against the whole: they
fit into a last-level cache. Larger ones are never stored.
"""


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
    from feinsum.threads import n_threads  # programs are read without it

    given = checked_arrays(program, arrays)
    known = dict(given)
    run = _Run(program, sizes_of(program, known), n_threads())
    blocks = blocks_of(program, run.sizes, run.n_workers)
    last = _last_uses(program, blocks)
    for k, block in enumerate(blocks):
        spent = {name for name in known if last.get(name, -1) <= k}
        owned = {name: known.pop(name) for name in spent - {*given}}
        known |= run.block(block, known, owned)
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
    """A run of a program: its sizes, and the number of threads."""

    program: Program
    sizes: Mapping[str, int]
    n_workers: int

    def block(
        self, block: Block, known: Mapping[str, Array], owned: dict[str, Array]
    ) -> dict[str, Array]:
        """The results of a block that are kept.

        Args:
            owned: arrays that nothing reads after the block: they may be overwritten,
                and are taken out when they are not needed any more.
        """
        if block.fusion is not None:
            return self.fused(block, known, owned)
        if block.cuts:
            return self.cut(block, known, owned)
        return self.one_by_one(block, known, owned)

    def cut(
        self, block: Block, known: Mapping[str, Array], owned: dict[str, Array]
    ) -> dict[str, Array]:
        """The results of a block, in parts or one stage after the other."""
        race = self._race_of(block)
        if race is not None and race.is_over and race.kernel is not None:
            return self.one_by_one(block, known, owned)
        arrays = {**known, **owned}
        if race is None:
            return self.in_parts(block, arrays)
        return race.run(arrays, lambda: self.in_parts(block, arrays))

    def fused(
        self, block: Block, known: Mapping[str, Array], owned: dict[str, Array]
    ) -> dict[str, Array]:
        """The results of a fusion: by its kernel, or statement by statement."""
        fusion = block.fusion
        assert fusion is not None
        race = race_of(self.program, fusion, self.sizes)
        arrays = {
            name: known[name] if name in known else owned[name]
            for name in fusion.operands
        }
        is_empty = any(array.size == 0 for array in arrays.values())
        if is_empty or (race.is_over and race.kernel is None):
            del arrays
            return self.one_by_one(block, known, owned)
        return race.run(arrays, lambda: self.one_by_one(block, arrays, {}))

    def _race_of(self, block: Block) -> Race[Mapping[str, Array]] | None:
        """Between parts and wholes, unless wholes are too large or empty."""
        size = inner_bytes(self.program, block, self.sizes)
        arrays = tuple(
            self.program.arrays[name]
            for one in block.statements
            for name in (*one.operands, one.result)
        )
        is_real = all(array.dtype.char in TOLERANCE for array in arrays)
        if not (0 < size <= MOST_WHOLE_BYTES and is_real):
            return None
        program, sizes, n_workers = self.program, self.sizes, self.n_workers

        def whole(known: Mapping[str, Array]) -> dict[str, Array]:
            return _Run(program, sizes, n_workers).one_by_one(block, known, {})

        key = block, arrays, tuple(sorted(sizes.items())), n_workers
        return kept_race(key, lambda: whole)

    def one_by_one(
        self, block: Block, known: Mapping[str, Array], owned: dict[str, Array]
    ) -> dict[str, Array]:
        """The results of a block that are kept, each stage as a whole."""
        frame = _Frame({**known, **owned}, {})
        for k, stage in enumerate(block.stages):
            spent = block.spent_after(k, owned)
            frame.inside.update(self.stage(stage, frame, spent))
            for name in spent:
                for arrays in (owned, frame.known, frame.inside):
                    arrays.pop(name, None)
        return {name: frame.inside[name] for name in block.kept}

    def in_parts(self, block: Block, known: dict[str, Array]) -> dict[str, Array]:
        """The same for a few values of the indices that are cut at a time."""
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
            for k, stage in enumerate(block.stages):
                spent_here = block.spent_after(k)
                frame.inside.update(alone.stage(stage, frame, spent_here))
                for one in stage.statements:
                    if one.result in results:
                        part = taken(results[one.result], one.output, frame.box(one))
                        part[...] = frame.inside[one.result]

        run_each(run, [*block.boxes()], self.n_workers)
        return results

    def stage(
        self, stage: Stage, frame: _Frame, spent: AbstractSet[str]
    ) -> dict[str, Array]:
        """The results of a stage that are kept, within a box.

        Args:
            spent: arrays of ours that are not read after the stage.
        """
        if stage.is_contraction:
            (one,) = stage.statements
            return {one.result: self.einsum(one, frame.operands(one))}
        if stage.is_numpy:
            (one,) = stage.statements
            value = evaluate_statement(one, frame.operands(one))
            is_wanted = one.result in self.program.outputs
            return {one.result: value.copy() if is_wanted else value}
        spent = spent - self.program.shared
        part = self._part(stage, frame, spent)
        run_each(compute, part.shares(self.n_workers), self.n_workers)
        return dict(part.outs)

    def einsum(self, one: Statement, operands: Sequence[Array]) -> Array:
        dtype = self.program.arrays[one.result].dtype
        return contracted(one, operands).astype(dtype, copy=False)

    def _part(self, stage: Stage, frame: _Frame, spent: AbstractSet[str]) -> Part:
        """A stage within a box, with memory for its results."""
        given = {one.result: frame.operands(one) for one in stage.statements}
        first = {
            one.result: {index: s.start for index, s in frame.box(one).items()}
            for one in stage.statements
        }
        extents = {
            one.result: self._extents(one, frame.box(one)) for one in stage.statements
        }
        reused = overwritten(self.program, stage, spent)
        held: dict[str, Array] = {}
        for one in stage.statements:
            if (k := reused.get(one.result)) is not None:
                array = given[one.result][k]
                array = held.get(one.operands[k]) if array is None else array
                if array is not None:
                    held[one.result] = array
            elif one.result in stage.kept:
                shape = tuple(extents[one.result][i] for i in one.output)
                held[one.result] = _empty(shape, self.program.arrays[one.result].dtype)
        outs = {name: held[name] for name in stage.kept}
        return Part(stage, given, outs, reused, first, extents, self._dtypes(stage))

    def _dtypes(self, stage: Stage) -> dict[str, np.dtype[Any]]:
        made = {one.result for one in stage.statements}
        return {name: self.program.arrays[name].dtype for name in stage.operands | made}

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
    """The arrays that statements see, at some values of some indices only.

    Attributes:
        boxes: these values, by the result of the statement.
        inside: results that were computed for these values alone.
    """

    known: dict[str, Array]
    boxes: Mapping[str, Box]
    inside: dict[str, Array] = field(default_factory=dict)

    def box(self, one: Statement) -> Box:
        return self.boxes.get(one.result, {})

    def operands(self, one: Statement) -> list[Any]:
        """Operands of a statement; None for those that its own stage computes."""
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
    from feinsum.result_memory import aligned_empty

    return aligned_empty(shape, dtype)


def overwritten(
    program: Program, stage: Stage, spent: AbstractSet[str]
) -> Mapping[str, int]:
    """For maps of a stage, the number of the operand whose memory the result takes.

    Such an operand is read by no later statement, has the same axes in the same order,
    and is of the same dtype. What is stored as a whole takes the memory of what is.

    Args:
        spent: arrays from before the stage that nothing reads after it.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> from feinsum.programs.stages import stages_of
    >>> p = program()
    >>> _ = p.softmax(array("X", (4, 4)))
    >>> built = p.build()
    >>> (stage,) = stages_of(built)
    >>> overwritten(built, stage, {"X"}), overwritten(built, stage, set())
    ({'r1': 0, 'r3': 0}, {})
    """
    inner = {one.result for one in stage.statements} - {*stage.kept}
    is_whole = {name: name not in inner for name in (*spent, *inner)}
    found: dict[str, int] = {}
    for at, one in enumerate(stage.statements):
        for k, name in enumerate(one.operands):
            is_ours = name in spent or name in inner
            fits = is_whole.get(name, False) or one.result in inner
            if is_ours and fits and _can_take(program, stage, at, k):
                found[one.result] = k
                is_whole[one.result] = is_whole[name]
                break
    return found


def _can_take(program: Program, stage: Stage, at: int, k: int) -> bool:
    one = stage.statements[at]
    name, term = one.operands[k], one.inputs[k]
    return (
        not one.reduced_indices
        and term == one.output
        and one.operands.count(name) == 1
        and program.arrays[name].dtype == program.arrays[one.result].dtype
        and all(name not in later.operands for later in stage.statements[at + 1 :])
        and all(
            _reads_alike(stage, one, term, before, theirs)
            for before in stage.statements[:at]
            for other, theirs in zip(before.operands, before.inputs, strict=True)
            if other == name
        )
    )


def _reads_alike(
    stage: Stage,
    one: Statement,
    term: Sequence[str],
    other: Statement,
    theirs: Sequence[str],
) -> bool:
    """Whether a part of either statement reads the same part of an array."""
    return all(
        [index == cut[one.result] for index in term]
        == [index == cut[other.result] for index in theirs]
        for cut in stage.cuts
    )
