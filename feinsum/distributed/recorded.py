"""Recording of runs as facts: counted, timed if times are meaningful, and verified.

=================== ================== ======================================
function            where              operands
=================== ================== ======================================
record_run          local, dask        whole arrays in this process
record_on_ranks     MPI, every rank    blocks; samples fetch what they need
=================== ================== ======================================
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from feinsum.db import opened_documents
from feinsum.distributed.boxes import Box, get_box_shape, intersect_boxes
from feinsum.distributed.counts import Traffic
from feinsum.distributed.engines import prepare
from feinsum.distributed.facts import (
    AnyPlan,
    Read,
    build_check,
    build_fact,
    choose_sample_boxes,
    compare_samples,
    find_operand_boxes,
    get_inner_plan,
)
from feinsum.distributed.fleets import describe_fleet_on_ranks
from feinsum.distributed.local import name_outputs
from feinsum.distributed.mpi import (
    check_blocks,
    get_world,
    run_on_every_rank,
    run_on_ranks,
)
from feinsum.distributed.plans import Plan, require_dense_plan
from feinsum.distributed.program_plan import ProgramPlan
from feinsum.distributed.storage import get_slices, is_on_gpu, make_relative
from feinsum.errors import PlanError
from feinsum.records import Fleet, PlanRecord, Store, check_plausible
from feinsum.records.signature import sign_if_configured

Array = NDArray[Any]

Database: TypeAlias = Store | str | os.PathLike[str]
"""Where a fact goes: a store, the path of a database, or the URL of a service."""

OperandBox: TypeAlias = tuple[str, Box]
"""A box of an operand."""

T = TypeVar("T")

RUNS = 3
"""Number of timed runs: the fewest that a fact may have."""

WARM_UP_RUNS = 2
"""Runs before the timed ones, in which leaves may be built."""


def make_random_arrays(plan: AnyPlan) -> dict[str, Array]:
    """Return random operands: numbers between 0 and 1, for integers either 0 or 1."""
    inner, rng = get_inner_plan(plan), np.random.default_rng(0)
    require_dense_plan(inner, "recorded")
    arrays = {}
    for name, dtype in inner.operands.items():
        shape = inner.shape(name)
        is_inexact = dtype.kind in "fc"
        values = rng.random(shape) if is_inexact else rng.integers(2, size=shape)
        arrays[name] = values.astype(dtype)
    return arrays


def record_run(
    plan: AnyPlan,
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
        plan: the plan to run.
        arrays: arrays by name.
        store: store for the fact.
        engine: see :func:`feinsum.distributed.prepare`.
        on: see :func:`feinsum.distributed.prepare`.
        runs: number of timed runs.

    Raises:
        PlanError: as raised by the engine, and for fewer than three runs; with the rule
            ``fleet``, if ranks differ.
        WrongResultError: if a block of a result is wrong.
        ImplausibleError: if a count or a time is impossible.

    >>> import feinsum
    >>> from feinsum.records import InMemoryStore
    >>> A, x = feinsum.array("A", (8, 4)), feinsum.array("x", 4)
    >>> plan = feinsum.plan(feinsum.einsum("ij,j->i", A, x), processes=2)
    >>> store = InMemoryStore()
    >>> fact = record_run(plan, {"A": np.ones((8, 4)), "x": np.ones(4)}, store)
    >>> fact.counted == plan.counts.moved, store.plans(fact.workload) == (fact,)
    (True, True)
    """
    inner = get_inner_plan(plan)
    require_dense_plan(inner, "recorded")
    if engine == "mpi":
        raise PlanError(
            "with MPI no rank has whole arrays; call record_on_ranks on all ranks",
            rules=("engine",),
        )
    ready = prepare(inner, engine, on, meaning=_get_semantics(plan))
    fleet = ready.fleet()
    outcomes = [ready.run(arrays) for _ in range(_count_runs(fleet, runs))]
    # after the warm-up: with the kernels that the timed runs used
    final = outcomes[-1]
    counted = final.report.counted
    if counted is None:
        raise PlanError(
            f"{final.report.lost_workers} workers were lost, so parts were computed "
            "twice; nothing was recorded. Run the plan again",
            rules=("workers",),
        )

    def read(name: str, box: Box) -> Array:
        block: Array = np.asarray(arrays[name])[get_slices(box)]
        return block

    samples = []
    for rank in range(inner.processes):
        boxes = choose_sample_boxes(inner, rank)
        blocks = {
            name: (box, final.results[name][get_slices(box)])
            for name, box in boxes.items()
        }
        samples += compare_samples(plan, read, blocks)
    seconds = [outcome.report.wall_s for outcome in outcomes[WARM_UP_RUNS:]]
    fact = build_fact(plan, fleet, counted, build_check(plan, samples), seconds)
    return _store_fact(fact, store)


