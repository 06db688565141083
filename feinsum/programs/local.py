"""Execution of programs on one node.

Contractions run by recipes of the database, stages of maps and reductions part by part,
numpy statements by numpy. :mod:`feinsum.programs.blocks` decides which stages run
together for a few values of an index at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from string import ascii_letters
from typing import Any

import numpy as np

from feinsum.errors import DeviceUnavailableError
from feinsum.ir.evaluation import check_arrays, evaluate_statement
from feinsum.ir.program import Program
from feinsum.ir.statement import Statement
from feinsum.programs.blocks import Box, FusedStages, count_inner_bytes, list_blocks
from feinsum.programs.choice import TOLERANCE, KernelChoice, get_shared_choice
from feinsum.programs.fusion import Fusion, get_choice
from feinsum.programs.parts import Part, compute, run_each, slice_array
from feinsum.programs.stages import Stage

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, np.dtype[Any]]

MAX_LETTERS = len(ascii_letters)
MAX_WHOLE_BYTES = 1 << 25
"""Largest inner results of a block that may be stored as a whole.

They fit into a last-level cache, so that parts and whole stages are timed against each
other. Larger ones are computed only in parts.
"""


def run_program(program: Program, arrays: Mapping[str, Any]) -> Mapping[str, Array]:
    """Run a program on this machine.

    Contractions call :func:`feinsum.call_einsum`. An intermediate result is freed after
    its last use.

    Args:
        program: the program.
        arrays: for each input's name an array of its shape and dtype.

    Returns:
        The outputs by name.

    Raises:
        ProgramError: if an array is missing or has the wrong shape or dtype.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> _ = p.softmax(array("X", (2, 2)), name="Y")
    >>> run_program(p.build(), {"X": np.zeros((2, 2))})["Y"].tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    from feinsum.threads import get_n_threads  # programs are read without it

    inputs, sizes = check_arrays(program, arrays)
    live = dict(inputs)
    run = _Run(program, sizes, get_n_threads())
    blocks = list_blocks(program, run.sizes, run.n_workers)
    last_uses = _find_last_uses(program, blocks)
    for k, block in enumerate(blocks):
        # freed after this block, or reused by it
        spent = {name for name in live if last_uses.get(name, -1) <= k}
        owned = {name: live.pop(name) for name in spent - {*inputs}}
        live |= run.block(block, live, owned)
    return {name: live[name] for name in program.outputs}


def _find_last_uses(program: Program, blocks: Sequence[FusedStages]) -> dict[str, int]:
    """Return the number of the last block that reads each array; outputs stay."""
    last_uses = dict.fromkeys(program.outputs, len(blocks))
    for k, block in enumerate(blocks):
        for statement in block.statements:
            for name in statement.operands:
                last_uses[name] = max(last_uses.get(name, k), k)
    return last_uses


