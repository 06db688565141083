"""A parallel program that runs plans; rank 0 tells as JSON what came out.

Every rank makes its own blocks. The tests that start it say what must come out.
"""

from __future__ import annotations

import json
import os
import random
import sys
from dataclasses import replace
from functools import partial
from itertools import islice
from time import sleep

import numpy as np
from mpi4py import MPI

import feinsum
from benchmarks.papers.schedules import make_named_plan, make_named_plans
from feinsum.distributed import Plan, gather, mpi, plan, plan_statements, with_cyclic
from feinsum.distributed.local import compute_with_numpy, name_outputs
from feinsum.distributed.mpi import Traffic, run_on_ranks
from feinsum.distributed.storage import get_slices, to_host
from feinsum.errors import PlanError
from feinsum.programs import program
from feinsum.records import InMemoryStore
from tests.distributed import gpu_arrays, test_sparse, test_sparse_statements
from tests.distributed.cases import (
    KERNELS,
    PROGRAMS,
    by_numpy,
    einsum_of,
    operands_of,
    plan_requested,
    random_plan,
)
from tests.distributed.engine_contract import check_engine
from tests.distributed.gpu_arrays import GpuArray, to_gpu

DTYPES = ("float32", "int64", "complex64")
N_RANDOM = {"random": 12, "many random": 70}
COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.Get_rank(), COMM.Get_size()


def blocks_of(made: Plan, operands) -> dict[str, np.ndarray]:
    found = {}
    for name, array in operands.items():
        box = made.start_box(name, RANK)
        if box is not None:
            found[name] = array[get_slices(box)]
    return found


def outcome(
    made: Plan, leaf=compute_with_numpy, convert=np.asarray
) -> dict[str, object]:
    """Of one plan: whether the result is numpy's, and what this rank received."""
    operands = operands_of(made.batched_einsum)
    traffic = Traffic()
    blocks = {name: convert(b) for name, b in blocks_of(made, operands).items()}
    part = to_host(run_on_ranks(made, blocks, COMM, leaf=leaf, traffic=traffic))
    expected = by_numpy(made.batched_einsum, operands)
    box = made.result_box(RANK)
    is_right = (box is None) == (part is None)
    if box is not None and part is not None:
        mine = expected[get_slices(box)]
        is_right = bool(np.allclose(part, mine, rtol=1e-12, atol=1e-9))
    return {
        "right": is_right,
        "received": traffic.received,
        "reduced": traffic.reduced,
        "messages": traffic.messages,
    }


def everything() -> dict[str, object]:
    """Of every kernel by every schedule."""
    return schedules(step=1)


