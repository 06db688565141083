"""Programs on one node: contractions by their recipes, all else part by part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from feinsum.ir import SizeParam
from feinsum.programs.evaluate import checked_arrays, evaluate_statement
from feinsum.programs.program import Program
from feinsum.programs.stages import Stage, stages_of
from feinsum.programs.statement import Statement

__all__ = ["run_program", "sizes_of"]

Array = np.ndarray[Any, np.dtype[Any]]

PART_BYTES = 1 << 18
"""Of the largest array of a part: several of them fit into a second-level cache."""
MOST_LETTERS = len(ascii_letters)


def run_program(program: Program, arrays: Mapping[str, Any]) -> Mapping[str, Array]:
    """The outputs of a program by name.

    Contractions are calls of :func:`feinsum.call_einsum`. An intermediate
    result is freed after its last use.

    Args:
        arrays: for each input's name an array of its shape and dtype.

    Raises:
        ProgramError: if an array is missing or of another shape or dtype.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> p = program()
    >>> _ = p.softmax(array("X", (2, 2)), name="Y")
    >>> run_program(p.build(), {"X": np.zeros((2, 2))})["Y"].tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    known = dict(checked_arrays(program, arrays))
    sizes = sizes_of(program, known)
    stages = stages_of(program)
    for k, stage in enumerate(stages):
        if stage.is_contraction:
            (one,) = stage.statements
            known[one.result] = _einsum(program, one, known)
        else:
            known |= _in_parts(program, stage, known, sizes)
        later = {
            name
            for s in stages[k + 1 :]
            for one in s.statements
            for name in one.operands
        }
        for name in [name for name in known if name not in later]:
            if name not in program.outputs:
                del known[name]
    return {name: known[name] for name in program.outputs}


def sizes_of(program: Program, arrays: Mapping[str, Any]) -> dict[str, int]:
    """The size parameters, as the arrays have them.

    Raises:
        ProgramError: if an array is missing or of another shape or dtype.
    """
    known = checked_arrays(program, arrays)
    return {
        extent.name: n
        for operand in program.inputs
        for extent, n in zip(operand.shape, known[operand.name].shape, strict=True)
        if isinstance(extent, SizeParam)
    }


def _einsum(program: Program, one: Statement, known: Mapping[str, Array]) -> Array:
    from feinsum.calling import call_einsum

    operands = [known[name] for name in one.operands]
    dtype = program.arrays[one.result].dtype
    is_called = len(one.indices) <= MOST_LETTERS and all(
        array.dtype.kind in "fc" for array in operands
    )
    if not is_called or any(0 in array.shape for array in operands):
        return evaluate_statement(one, operands).astype(dtype, copy=False)
    letters = dict(zip(one.indices, ascii_letters, strict=False))
    terms = ",".join("".join(letters[i] for i in term) for term in one.inputs)
    output = "".join(letters[i] for i in one.output)
    found = np.asarray(call_einsum(f"{terms}->{output}", *operands))
    if one.factor != 1:
        found *= one.factor  # it is ours: a contraction is no view
    return found.astype(dtype, copy=False)


def _in_parts(
    program: Program, stage: Stage, known: Mapping[str, Array], sizes: Mapping[str, int]
) -> dict[str, Array]:
    """The results of a stage that are kept."""
    from feinsum.targets.host.threads import n_threads

    results = {}
    for name in stage.kept:
        operand = program.arrays[name]
        shape = [
            sizes[x.name] if isinstance(x, SizeParam) else x for x in operand.shape
        ]
        results[name] = np.empty(shape, operand.dtype)
    parts = [*_parts(program, stage, sizes)]

    def run(part: slice | None) -> None:
        _run_part(program, stage, known, results, part)

    n_workers = min(n_threads(), len(parts))
    if n_workers == 1:
        for part in parts:
            run(part)
        return results
    with ThreadPoolExecutor(n_workers) as pool:  # numpy works without the lock
        list(pool.map(run, parts))
    return results


def _parts(
    program: Program, stage: Stage, sizes: Mapping[str, int]
) -> Iterator[slice | None]:
    """Values of the index that is cut; None for all of them."""
    if not stage.cut:
        yield None
        return
    first = stage.statements[0]
    extents = program.extents(first)
    extent = _value(extents[stage.cut[first.result]], sizes)
    most = max(
        prod(_value(x, sizes) for x in program.extents(one).values())
        * program.arrays[one.result].dtype.itemsize
        for one in stage.statements
    )
    n_parts = max(1, -(-most // PART_BYTES))
    length = max(1, extent // n_parts)
    for start in range(0, max(extent, 1), length):
        yield slice(start, min(start + length, extent))


def _value(extent: int | SizeParam, sizes: Mapping[str, int]) -> int:
    return extent if isinstance(extent, int) else sizes[extent.name]


def _run_part(
    program: Program,
    stage: Stage,
    known: Mapping[str, Array],
    results: Mapping[str, Array],
    part: slice | None,
) -> None:
    inside: dict[str, Array] = {}
    for one in stage.statements:
        cut = stage.cut.get(one.result)
        operands = [
            inside[name] if name in inside else _taken(known[name], term, cut, part)
            for name, term in zip(one.operands, one.inputs, strict=True)
        ]
        first = {cut: part.start} if cut is not None and part is not None else None
        value = evaluate_statement(one, operands, first)
        dtype = program.arrays[one.result].dtype
        inside[one.result] = value.astype(dtype, copy=False)
        if one.result in results:
            whole = results[one.result]
            _taken(whole, one.output, cut, part)[...] = inside[one.result]


def _taken(
    array: Array, term: Sequence[str], cut: str | None, part: slice | None
) -> Array:
    """The part of an array along an index, as a view."""
    if cut is None or part is None:
        return array
    return array[tuple(part if index == cut else slice(None) for index in term)]
