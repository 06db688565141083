"""Plans that an engine prepares once and runs on many inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from feinsum.distributed.fleets import fleet_here, fleet_on_ranks
from feinsum.distributed.local import LeafFunction, Meaning, run_here
from feinsum.distributed.mpi import run_on_ranks, world
from feinsum.distributed.passing import gather, scatter
from feinsum.distributed.plan import Plan
from feinsum.distributed.report import RunReport, report_of
from feinsum.distributed.room import check_room, free_bytes
from feinsum.distributed.traffic import Traffic
from feinsum.errors import PlanError
from feinsum.records import Fleet
from feinsum.words import counted

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of finished leaves, and the total."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        results: every output by name; empty on all MPI ranks except the first.
        report: what moved, and how long it took.
    """

    results: Mapping[str, NDArray[Any]]
    report: RunReport


class _Engine(Protocol):
    """Runs one plan any number of times."""

    def submit(self, arrays: Mapping[str, Any], progress: Progress | None) -> Any:
        """Begin a run; its arguments are not read again."""

    def outcome(self, run: Any) -> Outcome:
        """Wait for a run."""

    def fleet(self) -> Fleet:
        """The fleet that runs it."""


class Prepared:
    """A plan on an engine, with all one-time work done.

    >>> import feinsum, numpy as np
    >>> A, x = feinsum.array("A", (4, 4)), feinsum.array("x", 4)
    >>> ready = feinsum.plan(feinsum.einsum("ij,j->i", A, x), processes=2).prepare()
    >>> several = ({"A": np.eye(4), "x": np.full(4, k)} for k in (1.0, 2.0))
    >>> [outcome.results["out"].sum() for outcome in ready.stream(several)]
    [np.float64(4.0), np.float64(8.0)]
    """

    def __init__(self, plan: Plan, engine: _Engine, ahead: int) -> None:
        self.plan = plan
        self._engine, self._ahead = engine, ahead

    def run(
        self, arrays: Mapping[str, Any], progress: Progress | None = None
    ) -> Outcome:
        """Compute the outputs for whole arrays by name.

        Args:
            progress: called with the number of finished leaves, and the total.

        Raises:
            PlanError: if an array is missing or has the wrong shape or dtype, if blocks
                are too large, or if the engine cannot continue.
        """
        return self._engine.outcome(self._engine.submit(arrays, progress))

    def fleet(self) -> Fleet:
        """The fleet of the engine; collective on MPI ranks.

        Raises:
            PlanError: with the rule ``fleet``, if ranks differ.
        """
        return self._engine.fleet()

    def stream(self, inputs: Iterable[Mapping[str, Any]]) -> Iterator[Outcome]:
        """The outcome for each of many inputs, in order.

        Engines with their own workers begin the next run before the last one has ended.
        Arrays may be reused once the next input is requested.
        """
        running: list[Any] = []
        for arrays in inputs:
            running.append(self._engine.submit(arrays, None))
            if len(running) > self._ahead:
                yield self._engine.outcome(running.pop(0))
        for run in running:
            yield self._engine.outcome(run)


def prepare(
    plan: Plan,
    engine: str = "local",
    on: Any = None,
    *,
    leaf: LeafFunction | None = None,
    meaning: Meaning | None = None,
) -> Prepared:
    """Prepare a plan to run on any number of inputs.

    Args:
        engine: one of :data:`ENGINES`.
        on: an mpi4py communicator for ``mpi``, a Dask client for ``dask``.
        leaf: function that computes a block; by default :func:`feinsum.call_einsum`,
            and numpy for ``local``.
        meaning: computes statements that are not einsums.

    Raises:
        PlanError: with the rule ``engine``, if there is no such engine.
    """
    if engine == "dask":
        from feinsum.distributed.on_dask import DaskEngine

        return Prepared(plan, DaskEngine(plan, on, leaf, meaning), ahead=1)
    if engine == "mpi":
        return Prepared(plan, _OnRanks(plan, on, leaf, meaning), ahead=0)
    if engine == "local":
        if on is not None:
            raise PlanError(
                f"the engine local runs in this process, not on {on!r:.80}; use the "
                "engine mpi or dask",
                rules=("engine",),
            )
        return Prepared(plan, _Here(plan, leaf, meaning), ahead=0)
    raise PlanError(
        f"there is no engine {engine!r}; expected {', '.join(ENGINES)}",
        rules=("engine",),
    )


ENGINES = ("local", "mpi", "dask")
"""The engines that run plans: this process, MPI ranks, Dask workers."""


class _Here:
    """All ranks in this process."""

    def __init__(
        self, plan: Plan, leaf: LeafFunction | None, meaning: Meaning | None
    ) -> None:
        self.plan, self.leaf, self.meaning = plan, leaf, meaning

    def submit(self, arrays: Mapping[str, Any], progress: Progress | None) -> Outcome:
        start = perf_counter()
        check_room(self.plan, free_bytes(), n_ranks=self.plan.processes)
        traffic = [Traffic() for _ in range(self.plan.processes)]
        found = run_here(
            self.plan,
            arrays,
            leaf=self.leaf,
            meaning=self.meaning,
            traffic=traffic,
            progress=progress,
        )
        report = report_of(self.plan, "local", traffic, perf_counter() - start)
        return Outcome(_by_name(self.plan, found), report)

    def outcome(self, run: Outcome) -> Outcome:
        return run

    def fleet(self) -> Fleet:
        return fleet_here(self.plan.processes, "local")


class _OnRanks:
    """MPI ranks; the first one has the arrays and gets the results."""

    def __init__(
        self,
        plan: Plan,
        comm: Any,
        leaf: LeafFunction | None,
        meaning: Meaning | None,
    ) -> None:
        self.plan, self.leaf, self.meaning = plan, leaf, meaning
        self.comm = world() if comm is None else comm
        if self.comm.Get_size() != plan.processes:
            raise PlanError(
                "the plan is for "
                f"{counted(plan.processes, 'process')}; the communicator has "
                f"{self.comm.Get_size()}",
                rules=("mpi",),
            )

    def submit(self, arrays: Mapping[str, Any], progress: Progress | None) -> Outcome:
        plan, comm, start = self.plan, self.comm, perf_counter()
        blocks, mine = scatter(plan, arrays, comm), Traffic()
        parts = run_on_ranks(
            plan,
            blocks,
            comm,
            leaf=self.leaf,
            meaning=self.meaning,
            traffic=mine,
            progress=progress if comm.Get_rank() == 0 else None,
        )
        whole = gather(plan, parts, comm, self.meaning)
        results = {} if comm.Get_rank() else _by_name(plan, whole)
        traffic = comm.allgather(mine)
        return Outcome(results, report_of(plan, "mpi", traffic, perf_counter() - start))

    def outcome(self, run: Outcome) -> Outcome:
        return run

    def fleet(self) -> Fleet:
        return fleet_on_ranks(self.comm)


def _by_name(plan: Plan, found: Any) -> Mapping[str, NDArray[Any]]:
    return {plan.outputs[0]: found} if plan.statements is None else found