@dataclass
class _Run:
    """A run of a program: its sizes, and the number of threads."""

    program: Program
    sizes: Mapping[str, int]
    n_workers: int

    def block(
        self, block: FusedStages, arrays: Mapping[str, Array], owned: dict[str, Array]
    ) -> dict[str, Array]:
        """Return the outputs of a block.

        Nothing after the block reads arrays in ``owned``: they may be overwritten, and
        are removed from the dictionary after their last use.
        """
        if block.fusion is not None:
            return self.fused(block, block.fusion, arrays, owned)
        if block.cuts:
            return self.cut(block, arrays, owned)
        return self.run_one_by_one(block, arrays, owned)

    def cut(
        self, block: FusedStages, arrays: Mapping[str, Array], owned: dict[str, Array]
    ) -> dict[str, Array]:
        """Return the outputs of a block, in parts or one stage after the other."""
        choice = self._get_choice(block)
        if choice is not None and choice.is_over and choice.kernel is not None:
            return self.run_one_by_one(block, arrays, owned)
        # both alternatives may run, so neither may overwrite its operands
        read = {**arrays, **owned}
        if choice is None:
            return self.run_in_parts(block, read)
        return choice.run(read, lambda: self.run_in_parts(block, read))

    def fused(
        self,
        block: FusedStages,
        fusion: Fusion,
        arrays: Mapping[str, Array],
        owned: dict[str, Array],
    ) -> dict[str, Array]:
        """Return the outputs of a fusion: by its kernel, or statement by statement."""
        choice = get_choice(self.program, fusion, self.sizes)
        read = {
            name: arrays[name] if name in arrays else owned[name]
            for name in fusion.operands
        }
        is_empty = any(array.size == 0 for array in read.values())
        if is_empty or (choice.is_over and choice.kernel is None):
            del read  # its references would keep spent arrays alive
            return self.run_one_by_one(block, arrays, owned)
        return choice.run(read, lambda: self.run_one_by_one(block, read, {}))

    def _get_choice(
        self, block: FusedStages
    ) -> KernelChoice[Mapping[str, Array]] | None:
        """Return the choice between parts and whole stages; None for parts only."""
        size = count_inner_bytes(self.program, block, self.sizes)
        arrays = tuple(
            self.program.arrays[name]
            for statement in block.statements
            for name in (*statement.operands, statement.result)
        )
        is_real = all(array.dtype.char in TOLERANCE for array in arrays)
        # parts only: no inner results, or more than fits into a cache
        if not (0 < size <= MAX_WHOLE_BYTES and is_real):
            return None
        program, sizes, n_workers = self.program, self.sizes, self.n_workers

        def run_whole(operands: Mapping[str, Array]) -> dict[str, Array]:
            return _Run(program, sizes, n_workers).run_one_by_one(block, operands, {})

        key = block, arrays, tuple(sorted(sizes.items())), n_workers
        return get_shared_choice(key, lambda: KernelChoice(lambda: run_whole))

    def run_one_by_one(
        self, block: FusedStages, arrays: Mapping[str, Array], owned: dict[str, Array]
    ) -> dict[str, Array]:
        """Return the outputs of a block, each stage as a whole."""
        frame = _Frame({**arrays, **owned}, {})
        for k, stage in enumerate(block.stages):
            spent = block.list_spent(k, owned)
            frame.inside.update(self.stage(stage, frame, spent))
            for name in spent:
                for holder in (owned, frame.outside, frame.inside):
                    holder.pop(name, None)
        return {name: frame.inside[name] for name in block.outputs}

    def run_in_parts(
        self, block: FusedStages, arrays: dict[str, Array]
    ) -> dict[str, Array]:
        """Return the outputs of a block, for a few values of its cuts at a time."""
        results = {
            name: _allocate(
                self.program.shape_at(name, self.sizes), self.program.arrays[name].dtype
            )
            for name in block.outputs
        }
        # parts run in parallel, so each of them gets one thread
        single_threaded = _Run(self.program, self.sizes, n_workers=1)

        def run(values: Sequence[slice]) -> None:
            boxes = {x.result: block.box_of(x.result, values) for x in block.statements}
            frame = _Frame(arrays, boxes)
            for k, stage in enumerate(block.stages):
                frame.inside.update(
                    single_threaded.stage(stage, frame, block.list_spent(k))
                )
                for x in stage.statements:
                    if x.result in results:
                        part = slice_array(results[x.result], x.output, frame.box(x))
                        part[...] = frame.inside[x.result]

        run_each(run, [*block.boxes()], self.n_workers)
        return results

    def stage(
        self, stage: Stage, frame: _Frame, spent: AbstractSet[str]
    ) -> dict[str, Array]:
        """Compute the outputs of a stage in a box; ``spent`` may be overwritten."""
        if stage.is_contraction:
            (statement,) = stage.statements
            value = compute_contraction(statement, frame.operands(statement))
            dtype = self.program.arrays[statement.result].dtype
            return {statement.result: value.astype(dtype, copy=False)}
        if stage.is_numpy:
            (statement,) = stage.statements
            value = evaluate_statement(statement, frame.operands(statement))
            # copied, because an output must not be a view of an input
            is_wanted = statement.result in self.program.outputs
            return {statement.result: value.copy() if is_wanted else value}
        # memory that views share must not be overwritten
        spent = spent - self.program.shared
        part = self._make_part(stage, frame, spent)
        run_each(compute, part.shares(self.n_workers), self.n_workers)
        return dict(part.outs)

    def _make_part(self, stage: Stage, frame: _Frame, spent: AbstractSet[str]) -> Part:
        """Return a stage within a box, with memory for its results."""
        operands, first, extents = {}, {}, {}
        for statement in stage.statements:
            name, box = statement.result, frame.box(statement)
            operands[name] = frame.operands(statement)
            first[name] = {index: values.start for index, values in box.items()}
            extents[name] = self.program.extents_at(statement, self.sizes) | {
                index: values.stop - values.start for index, values in box.items()
            }
        reused = find_overwritten(self.program, stage, spent)
        memory: dict[str, Array] = {}
        for statement in stage.statements:
            name = statement.result
            if (k := reused.get(name)) is not None:
                array = operands[name][k]
                array = memory.get(statement.operands[k]) if array is None else array
                if array is not None:
                    memory[name] = array
            elif name in stage.outputs:
                shape = tuple(extents[name][i] for i in statement.output)
                memory[name] = _allocate(shape, self.program.arrays[name].dtype)
        outs = {name: memory[name] for name in stage.outputs}
        names = stage.operands | {x.result for x in stage.statements}
        dtypes = {name: self.program.arrays[name].dtype for name in names}
        return Part(stage, operands, outs, reused, first, extents, dtypes)


