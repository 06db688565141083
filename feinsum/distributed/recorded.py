"""Runs that become facts: counted, timed if times are meaningful, and verified."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from feinsum.db import opened_documents
from feinsum.distributed.boxes import Box, box_shape
from feinsum.distributed.facts import AnyPlan, fact_of, plan_in
from feinsum.distributed.fleets import fleet_on_ranks
from feinsum.distributed.local import slices, within
from feinsum.distributed.mpi import checked_blocks, run_on_ranks, world
from feinsum.distributed.plan import Plan
from feinsum.distributed.prepared import prepare
from feinsum.distributed.program_plan import ProgramPlan
from feinsum.distributed.sampled import (
    Read,
    check_of,
    compared,
    operand_boxes,
    sample_boxes,
)
from feinsum.distributed.standalone import meet
from feinsum.distributed.traffic import Traffic
from feinsum.errors import FeinsumError, PlanError
from feinsum.records import Fleet, PlanRecord, Store, check_plausible
from feinsum.records.signature import signed_if_wanted

Array = NDArray[Any]

Database: TypeAlias = Store | str | os.PathLike[str]
"""Where a fact goes: a store, the path of a database, or the URL of a service."""

Asked: TypeAlias = tuple[str, Box]
"""A box of an operand."""

T = TypeVar("T")

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
    store: Store,
    *,
    engine: str = "local",
    on: Any = None,
    runs: int = RUNS,
) -> PlanRecord:
    """Run a plan on whole arrays, and record its traffic and run times.

    With the engine ``local``, ranks take turns in this process: elements are counted
    and results verified, but nothing is timed. With ``dask``, whole runs are timed,
    including Dask's overhead. On MPI ranks, call :func:`record_on_ranks`.

    Args:
        arrays: arrays by name.
        store: store for the fact.
        engine, on: see :func:`feinsum.distributed.prepare`.
        runs: number of timed runs.

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


def run_recorded(
    made: AnyPlan,
    blocks: Mapping[str, Any],
    comm: Any = None,
    *,
    record: Database,
    runs: int = RUNS,
) -> Any:
    """Run a plan on MPI ranks, and record its traffic and run times; collective.

    ``plan.run(blocks, comm, record=database)`` calls this. It takes only blocks, so the
    dependencies of a sample come from the ranks that hold them.

    Args:
        blocks: see :func:`feinsum.distributed.run_on_ranks`.
        record: the database; only rank 0's matters.

    Returns:
        The result of :func:`feinsum.distributed.run_on_ranks`.

    Raises:
        StoreError: on all ranks, if the database cannot be written.
        PlanError, WrongResultError, ImplausibleError: on all ranks; see
            :func:`record_run`.
    """
    comm = world() if comm is None else comm
    with opened_on_rank_0(comm, record) as store:
        parts, _ = record_on_ranks(made, blocks, comm=comm, store=store, runs=runs)
    return parts


@contextmanager
def opened_on_rank_0(comm: Any, record: Database) -> Iterator[Store | None]:
    """The database on rank 0, and None on all others; collective.

    Raises:
        StoreError: on all ranks, if it cannot be written.
    """
    with ExitStack() as stack:

        def opened() -> Store | None:
            if comm.Get_rank():
                return None
            store = record
            if not isinstance(store, Store):
                store = stack.enter_context(opened_documents(store, may_create=True))
            store.check_writable()
            return store

        yield _on_each(comm, opened)


def record_on_ranks(
    made: AnyPlan,
    blocks: Mapping[str, Any],
    read: Read | None = None,
    comm: Any = None,
    *,
    store: Store | None = None,
    runs: int = RUNS,
) -> tuple[Any, PlanRecord]:
    """Run a plan on MPI ranks several times, and record its traffic and run times.

    Collective. Each rank compares a sample of its part of the result with a reference,
    computed from what that sample depends on.

    Args:
        blocks: see :func:`feinsum.distributed.run_on_ranks`.
        read: returns any box of any operand, wherever it is; by default, ranks fetch
            what they need from the blocks of others.
        store: store for the fact, on rank 0.

    Returns:
        The result of :func:`feinsum.distributed.run_on_ranks`, and the fact.

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
    chosen = _samples(plan, comm.Get_rank(), named)
    if read is None:
        read = _reader_on_ranks(plan, blocks, chosen, comm)
    samples = _together(comm, lambda: compared(made, read, chosen))
    counted = sum(comm.allgather(sum(traffic.by_buffer.values())))

    def keep() -> PlanRecord | None:
        if comm.Get_rank():
            return None
        check = check_of(made, [one for of_rank in samples for one in of_rank])
        fact = fact_of(made, fleet, counted, check, seconds[WARM_UP:])
        return _kept(fact, store)

    fact = _together(comm, keep)[0]
    assert fact is not None, "rank 0 keeps it"
    return parts, fact


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
        inside = within(box, plan.result_box(rank, name))
        found[name] = (box, parts[name][slices(inside)])
    return found


def _together(comm: Any, work: Callable[[], T]) -> list[T]:
    """The results of all ranks; if one fails, all raise its error."""
    found = _on_each(comm, work)
    return list(comm.allgather(found))


def _on_each(comm: Any, work: Callable[[], T]) -> T:
    """The result of this rank; if one fails, all raise its error."""
    found, failure = None, None
    try:
        found = work()
    except FeinsumError as error:
        failure = error
    failures = [one for one in comm.allgather(failure) if one is not None]
    if failures:
        raise failures[0]
    return found  # type: ignore[return-value]  # work has returned it


def _reader_on_ranks(
    plan: Plan,
    blocks: Mapping[str, Any],
    chosen: Mapping[str, tuple[Box, Array]],
    comm: Any,
) -> Read:
    """Boxes of operands that samples depend on, from the ranks that hold them.

    Collective: these boxes do not depend on any values.
    """
    wanted = _together(comm, lambda: _wanted(plan, chosen))
    held = checked_blocks(plan, blocks, comm.Get_rank())
    pieces = [_pieces(plan, held, comm.Get_rank(), asked) for asked in wanted]
    found = {
        (name, box): np.empty(box_shape(box), plan.operands[name])
        for name, box in wanted[comm.Get_rank()]
    }
    for came in comm.alltoall(pieces):
        for asked, place, piece in came:
            found[asked][slices(place)] = piece
    return lambda name, box: found[name, box]


def _wanted(plan: Plan, chosen: Mapping[str, tuple[Box, Array]]) -> list[Asked]:
    every = {
        asked
        for output, (box, _) in chosen.items()
        for asked in operand_boxes(plan, output, box).items()
    }
    return sorted(every, key=str)


def _pieces(
    plan: Plan, held: Mapping[str, Array], rank: int, wanted: Sequence[Asked]
) -> list[tuple[Asked, Box, Array]]:
    """A rank's parts of some boxes, with their place; of copies, the first."""
    found = []
    for name, box in wanted:
        ours = plan.start_box(name, rank)
        if ours is None or any(plan.start_box(name, r) == ours for r in range(rank)):
            continue
        common = meet(box, ours)
        if common is not None:
            piece = held[name][slices(within(common, ours))]
            found.append(((name, box), within(common, box), piece))
    return found


def _kept(made: PlanRecord, store: Store | None) -> PlanRecord:
    fact = signed_if_wanted(made)
    check_plausible(fact)
    if store is not None:
        store.add(fact)
    return fact


def _reader(arrays: Mapping[str, Any]) -> Read:
    return lambda name, box: np.asarray(arrays[name])[slices(box)]
