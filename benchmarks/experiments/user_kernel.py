"""The Loopy kernel of an entry, as users write it."""

from __future__ import annotations

from collections.abc import Sequence

import loopy as lp
import numpy as np

from benchmarks.experiments.entries import Entry
from benchmarks.experiments.functions import Function


def make_user_kernel(entry: Entry) -> lp.TranslationUnit:
    """Make a kernel with one instruction per row; functions are inline or substitution
    rules.

    Run-time sizes are arguments; other extents are literals.
    """
    params = list(entry.parameters)
    extents = {index: str(extent) for index, extent in entry.extents.items()}
    bounds = " and ".join(f"0<={index}<{extent}" for index, extent in extents.items())
    rules = [_write_rule(f, term) for f, term in entry.operands.items() if f.is_rule]
    return lp.make_kernel(
        f"[{','.join(params)}] -> {{[{','.join(extents)}]: {bounds}}}",
        "\n".join([*rules, *_write_instructions(entry)]),
        _make_arguments(entry, extents, params),
        name=entry.name.replace("-", "_"),
        lang_version=(2018, 2),
    )


def _write_rule(function: Function, term: str) -> str:
    names = [f"{index}_" for index in term]
    return f"{function.name}({','.join(names)}) := {function.format(names)}"


def _write_instructions(entry: Entry) -> list[str]:
    summed = ",".join(i for i in entry.sizes if i not in entry.output)
    return [
        f"{out}[{','.join(entry.output)}] = sum([{summed}], "
        + "*".join(_write_operand(f, t) for f, t in zip(row, entry.terms, strict=True))
        + ")"
        for out, row in zip(entry.outputs, entry.rows, strict=True)
    ]


def _write_operand(function: Function, term: str) -> str:
    if function.is_rule:
        return f"{function.name}({','.join(term)})"
    return function.format(list(term))


def _make_arguments(
    entry: Entry, extents: dict[str, str], params: Sequence[str]
) -> list[lp.KernelArgument]:
    shapes = {
        name: shape
        for function, term in entry.operands.items()
        for name, shape in _write_shapes(function, [extents[i] for i in term]).items()
    }
    output = ",".join(extents[index] for index in entry.output)
    shapes |= dict.fromkeys(entry.outputs, output)
    return [
        *(
            lp.GlobalArg(name, np.float64, shape=shape)
            for name, shape in shapes.items()
        ),
        *(lp.ValueArg(name, np.float64) for name in entry.scalars),
        *(lp.ValueArg(name, np.int32) for name in params),
    ]


def _write_shapes(function: Function, extents: list[str]) -> dict[str, str]:
    """Return the shapes of the arrays of a function, as text."""
    ranks = function.list_shapes((3,) * len(extents))
    return {
        name: ",".join(extents[len(extents) - len(shape) :])
        for name, shape in ranks.items()
    }