@dataclass
class _Frame:
    """The arrays that statements read, restricted to a box of index values.

    Attributes:
        outside: whole arrays from before the block.
        boxes: the box of each statement, by its result.
        inside: results that were computed for the box alone.
    """

    outside: dict[str, Array]
    boxes: Mapping[str, Box]
    inside: dict[str, Array] = field(default_factory=dict)

    def box(self, statement: Statement) -> Box:
        return self.boxes.get(statement.result, {})

    def operands(self, statement: Statement) -> list[Any]:
        """Return the operands of a statement; None for those of its own stage."""
        return [
            self.inside[name]
            if name in self.inside
            else slice_array(self.outside[name], term, self.box(statement))
            if name in self.outside
            else None
            for name, term in statement.accesses
        ]


def _allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new array, in recycled memory."""
    from feinsum.result_memory import make_aligned

    return make_aligned(shape, dtype)


def find_overwritten(
    program: Program, stage: Stage, spent: AbstractSet[str]
) -> Mapping[str, int]:
    """Find the operands whose memory the results of maps can reuse.

    Such an operand has the axes, their order and the dtype of the result, and no later
    statement reads it. The result of a whole array needs the memory of a whole array.

    Returns:
        The number of the operand, by the result of the statement.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> from feinsum.programs.stages import list_stages
    >>> p = program()
    >>> _ = p.softmax(array("X", (4, 4)))
    >>> built = p.build()
    >>> (stage,) = list_stages(built)
    >>> find_overwritten(built, stage, {"X"}), find_overwritten(built, stage, set())
    ({'r1': 0, 'r3': 0}, {})
    """
    inner = {statement.result for statement in stage.statements} - {*stage.outputs}
    # inner results of a stage are only as large as a part
    is_whole = {name: name not in inner for name in (*spent, *inner)}
    reused: dict[str, int] = {}
    for number, statement in enumerate(stage.statements):
        for k, name in enumerate(statement.operands):
            is_ours = name in spent or name in inner
            fits = is_whole.get(name, False) or statement.result in inner
            if is_ours and fits and _can_take(program, stage, number, k):
                reused[statement.result] = k
                is_whole[statement.result] = is_whole[name]
                break
    return reused


def _can_take(program: Program, stage: Stage, number: int, k: int) -> bool:
    statement = stage.statements[number]
    name, term = statement.operands[k], statement.inputs[k]
    return (
        not statement.reduced_indices
        and term == statement.output
        and statement.operands.count(name) == 1
        and program.arrays[name].dtype == program.arrays[statement.result].dtype
        and all(name not in later.operands for later in stage.statements[number + 1 :])
        and all(
            _is_same_read(stage, statement, term, earlier, other_term)
            for earlier in stage.statements[:number]
            for operand, other_term in earlier.accesses
            if operand == name
        )
    )


def _is_same_read(
    stage: Stage,
    statement: Statement,
    term: Sequence[str],
    other: Statement,
    other_term: Sequence[str],
) -> bool:
    """Return whether a part of either statement reads the same part of an array."""
    return all(
        [index == cut[statement.result] for index in term]
        == [index == cut[other.result] for index in other_term]
        for cut in stage.cuts
    )


def compute_contraction(statement: Statement, operands: Sequence[Array]) -> Array:
    """Compute a contraction by :func:`feinsum.call_einsum`.

    numpy computes it for dtypes that are neither real nor complex, and if there is no
    device, for example without a compiler.

    >>> product = Statement("C", "ik", ("ij", "jk"), ("A", "B"), "2*x0*x1")
    >>> compute_contraction(product, [np.eye(2), np.eye(2)]).tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """
    from feinsum.calling import call_einsum  # plans are read without it

    # recipes are of real and complex numbers; einsum strings have letters
    is_called = len(statement.indices) <= MAX_LETTERS and all(
        array.dtype.kind in "fc" and array.size for array in operands
    )
    if not is_called:
        return evaluate_statement(statement, operands)
    letters = dict(zip(statement.indices, ascii_letters, strict=False))
    terms = ",".join("".join(letters[i] for i in term) for term in statement.inputs)
    output = "".join(letters[i] for i in statement.output)
    try:
        product = np.asarray(call_einsum(f"{terms}->{output}", *operands))
    # without a compiler, programs run as numpy
    except DeviceUnavailableError as error:
        logger.info("computing %s with numpy: %s", statement.result, error)
        return evaluate_statement(statement, operands)
    if statement.factor != 1:
        product *= statement.factor  # in place: a contraction makes a new array
    return product
