"""Who reads what along which indices: all that a planner needs of a program."""

from __future__ import annotations

from collections.abc import Mapping

from feinsum.errors import ProgramError
from feinsum.ir import SizeParam
from feinsum.plans import Access, Group, Statements
from feinsum.programs.program import Program


def name_of_index(result: str, index: str) -> str:
    """A name for an index of a statement that is unique across all statements."""
    return f"{result}_{index}"


def statements_of(program: Program, sizes: Mapping[str, int]) -> Statements:
    """Who reads what along which indices, with unique index names.

    Raises:
        ProgramError: if the value of a size parameter is missing, or if the program has
            a numpy statement.
    """
    for one in program.statements:
        if one.is_numpy:
            raise ProgramError(
                f"{one.result} is computed by numpy as a whole ({one.body:.80}): such "
                "a program runs on one machine, and cannot be planned for several "
                "processes",
                rules=("plan",),
            )
    extents: dict[str, int] = {}
    groups = []
    for one in program.statements:
        names = {index: name_of_index(one.result, index) for index in one.indices}
        for index, extent in program.extents(one).items():
            extents[names[index]] = _value(extent, sizes)
        inputs = tuple(
            Access(name, tuple(names[i] for i in term))
            for name, term in zip(one.operands, one.inputs, strict=True)
        )
        output = Access(one.result, tuple(names[i] for i in one.output))
        groups.append(Group(inputs, output))
    read = {name for one in program.statements for name in one.operands}
    dtypes = {x.name: x.dtype.str for x in program.inputs if x.name in read}
    return Statements(tuple(groups), extents, dtypes, program.outputs).check()


def _value(extent: int | SizeParam, sizes: Mapping[str, int]) -> int:
    if isinstance(extent, int):
        return extent
    if extent.name not in sizes:
        raise ProgramError(f"size {extent} has no value; pass sizes={{...}}")
    return sizes[extent.name]
