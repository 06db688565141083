"""Plans for computing one or several einsums on many processes.

A plan is data: the einsum (or statements), a schedule for every group, and the initial
distribution of every operand. Groups, boxes, steps, counts and collectives are derived
from these. Documents (JSON) also store the leaves, whose recipes processes look up; the
checker compares them with the blocks.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import numpy as np
from constantdict import constantdict
from pydantic import Field

from feinsum.canonical import WorkloadKey, canonicalize
from feinsum.distributed.checks import FORMAT, find_plan_violations
from feinsum.distributed.counts import (
    USUAL,
    Counts,
    Estimate,
    Rates,
    count_stored,
    tally,
)
from feinsum.distributed.distribution import Distribution
from feinsum.distributed.groups import Access, Group, get_extents, get_shape, groups_of
from feinsum.distributed.messages import Collective, find_collectives
from feinsum.distributed.schedule import GroupSchedule, LeafWork
from feinsum.distributed.statement_graph import Statements
from feinsum.distributed.steps import Events, Steps, list_rank_steps, lower
from feinsum.errors import InvalidRecordError, PlanError
from feinsum.ir import BatchedEinsum, from_text, generalize
from feinsum.ir.operand import Violation
from feinsum.records.document import Part, compute_content_id, from_json, to_json
from feinsum.words import format_brief, format_count

if TYPE_CHECKING:
    from feinsum.distributed.engines import Prepared

N_SAMPLED_STEPS = 48
"""Number of steps that represent a longer loop in estimates.