def record_on_ranks(
    plan: AnyPlan,
    blocks: Mapping[str, Any],
    comm: Any = None,
    *,
    record: Database,
    runs: int = RUNS,
) -> tuple[Any, PlanRecord]:
    """Run a plan on MPI ranks several times, and record its traffic and run times.

    Collective, as is ``plan.run(blocks, comm, record=database)``. Each rank compares a
    sample of its part of the result with a reference. It computes the reference from
    the blocks that the sample depends on, which it fetches from other ranks.

    Args:
        plan: the plan to run, the same on all ranks.
        blocks: see :func:`feinsum.distributed.mpi.run_on_ranks`.
        comm: see :func:`feinsum.distributed.mpi.run_on_ranks`.
        record: the database; only that of rank 0 is used.
        runs: number of timed runs.

    Returns:
        The result of :func:`feinsum.distributed.mpi.run_on_ranks`, and the fact.

    Raises:
        StoreError: on all ranks, if the database cannot be written.
        PlanError, WrongResultError, ImplausibleError: on all ranks; see
            :func:`record_run`.
    """
    comm = get_world() if comm is None else comm
    inner, semantics = get_inner_plan(plan), _get_semantics(plan)
    require_dense_plan(inner, "recorded")
    run_on_every_rank(comm, lambda: _require_host(blocks))
    with _open_on_rank_0(comm, record) as store:
        fleet, seconds = describe_fleet_on_ranks(comm), []
        for _ in range(_count_runs(fleet, runs)):
            traffic = Traffic()
            # otherwise the first rank would time the delay of the others
            comm.Barrier()
            start = perf_counter()
            parts = run_on_ranks(
                inner, blocks, comm, meaning=semantics, traffic=traffic
            )
            # the time of the slowest rank: only then is the result complete
            seconds.append(max(comm.allgather(perf_counter() - start)))
        sampled = _cut_samples(inner, comm.Get_rank(), name_outputs(inner, parts))
        read = _make_reader(inner, blocks, sampled, comm)
        samples = _gather(comm, lambda: compare_samples(plan, read, sampled))
        counted = sum(comm.allgather(sum(traffic.by_buffer.values())))

        def store_fact() -> PlanRecord | None:
            if comm.Get_rank():
                return None
            check = build_check(
                plan, [sample for of_rank in samples for sample in of_rank]
            )
            fact = build_fact(plan, fleet, counted, check, seconds[WARM_UP_RUNS:])
            return _store_fact(fact, store)

        fact = _gather(comm, store_fact)[0]
    assert fact is not None, "rank 0 stores it"
    return parts, fact


def _require_host(blocks: Mapping[str, Any]) -> None:
    """Refuse blocks on GPUs: a fact describes the processors that computed."""
    on_gpu = [name for name, block in blocks.items() if is_on_gpu(block)]
    if on_gpu:
        raise PlanError(
            f"blocks of {', '.join(on_gpu)} are on a GPU; a run is recorded of arrays "
            "on the host: leave out record=, or pass arrays of numpy",
            rules=("gpu",),
        )


