"""Runs that become facts: counted, timed if times are meaningful, and verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feinsum.errors import FeinsumError, PlanError
from feinsum.plans import Box, Plan, prepare
from feinsum.plans.fleets import fleet_on_ranks
from feinsum.plans.local import slices
from feinsum.plans.mpi import run_on_ranks, world
from feinsum.plans.traffic import Traffic
from feinsum.programs.facts import AnyPlan, fact_of, plan_in
from feinsum.programs.planned import ProgramPlan
from feinsum.programs.sampled import Read, check_of, compared, sample_boxes
from feinsum.records import FactStore, Fleet, PlanRecord, check_plausible

__all__ = ["RUNS", "random_arrays", "record_on_ranks", "record_run"]

Array = NDArray[Any]

RUNS = 3
"""Runs that are timed: the fewest that a fact may have."""

WARM_UP = 2
"""Runs before: leaves may be built in the first ones."""


def random_arrays(made: AnyPlan) -> dict[str, Array]:
    """Random operands of a plan: numbers between 0 and 1; for integers, 0 and 1."""
    plan, chosen = plan_in(made), np.random.default_rng(0)
    found = {}
    for name, dtype in plan.operands.items():
        shape = plan.shape(name)
        is_inexact = dtype.kind in "fc"
        made_up = chosen.random(shape) if is_inexact else chosen.integers(2, size=shape)
        found[name] = made_up.astype(dtype)
    return found


def record_run(
    made: AnyPlan,
    arrays: Mapping[str, Any],
    store: FactStore,
    *,
    engine: str = "local",
    on: Any = None,
    runs: int = RUNS,
) -> PlanRecord:
    """Run a plan on whole arrays, and record its traffic and run times.

    With the engine ``local``, ranks take turns in this process: elements are counted
    and results verified, but nothing is timed. With ``dask``, times are of whole runs,
    including Dask's overhead. On MPI ranks, call :func:`record_on_ranks`.

    Args:
        arrays: arrays by name.
        store: store for the fact. engine, on: see :func:`feinsum.plans.prepare`. runs:
            number of timed runs.

    Raises:
        PlanError: as raised by the engine, and for fewer than three runs; with the rule
            ``fleet``, if ranks differ.
        WrongResultError: if a block of a result is wrong.
        ImplausibleError: if a count or a time is impossible.

    >>> import feinsum
    >>> from feinsum.records import InMemoryStore
    >>> A, x = feinsum.array("A", (8, 4)), feinsum.array("x", 4)
    >>> made = feinsum.plan(feinsum.einsum("ij,j->i", A, x), processes=2)
    >>> store = InMemoryStore()
    >>> fact = record_run(made, {"A": np.ones((8, 4)), "x": np.ones(4)}, store)
    >>> fact.counted == made.counts.moved, store.plans(fact.workload) == (fact,)
    (True, True)
    """
    plan = plan_in(made)
    meaning = made.meaning if isinstance(made, ProgramPlan) else None
    if engine == "mpi":
        raise PlanError(
            "with MPI no rank has whole arrays; call record_on_ranks on all ranks",
            rules=("engine",),
        )
    ready = prepare(plan, engine, on, meaning=meaning)
    fleet = ready.fleet()
    outcomes = [ready.run(arrays) for _ in range(_n_runs(fleet, runs))]
    last = outcomes[-1]
    counted = last.report.counted
    if counted is None:
        raise PlanError(
            f"{last.report.lost_workers} workers were lost, so parts were computed "
            "twice; nothing was recorded. Run the plan again",
            rules=("workers",),
        )
    samples = []
    for rank in range(plan.processes):
        boxes = sample_boxes(plan, rank)
        parts = {
            name: (box, last.results[name][slices(box)]) for name, box in boxes.items()
        }
        samples += compared(made, _reader(arrays), parts)
    seconds = [one.report.wall_s for one in outcomes[WARM_UP:]]
    fact = fact_of(made, fleet, counted, check_of(made, samples), seconds)
    return _kept(fact, store)


def record_on_ranks(
    made: AnyPlan,
    blocks: Mapping[str, Any],
    read: Read,
    comm: Any = None,
    *,
    store: FactStore | None = None,
    runs: int = RUNS,
) -> tuple[Any, PlanRecord]:
    """Run a plan on MPI ranks several times, and record its traffic and run times.

    Collective. Each rank compares a sample of its part of the result with a reference,
    computed from what that sample depends on.

    Args:
        blocks: see :func:`feinsum.plans.run_on_ranks`.
        read: returns any box of any operand, wherever it is.
        store: store for the fact, on rank 0.

    Returns:
        What :func:`feinsum.plans.run_on_ranks` returns, and the fact.

    Raises:
        PlanError, WrongResultError, ImplausibleError: on all ranks; see
            :func:`record_run`.
    """
    comm = world() if comm is None else comm
    plan = plan_in(made)
    meaning = made.meaning if isinstance(made, ProgramPlan) else None
    fleet, seconds = fleet_on_ranks(comm), []
    for _ in range(_n_runs(fleet, runs)):
        traffic = Traffic()
        comm.Barrier()
        start = perf_counter()
        parts = run_on_ranks(plan, blocks, comm, meaning=meaning, traffic=traffic)
        seconds.append(max(comm.allgather(perf_counter() - start)))
    named = parts if plan.statements is not None else {plan.outputs[0]: parts}
    samples = _together(
        comm, lambda: compared(made, read, _samples(plan, comm.Get_rank(), named))
    )
    counted = sum(comm.allgather(sum(traffic.by_buffer.values())))

    def keep() -> PlanRecord | None:
        if comm.Get_rank():
            return None
        check = check_of(made, [one for of_rank in samples for one in of_rank])
        fact = fact_of(made, fleet, counted, check, seconds[WARM_UP:])
        return _kept(fact, store)

    return parts, _together(comm, keep)[0]


def _n_runs(fleet: Fleet, runs: int) -> int:
    """One, and those that are timed where seconds say something.

    Raises:
        PlanError: if these are too few for a fact.
    """
    if runs < RUNS:
        raise PlanError(
            f"{runs} timed runs; expected at least {RUNS}", rules=("engine",)
        )
    return WARM_UP + runs if fleet.is_timed else 1


def _samples(
    plan: Plan, rank: int, parts: Mapping[str, Array]
) -> dict[str, tuple[Box, Array]]:
    """Blocks of what a rank has."""
    found = {}
    for name, box in sample_boxes(plan, rank).items():
        held = plan.result_box(rank, name)
        inside = tuple(
            (first - start, end - start)
            for (first, end), (start, _) in zip(box, held, strict=True)
        )
        found[name] = (box, parts[name][slices(inside)])
    return found


def _together(comm: Any, work: Callable[[], Any]) -> list[Any]:
    """What every rank finds; if one fails, all raise its error."""
    found, failure = None, None
    try:
        found = work()
    except FeinsumError as error:
        failure = error
    failures = [one for one in comm.allgather(failure) if one is not None]
    if failures:
        raise failures[0]
    return list(comm.allgather(found))


def _kept(fact: PlanRecord, store: FactStore | None) -> PlanRecord:
    check_plausible(fact)
    if store is not None:
        store.add_plan(fact)
    return fact


def _reader(arrays: Mapping[str, Any]) -> Read:
    return lambda name, box: np.asarray(arrays[name])[slices(box)]
