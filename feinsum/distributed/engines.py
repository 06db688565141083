"""Engines that run plans, prepared once for many inputs.

====== ======================= ===============================================
engine where ranks are         what it is for
====== ======================= ===============================================
local  this process, in turn   the reference, with exact counts but no times
mpi    ranks of a communicator every rank calls it; rank 0 has whole arrays
dask   workers of a client     called by one process; lost workers are replaced
====== ======================= ===============================================
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from time import perf_counter
from typing import Any, Protocol

from feinsum.distributed.counts import Outcome, Traffic, build_report
from feinsum.distributed.fleets import describe_fleet_here, describe_fleet_on_ranks
from feinsum.distributed.local import (
    LeafFunction,
    Products,
    Progress,
    Semantics,
    Wait,
    call_tuned,
    check_memory,
    compute_with_numpy,
    import_tuned_leaf,
    name_outputs,
    run_here,
)
from feinsum.distributed.mpi import (
    gather,
    get_world,
    require_size,
    run_on_ranks,
    scatter,
)
from feinsum.distributed.plans import Plan
from feinsum.distributed.storage import get_free_gpu_bytes, is_on_gpu
from feinsum.errors import PlanError
from feinsum.free_memory import get_free_memory_bytes
from feinsum.records import Fleet

ENGINES = ("local", "mpi", "dask")
"""The engines that run plans: this process, MPI ranks, Dask workers."""


class Engine(Protocol):
    """An engine that runs one plan any number of times.

    Attributes:
        n_ahead: runs that may begin before the last one has ended.
    """

    n_ahead: int

    def submit(self, arrays: Mapping[str, Any], progress: Progress | None) -> Wait:
        """Begin a run; the caller may reuse the arrays afterwards."""

    def fleet(self) -> Fleet:
        """Describe the fleet that runs it."""


class Prepared:
    """A plan of einsums or of a program on an engine, with all one-time work done.

    >>> import feinsum, numpy as np
    >>> A, x = feinsum.array("A", (4, 4)), feinsum.array("x", 4)
    >>> ready = feinsum.plan(feinsum.einsum("ij,j->i", A, x), processes=2).prepare()
    >>> several = ({"A": np.eye(4), "x": np.full(4, k)} for k in (1.0, 2.0))
    >>> [outcome.results["out"].sum() for outcome in ready.stream(several)]
    [np.float64(4.0), np.float64(8.0)]
    """

    def __init__(self, plan: Any, engine: Engine) -> None:
        self.plan, self._engine = plan, engine

    def run(
        self, arrays: Mapping[str, Any] | None, progress: Progress | None = None
    ) -> Outcome:
        """Compute the outputs for whole arrays by name.

        Args:
            arrays: on MPI ranks but the first they are ignored, and may be None.
            progress: called with the number of finished leaves, and the total.

        Raises:
            PlanError: if an array is missing or has the wrong shape or dtype, if blocks
                are too large, or if the engine cannot continue; on all ranks of MPI.
            ProgramError: for wrong arrays of a program, except on ranks of MPI.
        """
        return self._submit(arrays, progress)()

    def _submit(
        self, arrays: Mapping[str, Any] | None, progress: Progress | None
    ) -> Wait:
        return self._engine.submit({} if arrays is None else arrays, progress)

    def fleet(self) -> Fleet:
        """Describe the fleet of the engine; collective on MPI ranks.

        Raises:
            PlanError: with the rule ``fleet``, if ranks differ.
        """
        return self._engine.fleet()

    def stream(self, inputs: Iterable[Mapping[str, Any] | None]) -> Iterator[Outcome]:
        """Yield the outcome for each of many inputs, in order.

        Engines with their own workers begin the next run before the last one has ended.
        Arrays may be reused once the next input is requested.
        """
        running: list[Wait] = []
        for arrays in inputs:
            # one run ahead hides the latency of the scheduler, at twice the memory
            running.append(self._submit(arrays, None))
            if len(running) > self._engine.n_ahead:
                yield running.pop(0)()
        for wait in running:
            yield wait()


class LocalEngine:
    """The engine that runs all ranks in this process."""

    n_ahead = 0

    def __init__(self, plan: Plan, on: Any, semantics: Semantics) -> None:
        if on is not None:
            raise PlanError(
                f"the engine local runs in this process, not on {on!r:.80}; use the "
                "engine mpi or dask",
                rules=("engine",),
            )
        self.plan, self.semantics = plan, semantics

    def submit(self, arrays: Mapping[str, Any], progress: Progress | None) -> Wait:
        start, plan = perf_counter(), self.plan
        operands = self.semantics.read(arrays)
        on_gpu = [array for array in operands.values() if is_on_gpu(array)]
        free = get_free_gpu_bytes(on_gpu[0]) if on_gpu else get_free_memory_bytes()
        # all ranks share the memory of this process
        check_memory(plan, free, n_ranks=plan.processes)
        traffic = [Traffic() for _ in range(plan.processes)]
        results = run_here(
            plan, operands, meaning=self.semantics, traffic=traffic, progress=progress
        )
        report = build_report(plan, "local", traffic, perf_counter() - start)
        outcome = Outcome(name_outputs(plan, results), report)
        return lambda: outcome

    def fleet(self) -> Fleet:
        return describe_fleet_here(self.plan.processes, "local")


class MpiEngine:
    """The engine of MPI ranks; rank 0 has the arrays and gets the results."""

    n_ahead = 0

    def __init__(self, plan: Plan, comm: Any, semantics: Semantics) -> None:
        self.plan, self.semantics = plan, semantics
        self.comm = get_world() if comm is None else comm
        require_size(plan, self.comm)

    def submit(self, arrays: Mapping[str, Any], progress: Progress | None) -> Wait:
        plan, comm, start = self.plan, self.comm, perf_counter()
        blocks, traffic = scatter(plan, arrays, comm, self.semantics.read), Traffic()
        parts = run_on_ranks(
            plan,
            blocks,
            comm,
            meaning=self.semantics,
            traffic=traffic,
            progress=progress if comm.Get_rank() == 0 else None,
        )
        result = gather(plan, parts, comm, self.semantics)
        results = {} if comm.Get_rank() else name_outputs(plan, result)
        # every rank returns the report of all ranks
        of_ranks = comm.allgather(traffic)
        report = build_report(plan, "mpi", of_ranks, perf_counter() - start)
        outcome = Outcome(results, report)
        return lambda: outcome

    def fleet(self) -> Fleet:
        return describe_fleet_on_ranks(self.comm)


def prepare(
    plan: Plan,
    engine: str = "local",
    on: Any = None,
    *,
    leaf: LeafFunction | None = None,
    meaning: Semantics | None = None,
) -> Prepared:
    """Prepare a plan to run on any number of inputs.

    Args:
        plan: the plan to run.
        engine: one of :data:`ENGINES`.
        on: an mpi4py communicator for ``mpi``, a Dask client for ``dask``.
        leaf: function that computes a block; by default :func:`feinsum.call_einsum`,
            and numpy for ``local``.
        meaning: computes statements that are not einsums.

    Raises:
        PlanError: with the rule ``engine``, if there is no such engine.
    """
    adapter: Engine
    if engine == "local":
        local = meaning or Products(plan, leaf or compute_with_numpy)
        adapter = LocalEngine(plan, on, local)
    elif engine == "mpi":
        on_ranks = meaning or Products(plan, leaf or import_tuned_leaf())
        adapter = MpiEngine(plan, on, on_ranks)
    elif engine == "dask":
        # imported when needed, for it needs Dask
        from feinsum.distributed.on_dask import DaskEngine

        adapter = DaskEngine(plan, on, meaning or Products(plan, leaf or call_tuned))
    else:
        raise PlanError(
            f"there is no engine {engine!r}; expected {', '.join(ENGINES)}",
            rules=("engine",),
        )
    return Prepared(plan, adapter)
