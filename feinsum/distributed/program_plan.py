"""Programs on many processes: the plan whose slowest process finishes first.

Counts do not depend on the bodies of statements, so the planner for einsums also plans
programs: it only needs to know which statement reads which array along which indices.
Names of indices are local to a statement, and global in a plan::

    E[h,s,t] = sum x0*x1 : Q[h,s,e], K[h,t,e]      E_h, E_s, E_t, E_e
    S[h,s]   = sum exp(x0) : E[h,s,t]              S_h, S_s, S_t
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from numpy.typing import NDArray

from feinsum.distributed.assembly import Placement
from feinsum.distributed.boxes import Box
from feinsum.distributed.counts import USUAL, Counts, Rates, Traffic
from feinsum.distributed.display import format_plan
from feinsum.distributed.engines import Prepared, prepare
from feinsum.distributed.groups import Access, Group
from feinsum.distributed.levels import Levels
from feinsum.distributed.local import Semantics, run_here
from feinsum.distributed.mpi import run_on_ranks
from feinsum.distributed.planner import plan_statements
from feinsum.distributed.plans import Plan, read_document
from feinsum.distributed.statement_graph import Statements
from feinsum.distributed.steps import Leaf
from feinsum.errors import PlanError, ProgramError
from feinsum.ir import SizeParam
from feinsum.ir.evaluation import check_arrays, evaluate_statement
from feinsum.ir.program import Program
from feinsum.ir.reductions import combine, find_neutral
from feinsum.ir.statement import Statement
from feinsum.ir.text import program_from_text
from feinsum.programs.local import compute_contraction
from feinsum.records.document import Part, compute_content_id, to_json

Array = NDArray[Any]


@dataclass(frozen=True)
class ProgramPlan:
    """A program with a plan for many processes: data without code.

    Attributes:
        sizes: values of the size parameters.
        plan: a plan of the same statements, with the same names.
    """

    program: Program
    sizes: Mapping[str, int]
    plan: Plan

    @cached_property
    def id(self) -> str:
        """SHA-256 of the document: equal exactly if the plans are."""
        return compute_content_id(self._document)

    @property
    def _document(self) -> _Document:
        return _Document(str(self.program), dict(self.sizes), self.plan)

    def to_json(self) -> str:
        """Return the plan as a document, which contains the program as text."""
        return to_json(self._document)

    @classmethod
    def from_json(cls, text: str | bytes) -> ProgramPlan:
        """Read and check a document written by :meth:`to_json`.

        Raises:
            PlanError: naming every broken rule.
            ProgramError: if the program is ill-formed.
        """
        document = read_document(_Document, text, "plan of a program")
        program = program_from_text(document.program)
        return cls(program, document.sizes, document.plan).check()

    def check(self) -> ProgramPlan:
        """Return the plan itself.

        Raises:
            PlanError: naming every rule that is broken.
            ProgramError: if a size is missing.
        """
        # a document may combine a program with the plan of another one
        if self.plan.statements != build_statements(self.program, self.sizes):
            raise PlanError(
                "the plan does not match the statements of its program; create it "
                "again",
                rules=("statements",),
            )
        self.plan.check()
        return self

    def prepare(self, engine: str = "local", on: Any = None) -> Prepared:
        """Prepare for any number of inputs, on an engine.

        Args:
            engine: one of :data:`feinsum.distributed.ENGINES`.
            on: an mpi4py communicator for ``mpi``, a Dask client for ``dask``.

        Raises:
            PlanError: if there is no such engine, or if it cannot run this plan.

        >>> import numpy as np
        >>> from feinsum.ir import array
        >>> from feinsum.programs.builder import program
        >>> p = program()
        >>> _ = p.softmax(array("X", (4, 4)), name="Y")
        >>> outcomes = p.plan(processes=2).prepare().stream([{"X": np.eye(4)}] * 2)
        >>> [outcome.results["Y"].sum() for outcome in outcomes]
        [np.float64(4.0), np.float64(4.0)]
        """
        return prepare(self.plan, engine, on, meaning=self.meaning)

    @property
    def counts(self) -> Counts:
        """The exact traffic."""
        return self.plan.counts

    def simulate(self, arrays: Mapping[str, Any]) -> Mapping[str, Array]:
        """Compute the outputs by name, with all ranks in this process."""
        operands = self.read_operands(arrays)
        results: Mapping[str, Array] = run_here(
            self.plan, operands, meaning=self.meaning
        )
        return results

    def read_operands(self, arrays: Mapping[str, Any]) -> Mapping[str, Array]:
        """Return the checked inputs that statements read.

        Raises:
            ProgramError: if an array is missing or has the wrong shape or dtype.
        """
        return self.meaning.read(arrays)

    def run(
        self,
        blocks: Mapping[str, Any],
        comm: Any = None,
        traffic: Traffic | None = None,
        *,
        record: Any = None,
    ) -> Mapping[str, Array | None]:
        """Compute this rank's parts; see :func:`feinsum.distributed.mpi.run_on_ranks`.

        Args:
            blocks: see :func:`feinsum.distributed.mpi.run_on_ranks`.
            comm: see :func:`feinsum.distributed.mpi.run_on_ranks`.
            traffic: see :func:`feinsum.distributed.mpi.run_on_ranks`.
            record: a database, as in :meth:`feinsum.distributed.Plan.run`.
        """
        parts: Mapping[str, Array | None]
        if record is not None:
            from feinsum.distributed.recorded import record_on_ranks

            parts, _ = record_on_ranks(self, blocks, comm, record=record)
            return parts
        parts = run_on_ranks(
            self.plan, blocks, comm, meaning=self.meaning, traffic=traffic
        )
        return parts

    @cached_property
    def meaning(self) -> Semantics:
        """The semantics of the statements, for the engines of plans."""
        return _Bodies(self.program, tuple(self.plan.operands))

    def __str__(self) -> str:
        return format_plan(self.plan, self.program.statements)


@dataclass(frozen=True)
class _Document(Part):
    """The document of the plan of a program."""

    program: str
    sizes: dict[str, int]
    plan: Plan
    format: Literal[1] = 1


def plan_program(
    program: Program,
    processes: int,
    *,
    sizes: Mapping[str, int] | None = None,
    memory: int | str | None = None,
    rates: Rates = USUAL,
    ranks_per_host: int | Levels | None = None,
    starts: Mapping[str, Placement] | None = None,
    results: Mapping[str, Placement] | None = None,
) -> ProgramPlan:
    """Plan a program for some processes, minimizing the time of the slowest one.

    Args:
        program: the program to plan.
        processes: number of processes.
        sizes: values of the size parameters.
        memory: memory limit per process; see :func:`feinsum.plan`.
        rates: seconds of a multiply-add, a message and an element.
        ranks_per_host: number of ranks on each host; see :func:`feinsum.plan`.
        starts: initial distributions of inputs; see :func:`feinsum.plan`.
        results: final distributions, by output.

    Raises:
        ProgramError: if a size is missing.
        PlanError: if there is no plan, for example because memory is too small.

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
    values = dict(sizes or {})
    statements = build_statements(program, values)
    plan = plan_statements(
        statements,
        processes=processes,
        memory=memory,
        rates=rates,
        ranks_per_host=ranks_per_host,
        starts=starts,
        results=results,
    )
    return ProgramPlan(program, values, plan)