The steps are spread over the loop, because ranks hold different parts of operands.
"""

T = TypeVar("T")


def read_document(cls: type[T], text: str | bytes, kind: str) -> T:
    """Read a document of a plan, unchecked.

    Args:
        cls: the class of the document.
        text: the document as JSON.
        kind: the name of the kind of document in messages.

    Raises:
        PlanError: with the rule ``format``, if the text is no such document.
    """
    try:
        return from_json(cls, text, kind)
    except InvalidRecordError as error:
        raise PlanError(str(error), rules=("format",)) from None


@dataclass(frozen=True)
class Plan(Part):
    """A plan by which processes compute one or several einsums: data without code.

    Args:
        einsum: the einsum as text.
        sizes: the value of every size parameter.
        processes: number of processes.
        path: the contraction path.
        schedules: schedule of every group of the path.
        starts: initial distribution of each operand.
        leaves: for every group, the workload of the largest block.
        name: origin of the plan: the planner, or a schedule with a name.
        statements: for a plan of several einsums, which has no ``einsum`` and no path.
        nonzeros: entries of the sparse operand of an einsum, if there is one.
        placed: operands whose initial distribution was requested.
        ends: the requested final distributions, by result. Results move there after all
            groups.
    """

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
    nonzeros: Annotated[int | None, Field(exclude_if=lambda n: n is None)] = None
    placed: Annotated[tuple[str, ...], Field(exclude_if=operator.not_)] = ()
    ends: Annotated[Mapping[str, Distribution], Field(exclude_if=operator.not_)] = (
        constantdict()
    )

    def __post_init__(self) -> None:
        # sorted, so that equal plans have equal documents
        for name in ("sizes", "starts", "ends"):
            pairs = sorted(getattr(self, name).items())
            object.__setattr__(self, name, constantdict(pairs))
        object.__setattr__(self, "placed", tuple(sorted(self.placed)))

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

    @cached_property
    def problem(self) -> Statements:
        """The statements of the plan, or the groups of the einsum's path."""
        if self.statements is not None:
            return self.statements
        einsum = self.batched_einsum
        extents = get_extents(einsum, self.sizes)
        groups = groups_of(einsum, self.path, extents)
        dtypes = {operand.name: operand.dtype.str for operand in einsum.operands}
        outputs = (groups[-1].output.tensor,)
        sparse = {operand.name for operand in einsum.operands if operand.storage}
        nonzeros = dict.fromkeys(sparse, self.nonzeros)
        return Statements(groups, extents, dtypes, outputs, nonzeros)

    @property
    def title(self) -> str:
        """A one-line description."""
        if self.statements is None:
            return self.batched_einsum.subscripts
        return format_count(len(self.groups), "statement")

    @property
    def extents(self) -> Mapping[str, int]:
        """The extent of every index, as a number."""
        return self.problem.extents

    @property
    def groups(self) -> tuple[Group, ...]:
        return self.problem.groups

    @property
    def scheduled(self) -> Iterator[tuple[Group, GroupSchedule]]:
        """Each group with its schedule."""
        return zip(self.groups, self.schedules, strict=True)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The final results; one for a plan of one einsum."""
        return self.problem.outputs

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of intermediates and the result."""
        return self.problem.dtype

    @cached_property
    def operands(self) -> Mapping[str, np.dtype[Any]]:
        """The dtype of every operand."""
        return {name: np.dtype(d) for name, d in self.problem.dtypes.items()}

    @cached_property
    def final_distributions(self) -> Mapping[str, Distribution]:
        """The distribution of every operand and output after a run.

        Pass it as ``starts`` of the next plan.
        """
        results = {group.output.tensor: d.result for group, d in self.scheduled}
        outputs = {name: results[name] for name in self.outputs}
        return {**self.starts, **outputs, **self.ends}

    @property
    def requested_starts(self) -> Mapping[str, Distribution]:
        """The initial distributions that were requested, and not chosen."""
        return {name: self.starts[name] for name in self.placed if name in self.starts}

    @property
    def sparse_starts(self) -> Mapping[str, Distribution]:
        """Those of sparse operands, whose entries never move."""
        requested = self.requested_starts
        return {name: requested[name] for name in requested if self.is_sparse(name)}

    @property
    def result(self) -> Distribution:
        """The final distribution of the last result."""
        return self.final_distributions[self.outputs[-1]]

    @property
    def density(self) -> Mapping[str, Fraction]:
        """The share of entries that each sparse tensor stores."""
        return self.problem.density

    def is_sparse(self, tensor: str) -> bool:
        """Return whether only some entries of a tensor are stored."""
        return tensor in self.problem.patterns

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape of an operand, an intermediate, or the result."""
        return get_shape(self.first_accesses[tensor], self.extents)

    @cached_property
    def first_accesses(self) -> Mapping[str, Access]:
        """The first access of each tensor."""
        accesses = [access for group in self.groups for access in group.accesses]
        return {access.tensor: access for access in reversed(accesses)}

    def start_box(self, operand: str, rank: int) -> Any:
        """Return the box of an operand that a rank provides, or None."""
        return self.starts[operand].boxes(self.shape(operand), self.processes).box(rank)

    def result_box(self, rank: int, output: str | None = None) -> Any:
        """Return the box of a result that a rank gets, or None.

        Args:
            rank: number of the rank.
            output: one of :attr:`outputs`, if there are several.
        """
        name = self.outputs[-1] if output is None else output
        end = self.final_distributions[name]
        return end.boxes(self.shape(name), self.processes).box(rank)

    def events(self, max_steps: int | None = None) -> Events:
        """Yield what all ranks do, in order.

        Args:
            max_steps: see :func:`feinsum.distributed.steps.lower`.
        """
        return lower(self, max_steps)

    @cached_property
    def steps(self) -> Steps:
        """The steps of every rank."""
        return list_rank_steps(self.events(), self.processes)

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The messages that form collectives."""
        return find_collectives(self.events())

    @property
    def resident_elements(self) -> list[int]:
        """Elements of operands that every rank holds."""
        # Python's integers: extents of recorded plans may be huge
        total = [0] * self.processes
        for name, start in self.starts.items():
            boxes = start.boxes(self.shape(name), self.processes)
            sizes = count_stored(boxes, self.density.get(name))
            total = [a + b for a, b in zip(total, sizes, strict=True)]
        return total

    @cached_property
    def counts(self) -> Counts:
        """The counts of the plan; not part of the document."""
        return tally(self).counts()

    def estimate(self, rates: Rates = USUAL) -> Estimate:
        """Estimate the time of the plan, by which the planner compares plans.

        A few sampled steps represent a long sequential loop.
        """
        of_ranks = tally(self, N_SAMPLED_STEPS, has_requests=False)
        counts = of_ranks.counts()
        return Estimate(of_ranks.compute_slowest_s(rates), counts.moved, counts)

    def outline(self) -> Counts:
        """Return the counts without requests, which take long to count."""
        return self.estimate().counts

    @cached_property
    def least_moved(self) -> int:
        """Lower bound of the elements moved by any plan in the planner's search space.

        That space has one machine for all groups, and even work. The difference to
        ``counts.moved`` is the gap that the planner may have left.
        """
        from feinsum.distributed.search import least_moved

        # the cost has a term below one element that breaks ties in favor of even maps
        bound = least_moved(self)
        # the search also counts blocks of idle processes, which are never fetched
        return min(int(bound), self.counts.moved)

    @property
    def units(self) -> tuple[int, ...]:
        """Ranks in a process of each level of the machines but the innermost, if any.

        See :func:`feinsum.distributed.moved_by_level`.
        """
        machines = [schedule.machine for schedule in self.schedules]
        return min((m.units for m in machines if m.levels), default=())

    @property
    def peak_bytes(self) -> int:
        """Peak memory of a process, if all tensors have the result's dtype."""
        return self.counts.peak * self.dtype.itemsize

    @cached_property
    def id(self) -> str:
        """SHA-256 of the document: equal exactly if the plans are."""
        return compute_content_id(self)

    def to_json(self) -> str:
        """Return the plan as a document."""
        return to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Read and check a document written by :meth:`to_json`.

        Raises:
            PlanError: naming what is wrong, and every broken rule.
        """
        return read_document(cls, text, "plan").check()

    def violations(self) -> Iterator[Violation]:
        """Yield every broken rule, by its code."""
        yield from find_plan_violations(self)

    def check(self) -> Plan:
        """Return the plan itself, checked.

        Raises:
            PlanError: naming every rule that is broken.
        """
        broken = list(self.violations())
        if broken:
            text = "; ".join(f"[{v.rule}] {v.message}" for v in broken)
            rules = tuple(dict.fromkeys(v.rule for v in broken))
            raise PlanError(f"ill-formed plan: {text}", rules=rules)
        return self

    # Engines import this module and heavy packages, so methods import them when called.

    def to_python(self) -> str:
        """Write a standalone program that does the same with numpy and mpi4py alone."""
        from feinsum.distributed.standalone import write_program

        return write_program(self)

    def to_jax(self, devices: Any = None) -> Any:
        """Convert the plan to a function of JAX arrays on several devices.

        See :func:`feinsum.distributed.convert_to_jax`.
        """
        from feinsum.distributed.on_jax import convert_to_jax

        return convert_to_jax(self, devices)

    def run(
        self,
        blocks: Mapping[str, Any],
        comm: Any = None,
        *,
        leaf: Any = None,
        record: Any = None,
    ) -> Any:
        """Compute this rank's part; see :func:`feinsum.distributed.mpi.run_on_ranks`.

        Args:
            blocks: see :func:`feinsum.distributed.mpi.run_on_ranks`.
            comm: see :func:`feinsum.distributed.mpi.run_on_ranks`.
            leaf: see :func:`feinsum.distributed.mpi.run_on_ranks`.
            record: a database, in which the traffic and the run times are recorded; see
                :func:`feinsum.distributed.recorded.record_on_ranks`. The plan then runs
                several times.

        Raises:
            PlanError: with the rule ``leaf``, if a fact of another leaf is requested.
        """
        if record is not None:
            if leaf is not None:
                raise PlanError(
                    "a run with a leaf of its own cannot be recorded: a fact is of "
                    "feinsum.call_einsum; leave out leaf= or record=",
                    rules=("leaf",),
                )
            from feinsum.distributed.recorded import record_on_ranks

            return record_on_ranks(self, blocks, comm, record=record)[0]
        from feinsum.distributed.mpi import run_on_ranks

        return run_on_ranks(self, blocks, comm, leaf=leaf)

    def prepare(
        self, engine: str = "local", on: Any = None, *, leaf: Any = None
    ) -> Prepared:
        """Prepare for any number of inputs; see :func:`feinsum.distributed.prepare`."""
        from feinsum.distributed.engines import prepare

        return prepare(self, engine, on, leaf=leaf)

    def scatter(self, operands: Mapping[str, Any] | None, comm: Any) -> dict[str, Any]:
        """Send blocks of rank 0's arrays; see :func:`feinsum.distributed.scatter`."""
        from feinsum.distributed.mpi import scatter

        return scatter(self, operands, comm)

    def gather(self, parts: Any, comm: Any) -> Any:
        """Collect the result on rank 0; see :func:`feinsum.distributed.gather`."""
        from feinsum.distributed.mpi import gather

        return gather(self, parts, comm)

    def simulate(
        self, operands: Mapping[str, Any], *, leaf: Callable[..., Any] | None = None
    ) -> Any:
        """Run all ranks in this process; see :func:`feinsum.distributed.run_here`."""
        from feinsum.distributed.local import run_here

        return run_here(self, operands, leaf=leaf)

    def __repr__(self) -> str:
        return format_brief(
            self,
            f"{self.title} on {format_count(self.processes, 'process')}, {self.name}",
        )

    def __str__(self) -> str:
        from feinsum.distributed.display import format_plan

        return format_plan(self)


def require_dense_plan(plan: Plan, participle: str) -> None:
    """Refuse a plan with a sparse operand.

    Raises:
        PlanError: with the rule ``sparse``, if an operand is sparse.
    """
    sparse = plan.problem.nonzeros
    if sparse:
        raise PlanError(
            f"{', '.join(sparse)} is sparse, and such a plan cannot be {participle}; "
            "run it with run, prepare or simulate",
            rules=("sparse",),
        )
