"""Kernels of fusions: retrieved, checked, and used if they are faster.

The kernel is that of a functional batched einsum, with a recorded or predicted recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from feinsum.ir import Extent, Operand, SizeParam
from feinsum.ir.program import Program
from feinsum.programs.fusion import Fusion, array_name
from feinsum.programs.race import Race, Results, kept_race

Array = np.ndarray[Any, np.dtype[Any]]
Kernel = Callable[[Mapping[str, Array]], Results]


def race_of(
    program: Program, fusion: Fusion, sizes: Mapping[str, int]
) -> Race[Mapping[str, Array]]:
    """The race of a fusion, shared by programs with the same statements."""
    arrays = tuple(program.arrays[name] for name in (*fusion.operands, *fusion.results))
    key = fusion.rows, arrays, tuple(sorted(sizes.items()))
    return kept_race(key, lambda: _kernel(program, fusion, dict(sizes)))


def _kernel(program: Program, fusion: Fusion, sizes: dict[str, int]) -> Kernel:
    """The kernel with the best recipe that is known or predicted.

    Raises:
        FeinsumError: if there is none, or if it cannot be built.
    """
    # loads Loopy, for a second
    from feinsum.codegen.generate import Row, generate_rows
    from feinsum.measure import compile_kernel, open_device
    from feinsum.result_memory import aligned_empty
    from feinsum.retrieval import retrieve

    first = fusion.rows[0]
    extents = {
        first.indices[i]: n for i, n in program.extents(first.contraction).items()
    }
    rows = [
        Row(
            _in_kernel(program.arrays[row.last.result]),
            _output(row),
            row.factors(),
            *row.scale_and_shift(),
        )
        for row in fusion.rows
    ]
    arrays = [_in_kernel(program.arrays[name]) for name in fusion.operands]
    opened = open_device("")
    unit = opened.prepare(generate_rows(rows, arrays, extents))
    used = {x.name: sizes[x.name] for x in extents.values() if isinstance(x, SizeParam)}
    found = retrieve(unit, arguments=used, on_miss="raise")
    built = compile_kernel(found, opened).built
    shapes = {
        name: tuple(_value(n, sizes) for n in program.arrays[name].shape)
        for name in fusion.results
    }

    def kernel(given: Mapping[str, Array]) -> Results:
        results = {
            name: aligned_empty(shapes[name], program.arrays[name].dtype)
            for name in fusion.results
        }
        values = {
            array_name(name): np.ascontiguousarray(array)
            for name, array in {**given, **results}.items()
        }
        built.run({**values, **used}, "wall")
        return results

    return kernel


def _output(row: Any) -> tuple[str, ...]:
    """The output indices in the order of the result's axes, in names of the batch."""
    if row.finish is None:
        return tuple(row.indices[i] for i in row.contraction.output)
    one = row.finish
    term = one.inputs[one.operands.index(row.contraction.result)]
    names = dict(zip(term, row.contraction.output, strict=True))
    return tuple(row.indices[names[i]] for i in one.output)


def _in_kernel(operand: Operand) -> Operand:
    return Operand(array_name(operand.name), operand.shape, operand.dtype)


def _value(extent: Extent, sizes: Mapping[str, int]) -> int:
    return sizes[extent.name] if isinstance(extent, SizeParam) else extent