class _Bodies:
    """The semantics of the statements of a program, for the engines of plans."""

    def __init__(self, program: Program, operands: Sequence[str]) -> None:
        self._program, self._operands = program, operands
        # ranks compare digests before they exchange messages
        self.id = hashlib.sha256(str(program).encode()).hexdigest()

    def dtype(self, tensor: str) -> Any:
        return self._program.arrays[tensor].dtype

    def is_sparse(self, tensor: str) -> bool:
        return False

    def leaf(self, step: Leaf, blocks: Sequence[Array]) -> Array:
        statement = self._program.statements[step.group]
        if statement.is_contraction:
            # a kernel from the database, as for an einsum
            return compute_contraction(statement, blocks)
        return evaluate_block(statement, blocks, [box for _, box in step.sources])

    def combine(self, tensor: str, left: Array, right: Array) -> Any:
        return combine(self._get_statement(tensor).reduction, left, right)

    def neutral(self, tensor: str) -> Any:
        reduction = self._get_statement(tensor).reduction
        neutral = find_neutral(reduction, self.dtype(tensor))
        if neutral is None:
            raise ProgramError(
                f"{tensor}: the reduction {reduction!r} has no neutral element among "
                "0, 1 and the infinities, so partial results cannot be reduced",
                rules=("reduction",),
            )
        return neutral

    def read(self, arrays: Mapping[str, Any]) -> Mapping[str, Array]:
        checked, _ = check_arrays(self._program, arrays)
        return {name: checked[name] for name in self._operands}

    def _get_statement(self, tensor: str) -> Statement:
        return self._program.producers[tensor]


def evaluate_block(
    statement: Statement, blocks: Sequence[Array], boxes: Sequence[Box]
) -> Array:
    """Evaluate a statement for blocks of its operands, given with their boxes."""
    # bodies may use the values of indices: pass the start and step of each block
    sides = {
        index: side
        for term, box in zip(statement.inputs, boxes, strict=True)
        for index, side in zip(term, box, strict=True)
    }
    first = {index: side.start for index, side in sides.items()}
    steps = {index: side.step for index, side in sides.items()}
    return evaluate_statement(statement, blocks, first, steps)


def qualify_index(result: str, index: str) -> str:
    """Return a name for an index of a statement, unique across all statements."""
    return f"{result}_{index}"


def build_statements(program: Program, sizes: Mapping[str, int]) -> Statements:
    """Return the accesses of all statements, with globally unique index names.

    Raises:
        ProgramError: if the value of a size parameter is missing, or if the program has
            a numpy statement.
    """
    for statement in program.statements:
        if statement.is_numpy:
            raise ProgramError(
                f"{statement.result} is computed by numpy as a whole "
                f"({statement.body:.80}): such a program runs on one machine, and "
                "cannot be planned for several processes",
                rules=("plan",),
            )
    extents: dict[str, int] = {}
    groups = []
    for statement in program.statements:
        result = statement.result
        names = {index: qualify_index(result, index) for index in statement.indices}
        for index, extent in program.extents(statement).items():
            extents[names[index]] = _evaluate_extent(extent, sizes)
        inputs = tuple(
            Access(name, tuple(names[i] for i in term))
            for name, term in statement.accesses
        )
        output = Access(result, tuple(names[i] for i in statement.output))
        groups.append(Group(inputs, output))
    # inputs that no statement reads have no blocks
    read = {name for statement in program.statements for name in statement.operands}
    dtypes = {x.name: x.dtype.str for x in program.inputs if x.name in read}
    return Statements(tuple(groups), extents, dtypes, program.outputs).check()


def _evaluate_extent(extent: int | SizeParam, sizes: Mapping[str, int]) -> int:
    if isinstance(extent, int):
        return extent
    if extent.name not in sizes:
        raise ProgramError(f"size {extent} has no value; pass sizes={{...}}")
    return sizes[extent.name]
