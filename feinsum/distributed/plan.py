"""Plans for computing one or several einsums on many processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from constantdict import constantdict

from feinsum.canonical import WorkloadKey, canonicalize
from feinsum.distributed.check import FORMAT, plan_violations
from feinsum.distributed.collectives import Collective, collectives_of
from feinsum.distributed.counts import Counts, Tally
from feinsum.distributed.distribution import Distribution
from feinsum.distributed.groups import Group, groups_of
from feinsum.distributed.leaves import LeafWork, extents_of
from feinsum.distributed.lowering import Sink, StepLists, lower
from feinsum.distributed.schedule import GroupSchedule
from feinsum.distributed.statements import Statements
from feinsum.distributed.steps import Steps
from feinsum.errors import InvalidRecordError, PlanError
from feinsum.ir import BatchedEinsum, from_text, generalize
from feinsum.ir.operand import Violation
from feinsum.records.document import STRICT, content_id, from_json, to_json
from feinsum.words import brief, counted

if TYPE_CHECKING:
    from feinsum.distributed.prepared import Prepared


@dataclass(frozen=True)
class Plan:
    """How processes compute one or several einsums: data without code.

    Args:
        einsum: as text.
        sizes: the value of every size parameter.
        processes: number of processes.
        path: the contraction path.
        schedules: schedule of every group of the path.
        starts: initial distribution of each operand.
        leaves: for every group, the workload of the largest block.
        name: origin of the plan: the planner, or a schedule with a name.
        statements: for a plan of several einsums, which has no ``einsum`` and no path.
    """

    __pydantic_config__ = STRICT

    einsum: str
    sizes: Mapping[str, int]
    processes: int
    path: tuple[tuple[int, ...], ...]
    schedules: tuple[GroupSchedule, ...]
    starts: Mapping[str, Distribution]
    leaves: tuple[LeafWork, ...]
    name: str = "planned"
    format: int = FORMAT
    statements: Statements | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", constantdict(sorted(self.sizes.items())))
        object.__setattr__(self, "starts", constantdict(sorted(self.starts.items())))

    @cached_property
    def batched_einsum(self) -> BatchedEinsum:
        """The einsum of a plan of one einsum.

        Raises:
            PlanError: for a plan of statements.
        """
        if self.statements is not None:
            raise PlanError("a plan of statements has no einsum", rules=("einsum",))
        return from_text(self.einsum)

    @cached_property
    def key(self) -> WorkloadKey:
        """The workload key of a plan of one einsum, as used by ``feinsum query``.

        Raises:
            PlanError: for a plan of statements.
        """
        return canonicalize(generalize(self.batched_einsum)[0]).key

    @property
    def title(self) -> str:
        """A one-line description."""
        if self.statements is None:
            return self.batched_einsum.subscripts
        n = len(self.statements.groups)
        return counted(n, "statement")

    @cached_property
    def extents(self) -> Mapping[str, int]:
        """The extent of every index, as a number."""
        if self.statements is not None:
            return self.statements.extents
        return extents_of(self.batched_einsum, self.sizes)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        if self.statements is not None:
            return self.statements.groups
        return groups_of(self.batched_einsum, self.path, self.extents)

    @property
    def result(self) -> Distribution:
        """The final distribution of the last result."""
        return self.schedules[-1].result

    @property
    def outputs(self) -> tuple[str, ...]:
        """The final results; one for a plan of one einsum."""
        if self.statements is not None:
            return self.statements.outputs
        return (self.groups[-1].output.tensor,)

    @cached_property
    def operands(self) -> Mapping[str, np.dtype[Any]]:
        """The dtype of every operand."""
        if self.statements is not None:
            return {t: np.dtype(d) for t, d in self.statements.dtypes.items()}
        return {op.name: op.dtype for op in self.batched_einsum.operands}

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The shape of an operand, an intermediate, or the result."""
        return tuple(self.extents[i] for i in self._indices[tensor])

    @cached_property
    def _indices(self) -> Mapping[str, tuple[str, ...]]:
        accesses = [a for g in self.groups for a in (*g.inputs, g.output)]
        return {a.tensor: a.indices for a in reversed(accesses)}

    def start_box(self, operand: str, rank: int) -> Any:
        """Start and end along each axis of the block that a rank provides, or None."""
        return self.starts[operand].boxes(self.shape(operand), self.processes).box(rank)

    def result_box(self, rank: int, output: str | None = None) -> Any:
        """Start and end along each axis of the block that a rank gets, or None.

        Args:
            output: one of :attr:`outputs`, if there are several.
        """
        name = self.outputs[-1] if output is None else output
        at = next(k for k, g in enumerate(self.groups) if g.output.tensor == name)
        held = self.schedules[at].result
        return held.boxes(self.shape(name), self.processes).box(rank)

    @cached_property
    def steps(self) -> Steps:
        """The steps of every rank."""
        lists = StepLists(self.processes)
        self.lower(lists)
        return lists.steps

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The messages that form collectives."""
        return collectives_of(self.steps)

    def lower(self, sink: Sink) -> None:
        lower(
            sink,
            self.groups,
            self.schedules,
            self.starts,
            self.extents,
            self.processes,
            self.outputs,
        )

    @property
    def at_rest(self) -> list[int]:
        """Elements of operands that every rank holds."""
        total = [0] * self.processes
        for name, start in self.starts.items():
            sizes = start.boxes(self.shape(name), self.processes).sizes()
            total = [a + b for a, b in zip(total, sizes, strict=True)]
        return total

    @cached_property
    def counts(self) -> Counts:
        """Sums over the steps; not part of the document."""
        tally = Tally(self.at_rest)
        self.lower(tally)
        return tally.counts()

    @property
    def units(self) -> tuple[int, ...]:
        """Ranks in a process of each level of the machines but the innermost, if any.

        See :func:`feinsum.distributed.moved_by_level`.
        """
        found = {one.machine.units for one in self.schedules if one.machine.levels}
        return min(found, default=())

    def outline(self) -> Counts:
        """The counts without requests, which are 0: for comparing many plans."""
        tally = Tally(self.at_rest, has_requests=False)
        self.lower(tally)
        return tally.counts()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of intermediates and the result."""
        if self.statements is not None:
            return self.statements.dtype
        return self.batched_einsum.output_dtypes[0]

    @property
    def peak_bytes(self) -> int:
        """Peak memory of a process, if all tensors have the result's dtype."""
        return self.counts.peak * self.dtype.itemsize

    @cached_property
    def id(self) -> str:
        """SHA-256 of the document: equal exactly if the plans are."""
        return content_id(self)

    def to_json(self) -> str:
        """The plan as a document."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Inverse of :meth:`to_json`, and checked.

        Raises:
            PlanError: naming what is wrong, and every broken rule.
        """
        try:
            found = from_json(cls, text, "plan")
        except InvalidRecordError as error:
            raise PlanError(str(error), rules=("format",)) from None
        found.check()
        return found

    def violations(self) -> Iterator[Violation]:
        """Every broken rule, by its code."""
        yield from plan_violations(self)

    def check(self) -> Plan:
        """The plan itself, checked.


        Raises:
            PlanError: naming every rule that is broken.
        """
        broken = list(self.violations())
        if broken:
            text = "; ".join(f"[{v.rule}] {v.message}" for v in broken)
            rules = tuple(dict.fromkeys(v.rule for v in broken))
            raise PlanError(f"ill-formed plan: {text}", rules=rules)
        return self

    def to_python(self) -> str:
        """A standalone program, using only numpy and mpi4py, that does the same."""
        from feinsum.distributed.program import program_of

        return program_of(self)

    def run(
        self,
        blocks: Mapping[str, Any],
        comm: Any = None,
        *,
        leaf: Any = None,
        record: Any = None,
    ) -> Any:
        """This rank's part of the result; see :func:`feinsum.distributed.run_on_ranks`.

        Args:
            record: a database, in which the traffic and the run times are recorded; see
                :func:`feinsum.distributed.recorded.run_recorded`. The plan then runs
                several times.

        Raises:
            PlanError: with the rule ``leaf``, if a fact of another leaf is wanted.
        """
        if record is not None:
            if leaf is not None:
                raise PlanError(
                    "a run with a leaf of its own cannot be recorded: a fact is of "
                    "feinsum.call_einsum; leave out leaf= or record=",
                    rules=("leaf",),
                )
            from feinsum.distributed.recorded import run_recorded

            return run_recorded(self, blocks, comm, record=record)
        from feinsum.distributed.mpi import run_on_ranks

        return run_on_ranks(self, blocks, comm, leaf=leaf)

    def prepare(
        self, engine: str = "local", on: Any = None, *, leaf: Any = None
    ) -> Prepared:
        """Prepare for any number of inputs; see :func:`feinsum.distributed.prepare`."""
        from feinsum.distributed.prepared import prepare

        return prepare(self, engine, on, leaf=leaf)

    def scatter(self, operands: Mapping[str, Any] | None, comm: Any) -> dict[str, Any]:
        """Deal out arrays of rank 0; see :func:`feinsum.distributed.scatter`."""
        from feinsum.distributed.passing import scatter

        return scatter(self, operands, comm)

    def gather(self, parts: Any, comm: Any) -> Any:
        """The whole result on rank 0; see :func:`feinsum.distributed.gather`."""
        from feinsum.distributed.passing import gather

        return gather(self, parts, comm)

    def simulate(
        self, operands: Mapping[str, Any], *, leaf: Callable[..., Any] | None = None
    ) -> Any:
        """All ranks in this process; see :func:`feinsum.distributed.run_here`."""
        from feinsum.distributed.local import run_here

        return run_here(self, operands, leaf=leaf)

    def __repr__(self) -> str:
        return brief(
            self,
            f"{self.title} on {counted(self.processes, 'process')}, {self.name}",
        )

    def __str__(self) -> str:
        from feinsum.distributed.text import plan_text

        return plan_text(self)
