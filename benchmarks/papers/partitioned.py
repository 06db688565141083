"""Running a program by its decomposition in one process, and counting what moves.

Each statement joins blocks of its operands, with one kernel call for each combination
of parts, and aggregates partial results. Blocks that a reader needs in another
partition are assembled from the existing ones.

Source: EinDecomp, section 4 (tensor relations: join, aggregation, repartition).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from benchmarks.papers.decompose import Decomposition
from benchmarks.papers.partition import Partition
from feinsum.ir.evaluate import checked_arrays, evaluate_statement
from feinsum.ir.reductions import reduced
from feinsum.ir.statement import Statement

Array = np.ndarray[Any, np.dtype[Any]]
Place = tuple[int, ...]
"""Position of a block among the blocks of an array."""


@dataclass
class Moved:
    """Elements that were moved."""

    join: int = 0
    aggregation: int = 0


def run_partitioned(
    decomposition: Decomposition, arrays: Mapping[str, Any]
) -> tuple[Mapping[str, Array], Moved]:
    """Run a decomposition; returns outputs by name, and the traffic.

    Raises:
        ProgramError: if an array is missing or has the wrong shape or dtype.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> from benchmarks.papers.decompose import decompose
    >>> p = program()
    >>> _ = p.einsum("ij,jk->ik", array("A", (8, 8)), array("B", (8, 8)), name="C")
    >>> found = decompose(p.build(), 16)
    >>> results, moved = run_partitioned(found, {"A": np.eye(8), "B": np.eye(8)})
    >>> bool((results["C"] == np.eye(8)).all()), moved.join, moved.aggregation
    (True, 384, 64)
    """
    program, moved = decomposition.program, Moved()
    known = dict(checked_arrays(program, arrays))
    for one in program.statements:
        parts = decomposition.partitions[one.result]
        operands = [known[name] for name in one.operands]
        result = _run(one, operands, parts, moved)
        dtype = program.arrays[one.result].dtype
        known[one.result] = result.astype(dtype, copy=False)
    return {name: known[name] for name in program.outputs}, moved


def _run(
    one: Statement, operands: Sequence[Array], parts: Partition, moved: Moved
) -> Array:
    extents: dict[str, int] = {}
    for term, array in zip(one.inputs, operands, strict=True):
        extents.update(zip(term, array.shape, strict=True))
    if 0 in extents.values():
        return evaluate_statement(one, operands)
    starts = {index: _starts(extents[index], n) for index, n in parts.items()}
    partial: dict[Place, list[Array]] = {}
    for places in product(*(range(parts[index]) for index in one.indices)):
        at = {
            index: starts[index][place : place + 2]
            for index, place in zip(one.indices, places, strict=True)
        }
        blocks = [
            array[tuple(slice(*at[index]) for index in term)]
            for array, term in zip(operands, one.inputs, strict=True)
        ]
        moved.join += sum(block.size for block in blocks)
        if all(low < high for low, high in at.values()):
            low = {index: bounds[0] for index, bounds in at.items()}
            result = evaluate_statement(one, blocks, low)
            partial.setdefault(places[: len(one.output)], []).append(result)
    return _aggregated(one, partial, [starts[index] for index in one.output], moved)


def _aggregated(
    one: Statement,
    partial: Mapping[Place, Sequence[Array]],
    starts: Sequence[Sequence[int]],
    moved: Moved,
) -> Array:
    """The result, from partial results of each of its blocks."""
    blocks = {}
    for place, results in partial.items():
        moved.aggregation += sum(result.size for result in results[1:])
        blocks[place] = reduced(one.reduction, np.stack(results), (0,))
    dtype = next(iter(blocks.values())).dtype
    whole = np.empty([ends[-1] for ends in starts], dtype)
    for place, block in blocks.items():
        bounds = (ends[k : k + 2] for ends, k in zip(starts, place, strict=True))
        whole[tuple(slice(*two) for two in bounds)] = block
    return whole


def _starts(extent: int, parts: int) -> list[int]:
    """Where the parts of an index begin, and where the last one ends."""
    longest = -(-extent // parts)
    return [min(k * longest, extent) for k in range(parts + 1)]
