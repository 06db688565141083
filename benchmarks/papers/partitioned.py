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
from feinsum.ir.evaluation import check_arrays, evaluate_statement
from feinsum.ir.reductions import reduce_axes
from feinsum.ir.statement import Statement

Array = np.ndarray[Any, np.dtype[Any]]
Position = tuple[int, ...]
"""Position of a block among the blocks of an array."""


@dataclass
class Traffic:
    """Elements that were moved."""

    join: int = 0
    aggregation: int = 0


def run_partitioned(
    decomposition: Decomposition, arrays: Mapping[str, Any]
) -> tuple[Mapping[str, Array], Traffic]:
    """Run a decomposition; return outputs by name, and the traffic.

    Raises:
        ProgramError: if an array is missing or has the wrong shape or dtype.

    >>> from feinsum.ir import array
    >>> from feinsum.programs.builder import program
    >>> from benchmarks.papers.decompose import decompose
    >>> p = program()
    >>> _ = p.einsum("ij,jk->ik", array("A", (8, 8)), array("B", (8, 8)), name="C")
    >>> best = decompose(p.build(), 16)
    >>> results, moved = run_partitioned(best, {"A": np.eye(8), "B": np.eye(8)})
    >>> bool((results["C"] == np.eye(8)).all()), moved.join, moved.aggregation
    (True, 384, 64)
    """
    program, traffic = decomposition.program, Traffic()
    values = dict(check_arrays(program, arrays)[0])
    for statement in program.statements:
        parts = decomposition.partitions[statement.result]
        operands = [values[name] for name in statement.operands]
        result = _run(statement, operands, parts, traffic)
        dtype = program.arrays[statement.result].dtype
        values[statement.result] = result.astype(dtype, copy=False)
    return {name: values[name] for name in program.outputs}, traffic


def _run(
    statement: Statement, operands: Sequence[Array], parts: Partition, traffic: Traffic
) -> Array:
    extents: dict[str, int] = {}
    for term, array in zip(statement.inputs, operands, strict=True):
        extents.update(zip(term, array.shape, strict=True))
    # nothing to divide
    if 0 in extents.values():
        return evaluate_statement(statement, operands)
    starts = {index: _part_bounds(extents[index], n) for index, n in parts.items()}
    partial: dict[Position, list[Array]] = {}
    for position in product(*(range(parts[index]) for index in statement.indices)):
        at = {
            index: starts[index][number : number + 2]
            for index, number in zip(statement.indices, position, strict=True)
        }
        blocks = [
            array[tuple(slice(*at[index]) for index in term)]
            for array, term in zip(operands, statement.inputs, strict=True)
        ]
        # counted for each call, also of empty blocks, as the paper does
        traffic.join += sum(block.size for block in blocks)
        if all(low < high for low, high in at.values()):
            low = {index: bounds[0] for index, bounds in at.items()}
            result = evaluate_statement(statement, blocks, low)
            partial.setdefault(position[: len(statement.output)], []).append(result)
    return _aggregate(
        statement, partial, [starts[index] for index in statement.output], traffic
    )


def _aggregate(
    statement: Statement,
    partial: Mapping[Position, Sequence[Array]],
    starts: Sequence[Sequence[int]],
    traffic: Traffic,
) -> Array:
    """Return the result, from partial results of each of its blocks."""
    blocks = {}
    for position, results in partial.items():
        # the first partial result stays where it is
        traffic.aggregation += sum(result.size for result in results[1:])
        blocks[position] = reduce_axes(statement.reduction, np.stack(results), (0,))
    dtype = next(iter(blocks.values())).dtype
    whole = np.empty([ends[-1] for ends in starts], dtype)
    for position, block in blocks.items():
        bounds = (ends[k : k + 2] for ends, k in zip(starts, position, strict=True))
        whole[tuple(slice(*pair) for pair in bounds)] = block
    return whole


def _part_bounds(extent: int, parts: int) -> list[int]:
    """Return where the parts of an index begin, and where the last one ends."""
    longest = -(-extent // parts)
    return [min(k * longest, extent) for k in range(parts + 1)]
