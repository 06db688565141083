"""Programs on many processes: the plan of least elements moved, and its statements.

Counts do not depend on what a statement computes of its operands. So the planner of
einsums plans programs: it is told who reads what along which indices.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from feinsum.errors import ProgramError
from feinsum.plans import Counts, Plan, plan_statements
from feinsum.plans.local import run_here
from feinsum.plans.mpi import Traffic, run_on_ranks
from feinsum.plans.steps import Leaf
from feinsum.programs.dataflow import statements_of
from feinsum.programs.evaluate import checked_arrays, evaluate_statement
from feinsum.programs.program import Program
from feinsum.programs.reductions import combined, neutral_of
from feinsum.programs.statement import Statement

__all__ = ["ProgramPlan", "plan_program"]

Array = NDArray[Any]


@dataclass(frozen=True)
class ProgramPlan:
    """A program, and the plan of who computes which part of it.

    Attributes:
        sizes: of the size parameters.
        plan: of the same statements, each of the same name.
    """

    program: Program
    sizes: Mapping[str, int]
    plan: Plan

    @property
    def counts(self) -> Counts:
        """Elements that are moved, exactly."""
        return self.plan.counts

    def simulate(self, arrays: Mapping[str, Any]) -> Mapping[str, Array]:
        """The outputs by name, with all processes in this one."""
        known = checked_arrays(self.program, arrays)
        read = {name: known[name] for name in self.plan.operands}
        found: Mapping[str, Array] = run_here(self.plan, read, meaning=self._meaning)
        return found

    def run(
        self,
        blocks: Mapping[str, Any],
        comm: Any = None,
        traffic: Traffic | None = None,
    ) -> Mapping[str, Array | None]:
        """This rank's part of each output; see :func:`feinsum.plans.run_on_ranks`."""
        found: Mapping[str, Array | None] = run_on_ranks(
            self.plan, blocks, comm, meaning=self._meaning, traffic=traffic
        )
        return found

    @cached_property
    def _meaning(self) -> _Bodies:
        return _Bodies(self.program)

    def __str__(self) -> str:
        return str(self.plan)


def plan_program(
    program: Program,
    processes: int,
    *,
    sizes: Mapping[str, int] | None = None,
    memory: int | str | None = None,
) -> ProgramPlan:
    """Plan a program for a number of processes, so that the fewest elements are moved.

    Args:
        sizes: of the size parameters.
        memory: of a process; see :func:`feinsum.plan`.

    Raises:
        ProgramError: if a size is missing.
        PlanError: if there is no plan, such as for want of memory.

    >>> import numpy as np
    >>> from feinsum.programs.builder import program
    >>> from feinsum.programs.macros import multi_head_attention
    >>> p = program()
    >>> X = p.input("X", (8, 16))
    >>> _ = p.output(multi_head_attention(p, X, heads=4, entries=4))
    >>> plan = plan_program(p.build(), processes=4)
    >>> arrays = {x.name: np.ones(x.shape) for x in p.inputs}
    >>> plan.simulate(arrays)["r9"].shape
    (8, 16)
    """
    known = dict(sizes or {})
    statements = statements_of(program, known)
    made = plan_statements(statements, processes=processes, memory=memory)
    return ProgramPlan(program, known, made)


class _Bodies:
    """The meaning of the statements of a program, for the engines of plans."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.id = hashlib.sha256(str(program).encode()).hexdigest()

    def dtype(self, tensor: str) -> Any:
        return self._program.arrays[tensor].dtype

    def leaf(self, step: Leaf, blocks: Sequence[Array]) -> Array:
        one = self._program.statements[step.group]
        first = {
            index: low
            for term, (_, box) in zip(one.inputs, step.sources, strict=True)
            for index, (low, _) in zip(term, box, strict=True)
        }
        return evaluate_statement(one, blocks, first)

    def combined(self, tensor: str, one: Array, other: Array) -> Any:
        return combined(self._statement(tensor).reduction, one, other)

    def neutral(self, tensor: str) -> Any:
        reduction = self._statement(tensor).reduction
        found = neutral_of(reduction, self.dtype(tensor))
        if found is None:
            raise ProgramError(
                f"{tensor}: the reduction {reduction!r} has no neutral element among "
                "0, 1 and the infinities, so partial results cannot be reduced",
                rules=("reduction",),
            )
        return found

    def _statement(self, tensor: str) -> Statement:
        return self._program.producers[tensor]