@contextmanager
def _open_on_rank_0(comm: Any, record: Database) -> Iterator[Store | None]:
    """Open the database on rank 0; None on all others; collective."""
    with ExitStack() as stack:

        def open_store() -> Store | None:
            if comm.Get_rank():
                return None
            store = record
            if not isinstance(store, Store):
                store = stack.enter_context(opened_documents(store, may_create=True))
            # fail before hours of runs, not after
            store.check_writable()
            return store

        yield run_on_every_rank(comm, open_store)


def _get_semantics(plan: AnyPlan) -> Any:
    return plan.meaning if isinstance(plan, ProgramPlan) else None


def _count_runs(fleet: Fleet, runs: int) -> int:
    """Return the number of runs; a single one on a fleet that is not timed.

    Raises:
        PlanError: if there are too few timed runs for a fact.
    """
    if runs < RUNS:
        raise PlanError(
            f"{runs} timed runs; expected at least {RUNS}", rules=("engine",)
        )
    return WARM_UP_RUNS + runs if fleet.is_timed else 1


def _cut_samples(
    plan: Plan, rank: int, parts: Mapping[str, Array]
) -> dict[str, tuple[Box, Array]]:
    """Cut the sampled blocks from a rank's parts; returns them with their boxes."""
    return {
        name: (
            box,
            parts[name][get_slices(make_relative(box, plan.result_box(rank, name)))],
        )
        for name, box in choose_sample_boxes(plan, rank).items()
    }


def _gather(comm: Any, work: Callable[[], T]) -> list[T]:
    """Return the results of all ranks; if one fails, all raise its error."""
    return list(comm.allgather(run_on_every_rank(comm, work)))


def _make_reader(
    plan: Plan,
    blocks: Mapping[str, Any],
    sampled: Mapping[str, tuple[Box, Array]],
    comm: Any,
) -> Read:
    """Fetch the boxes of operands that samples depend on from ranks that hold them.

    Collective: these boxes do not depend on any values.
    """
    rank = comm.Get_rank()
    requests = _gather(comm, lambda: _list_needed_boxes(plan, sampled))
    own_blocks = check_blocks(plan, blocks, rank)
    replies = [_cut_pieces(plan, own_blocks, rank, wanted) for wanted in requests]
    arrays = {
        (name, box): np.empty(get_box_shape(box), plan.operands[name])
        for name, box in requests[rank]
    }
    for pieces in comm.alltoall(replies):
        for request, position, piece in pieces:
            arrays[request][get_slices(position)] = piece
    return lambda name, box: arrays[name, box]


def _list_needed_boxes(
    plan: Plan, sampled: Mapping[str, tuple[Box, Array]]
) -> list[OperandBox]:
    boxes = {
        operand_box
        for output, (box, _) in sampled.items()
        for operand_box in find_operand_boxes(plan, output, box).items()
    }
    return sorted(boxes, key=str)


def _cut_pieces(
    plan: Plan, blocks: Mapping[str, Any], rank: int, wanted: Sequence[OperandBox]
) -> list[tuple[OperandBox, Box, Array]]:
    """Cut the pieces of requested boxes that a rank holds, with their positions.

    If several ranks hold copies of a block, the first of them sends it.
    """
    pieces = []
    for name, box in wanted:
        block = plan.start_box(name, rank)
        if block is None or any(plan.start_box(name, r) == block for r in range(rank)):
            continue
        common = intersect_boxes(box, block)
        if common is not None:
            piece = blocks[name][get_slices(make_relative(common, block))]
            pieces.append(((name, box), make_relative(common, box), piece))
    return pieces


def _store_fact(fact: PlanRecord, store: Store | None) -> PlanRecord:
    signed = sign_if_configured(fact)
    check_plausible(signed)
    if store is not None:
        store.add(signed)
    return signed