def schedules(step: int = 4) -> dict[str, object]:
    """Of every kernel by some schedules; each rank makes a part of the plans."""
    plans: dict[str, Plan] = {}
    for number in range(RANK, len(KERNELS), SIZE):
        name, einsum = [*KERNELS.items()][number]
        kinds = {
            "planned": partial(plan, einsum, processes=SIZE),
            "requested": partial(plan_requested, einsum, SIZE),
            "dealt": partial(plan_dealt, einsum),
        }
        for kind, schedule in make_named_plans(einsum, processes=SIZE).items():
            kinds[kind] = partial(replace, schedule)
        for kind in [*kinds][number // SIZE % step :: step]:
            plans[f"{name} {kind}"] = kinds[kind]()
    wait_for_all()
    return {
        case: outcome(made) | {"counted": counted(made)}
        for part in COMM.allgather(plans)
        for case, made in part.items()
    }


def wait_for_all() -> None:
    """Wait without occupying a core, as MPI does, that ranks with more to plan need."""
    request = COMM.Ibarrier()
    while not request.Test():
        sleep(0.005)


def plan_dealt(einsum) -> Plan:
    """A plan with cyclic parts."""
    return with_cyclic(plan(einsum, processes=SIZE), einsum.indices)


def counted(made: Plan) -> dict[str, int]:
    counts = made.counts
    return {name: getattr(counts, name) for name in ("received", "reduced", "messages")}


def random_plans(n_plans: int) -> dict[str, object]:
    """Plans that no planner makes, of einsums, sparse ones too, and of statements."""
    found: dict[str, object] = {}
    for seed in range(n_plans):
        rng = random.Random(seed)
        name = rng.choice([*KERNELS])
        made = random_plan(rng, KERNELS[name], SIZE)
        found[f"{name} {seed}"] = outcome(made) | {"counted": counted(made)}
    few = 2 if n_plans < 50 else 1
    sparse = islice(test_sparse.on_processes(SIZE), 0, None, few)
    for name, made, arrays in (*sparse, *test_sparse_statements.on_processes(SIZE)):
        found[f"sparse {name}"] = sparse_outcome(
            with_cyclic(made, made.extents), arrays
        )
    for name, several in PROGRAMS.items():
        operands = operands_of(several)
        expected = by_numpy(several, operands)
        plans = {
            "random": random_plan(random.Random(name), several, SIZE),
            "planned": plan_statements(several, processes=SIZE),
        }
        for kind, made in plans.items():
            outcome_of = statements_outcome(made, operands, expected)
            found[f"statements {name} {kind}"] = outcome_of
    return found


def sparse_outcome(made: Plan, arrays) -> dict[str, object]:
    """Of a plan with a sparse operand; whole results are compared on rank 0."""
    traffic = Traffic()
    blocks = made.scatter(arrays if RANK == 0 else None, COMM)
    parts = run_on_ranks(made, blocks, COMM, leaf=compute_with_numpy, traffic=traffic)
    whole = made.gather(parts, COMM)
    dense = {name: test_sparse.as_dense(array) for name, array in arrays.items()}
    expected = by_numpy(made.problem, dense)
    is_right = RANK > 0 or all(
        np.allclose(test_sparse.as_dense(value), expected[name])
        for name, value in name_outputs(made, whole).items()
    )
    return report(made, traffic, is_right=is_right)


def statements_outcome(made: Plan, operands, expected) -> dict[str, object]:
    traffic, blocks = Traffic(), blocks_of(made, operands)
    parts = run_on_ranks(made, blocks, COMM, leaf=compute_with_numpy, traffic=traffic)
    is_right = all(is_part(made, parts, expected, name) for name in made.outputs)
    return report(made, traffic, is_right=is_right)


def report(made: Plan, traffic: Traffic, *, is_right: bool) -> dict[str, object]:
    received = {name: getattr(traffic, name) for name in counted(made)}
    return {"right": bool(is_right), "counted": counted(made), **received}


def contract() -> dict[str, object]:
    """The laws of an engine."""
    check_engine(
        lambda made: made.prepare("mpi", COMM, leaf=compute_with_numpy),
        lambda made: made.prepare("mpi", COMM),
        SIZE,
        is_root=RANK == 0,
    )
    return {"passed": True}


def collectives() -> dict[str, object]:
    """Plans all of whose messages are those of collectives, and no other message."""

    def no_message(*_: object) -> None:
        raise AssertionError("a message was sent point to point")

    start_message = mpi._Interpreter._start_message
    mpi._Interpreter._start_message = no_message
    cases = [("3mm", "eindecomp"), ("same twice", "cosma")]
    plans = {
        f"{name} {kind}": make_named_plan(kind, KERNELS[name], processes=SIZE)
        for name, kind in cases
    }
    plans |= {dtype: inner_product(dtype, SIZE) for dtype in DTYPES}
    found = {name: outcome(made) for name, made in plans.items()}
    mpi._Interpreter._start_message = start_message
    return found


def gpus() -> dict[str, object]:
    """Blocks on GPUs, with messages from their memory, and through the host."""
    sys.modules["cupy"] = gpu_arrays.make_cupy()
    plans = {
        "3mm": make_named_plan("eindecomp", KERNELS["3mm"], processes=SIZE),
        "mttkrp": plan(KERNELS["mttkrp-3-0"], processes=SIZE),
        "sum": inner_product("float32", SIZE),
        "idle": plan(feinsum.einsum("i,i->", *make_vectors(40)), processes=SIZE),
    }
    found: dict[str, object] = {}
    for is_direct in (True, False):
        mpi.is_mpi_cuda_aware = lambda is_direct=is_direct: is_direct
        for name, made in plans.items():
            GpuArray.copies = 0
            told = outcome(made, convert=to_gpu)
            found[f"{name} {is_direct}"] = told | {"copies": GpuArray.copies}
    return found


def make_vectors(n: int, dtype: str = "float64"):
    return [feinsum.array(name, (n,), dtype) for name in "AB"]


def inner_product(dtype: str, n: int) -> Plan:
    """Its partial sums are reduced on one rank; the others end with nothing."""
    return plan(feinsum.einsum("i,i->", *make_vectors(300, dtype)), processes=n)


def is_part(made: Plan, parts, expected, name: str) -> bool:
    box = made.result_box(RANK, name)
    if box is None or parts[name] is None:
        return box is None and parts[name] is None
    mine = expected[name][get_slices(box)]
    return bool(np.array_equal(parts[name], mine))


def passed() -> dict[str, object]:
    """Arrays on rank 0, blocks by functions, and what is wrong with them."""
    einsum, both_read = KERNELS["paper"], PROGRAMS["read twice"]
    made, several = (
        plan(einsum, processes=SIZE),
        plan_statements(both_read, processes=SIZE),
    )
    operands, given = operands_of(einsum), operands_of(both_read)
    here = operands if RANK == 0 else None
    whole = made.gather(
        run_on_ranks(made, made.scatter(here, COMM), COMM, leaf=compute_with_numpy),
        COMM,
    )
    blocks = several.scatter(given if RANK == 0 else None, COMM)
    both = several.gather(
        run_on_ranks(several, blocks, COMM, leaf=compute_with_numpy), COMM
    )
    has_large, is_large = gathered_truth_values()
    functions = {name: by_box(array) for name, array in operands.items()}
    again = made.gather(
        run_on_ranks(made, functions, COMM, leaf=compute_with_numpy), COMM
    )
    try:
        made.scatter({"A": operands["A"]} if RANK == 0 else None, COMM)
        wrong = "nothing"
    except PlanError as error:
        wrong = str(error)
    if RANK:
        return {"right": whole is both is again is has_large is None, "wrong": wrong}
    expected = by_numpy(both_read, given)
    is_right = np.allclose(whole, by_numpy(einsum, operands)) and (whole == again).all()
    are_right = all(np.array_equal(both[name], expected[name]) for name in expected)
    are_right = are_right and np.array_equal(has_large, is_large)
    return {"right": bool(is_right and are_right), "wrong": wrong}


def gathered_truth_values() -> tuple[object, np.ndarray]:
    """An output of a program with a dtype of its own, on rank 0, and what it is."""
    p = program()
    X = p.input("X", (9, 5))
    p.einsum("ij->i", X, body="x0 > 0.9", reduction="any", name="large")
    made, x = p.plan(SIZE), np.random.default_rng(0).random((9, 5))
    parts = made.run(made.plan.scatter({"X": x} if RANK == 0 else None, COMM), COMM)
    found = gather(made.plan, parts, COMM, made.meaning)
    return found and found["large"], (x > 0.9).any(axis=1)


def by_box(array: np.ndarray):
    """Blocks in column-major order: a rank takes them as they are."""
    return lambda box: np.asfortranarray(array[get_slices(box)])


def refused(made: Plan, blocks) -> list[object]:
    try:
        run_on_ranks(made, blocks, COMM, leaf=compute_with_numpy)
    except PlanError as error:
        return [list(error.rules), str(error)]
    return [[], "nothing"]


def refusals() -> dict[str, object]:
    """Rank 1 does what is wrong."""
    einsum = einsum_of("ij,jk->ik", every=12)
    made = plan(einsum, processes=SIZE)
    blocks = blocks_of(made, operands_of(einsum))
    other = replace(made, name="other") if RANK == 1 else made
    short = {**blocks, "A": blocks["A"][1:]} if RANK == 1 else blocks
    narrow = {**blocks, "A": blocks["A"].astype("f4")} if RANK == 1 else blocks
    more = {**blocks, "Z": blocks["A"]} if RANK == 1 else blocks
    none = {} if RANK == 1 else blocks
    return {
        "digest": refused(other, blocks),
        "shape": refused(made, short),
        "dtype": refused(made, narrow),
        "unknown": refused(made, more),
        "nothing": refused(made, none),
        "processes": refused(plan(einsum, processes=SIZE + 1), blocks),
    }


def tuned() -> dict[str, object]:
    """Leaves by feinsum's own calls, and what a run of them records."""
    made, store = plan(KERNELS["paper"], processes=SIZE), InMemoryStore()
    operands, box = operands_of(made.batched_einsum), made.result_box(RANK)
    part = made.run(blocks_of(made, operands), COMM, record=store)
    expected = by_numpy(made.batched_einsum, operands)
    mine = expected[get_slices(box)]
    (fact,) = store.plans(made.key) or (None,)
    return {
        "paper": outcome(made, leaf=None),
        "right": bool(np.allclose(part, mine)),
        "fact": None if fact is None else fact.counted,
        "blocks": None if fact is None else fact.verification.n_blocks,
    }


def dies(how: str) -> None:
    """Rank 1 fails, or is gone, when it is to compute its leaf."""

    def leaf(*args):
        if RANK == 1:
            if how == "killed":
                os.kill(os.getpid(), 9)
            raise ValueError("no leaf today")
        return compute_with_numpy(*args)

    outcome(plan(KERNELS["paper"], processes=SIZE), leaf=leaf)


def main(what: str) -> None:
    """Run the jobs that are named, separated by commas, one after the other."""
    if what in ("raises", "killed"):
        dies(what)
        return
    jobs = {"everything": everything, "schedules": schedules, "refusals": refusals,
            "tuned": tuned, "passed": passed, "contract": contract,
            "collectives": collectives, "gpus": gpus,
            **{name: partial(random_plans, n) for name, n in N_RANDOM.items()},
            }  # fmt: skip
    together = COMM.gather({job: jobs[job]() for job in what.split(",")})
    if RANK == 0:
        sys.stdout.write(json.dumps(together) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
