"""Time plans on ranks with dedicated cores, and calls in one process.

Compares two ranks of one thread each with one process of two threads, and the plan of
one rank with the call of its leaf. More ranks than cores are refused: waiting ranks
would take time from others.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import feinsum
from benchmarks.experiments.terms import count_cores
from benchmarks.processes import run_command
from feinsum.distributed import Plan
from feinsum.ir import BatchedEinsum

KERNELS = {
    "product": ("ij,jk->ik", dict.fromkeys("ijk", 1536)),
    "MTTKRP": ("ijk,ja,ka->ia", {**dict.fromkeys("ijk", 400), "a": 24}),
}
ROUNDS = 7
WARM_UP = 2


def make_einsum(name: str) -> BatchedEinsum:
    subscripts, extents = KERNELS[name]
    terms = subscripts.split("->")[0].split(",")
    shapes = [tuple(extents[i] for i in term) for term in terms]
    arrays = [feinsum.array(f"A{k}", shape) for k, shape in enumerate(shapes)]
    return feinsum.einsum(subscripts, *arrays)


def time_rounds(work: Callable[[], Any], wait: Callable[[], Any]) -> list[float]:
    """Time rounds after a warm-up, which all ranks start together."""
    samples = []
    for _ in range(WARM_UP + ROUNDS):
        wait()
        start = time.perf_counter()
        work()
        wait()
        samples.append(time.perf_counter() - start)
    return samples[WARM_UP:]


def time_calls(name: str) -> list[float]:
    """Time calls in one process."""
    rng = np.random.default_rng(0)
    einsum = make_einsum(name)
    arrays = [rng.random(op.shape) for op in einsum.operands]
    return time_rounds(
        lambda: feinsum.call_einsum(einsum.subscripts, *arrays), lambda: None
    )


def time_plan(name: str, path: str) -> list[float]:
    """Time a plan on all ranks of MPI."""
    from mpi4py import MPI

    comm, plan = MPI.COMM_WORLD, Plan.from_json(Path(path).read_bytes())
    rng = np.random.default_rng(comm.Get_rank())
    blocks = {}
    for operand in plan.starts:
        box = plan.start_box(operand, comm.Get_rank())
        if box is not None:
            blocks[operand] = rng.random(list(map(len, box)))
    return time_rounds(lambda: plan.run(blocks, comm), comm.Barrier)


def run_child(n_ranks: int, n_threads: int, *arguments: str) -> float:
    """Return the median of a run of this program in child processes."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    launcher = [str(mpiexec), "-n", str(n_ranks)] if n_ranks else []
    output = run_command(
        [*launcher, sys.executable, "-m", "benchmarks.plans_seconds", *arguments],
        os.environ | {"FEINSUM_NUM_THREADS": str(n_threads)},
    )
    return median(json.loads(output.splitlines()[-1]))


def compare(name: str, n_ranks: int) -> None:
    einsum = make_einsum(name)
    with tempfile.TemporaryDirectory() as folder:
        ranks_s = {}
        for n in (1, n_ranks):
            path = Path(folder) / f"{n}.json"
            path.write_text(feinsum.plan(einsum, processes=n).to_json())
            ranks_s[n] = run_child(n, 1, "--as-rank", name, str(path))
        call_s = run_child(0, 1, "--as-call", name)
        threads_s = run_child(0, n_ranks, "--as-call", name)
    plan_s, one_rank_s = ranks_s[n_ranks], ranks_s[1]
    print(
        f"{name}: {n_ranks} ranks {plan_s * 1e3:.1f} ms, {n_ranks} threads "
        f"{threads_s * 1e3:.1f} ms, ratio {threads_s / plan_s:.2f}; plan of one rank "
        f"{one_rank_s * 1e3:.1f} ms, call {call_s * 1e3:.1f} ms, ratio "
        f"{call_s / one_rank_s:.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="part of the name of a kernel")
    parser.add_argument("--as-rank", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--as-call", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.as_rank is not None:
        samples = time_plan(*options.as_rank)
        from mpi4py import MPI

        if MPI.COMM_WORLD.Get_rank() == 0:
            print(json.dumps(samples))
        return
    if options.as_call is not None:
        print(json.dumps(time_calls(options.as_call)))
        return
    n_cores = count_cores()
    if options.ranks > n_cores:
        parser.error(
            f"{options.ranks} ranks on {n_cores} cores; times would be meaningless"
        )
    for name in KERNELS:
        if options.only in name:
            compare(name, options.ranks)


if __name__ == "__main__":
    main()
