"""Maps in place: results in memory that nothing reads any more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from feinsum.programs.program import Program
from feinsum.programs.stages import Stage
from feinsum.programs.statement import Statement


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
