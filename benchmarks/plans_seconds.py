"""Seconds of plans where ranks have cores of their own, beside one process.

Two ranks of one thread each against one process with two threads, and the plan of one
rank against the call of its leaf. More ranks than cores are refused: they wait by
turning, and their seconds say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import feinsum
from feinsum.distributed import Plan
from feinsum.ir import BatchedEinsum

KERNELS = {
    "product": ("ij,jk->ik", dict.fromkeys("ijk", 1536)),
    "MTTKRP": ("ijk,ja,ka->ia", {**dict.fromkeys("ijk", 400), "a": 24}),
}
ROUNDS = 7
WARM_UP = 2


def einsum_of(name: str) -> BatchedEinsum:
    subscripts, extents = KERNELS[name]
    terms = subscripts.split("->")[0].split(",")
    shapes = [tuple(extents[i] for i in term) for term in terms]
    arrays = [feinsum.array(f"A{k}", shape) for k, shape in enumerate(shapes)]
    return feinsum.einsum(subscripts, *arrays)


def seconds(work: Callable[[], Any], wait: Callable[[], Any]) -> list[float]:
    """Of rounds after a warm-up; all ranks begin each of them together."""
    seconds = []
    for _ in range(WARM_UP + ROUNDS):
        wait()
        begun = time.perf_counter()
        work()
        wait()
        seconds.append(time.perf_counter() - begun)
    return seconds[WARM_UP:]


def by_call(name: str) -> list[float]:
    """One process, with the threads that it has."""
    rng = np.random.default_rng(0)
    einsum = einsum_of(name)
    arrays = [rng.random(op.shape) for op in einsum.operands]
    return seconds(
        lambda: feinsum.call_einsum(einsum.subscripts, *arrays), lambda: None
    )


def by_plan(name: str, path: str) -> list[float]:
    """All ranks of MPI together."""
    from mpi4py import MPI

    comm, plan = MPI.COMM_WORLD, Plan.from_json(Path(path).read_bytes())
    rng = np.random.default_rng(comm.Get_rank())
    blocks = {}
    for operand in plan.starts:
        box = plan.start_box(operand, comm.Get_rank())
        if box is not None:
            blocks[operand] = rng.random(list(map(len, box)))
    return seconds(lambda: plan.run(blocks, comm), comm.Barrier)


def started(n_ranks: int, n_threads: int, *arguments: str) -> float:
    """The median of a run of this program in processes of its own."""
    mpiexec = Path(sys.executable).with_name("mpiexec")
    ahead = [str(mpiexec), "-n", str(n_ranks)] if n_ranks else []
    completed = subprocess.run(
        [*ahead, sys.executable, "-m", "benchmarks.plans_seconds", *arguments],
        env=os.environ | {"FEINSUM_NUM_THREADS": str(n_threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode:
        raise SystemExit(completed.stderr)
    return median(json.loads(completed.stdout.splitlines()[-1]))


def compare(name: str, n_ranks: int) -> None:
    einsum = einsum_of(name)
    with tempfile.TemporaryDirectory() as folder:
        times = {}
        for n in (1, n_ranks):
            path = Path(folder) / f"{n}.json"
            path.write_text(feinsum.plan(einsum, processes=n).to_json())
            times[n] = started(n, 1, "--as-rank", name, str(path))
        alone = started(0, 1, "--as-call", name)
        threads = started(0, n_ranks, "--as-call", name)
    print(
        f"{name}: {n_ranks} ranks {times[n_ranks] * 1e3:.1f} ms, {n_ranks} threads "
        f"{threads * 1e3:.1f} ms, ratio {threads / times[n_ranks]:.2f}; plan of one "
        f"rank {times[1] * 1e3:.1f} ms, call {alone * 1e3:.1f} ms, ratio "
        f"{alone / times[1]:.2f}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="", help="part of the name of a kernel")
    parser.add_argument("--as-rank", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--as-call", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.as_rank is not None:
        seconds = by_plan(*chosen.as_rank)
        from mpi4py import MPI

        if MPI.COMM_WORLD.Get_rank() == 0:
            print(json.dumps(seconds))
        return
    if chosen.as_call is not None:
        print(json.dumps(by_call(chosen.as_call)))
        return
    n_cores = len(os.sched_getaffinity(0))
    if chosen.ranks > n_cores:
        parser.error(f"{chosen.ranks} ranks on {n_cores} cores; seconds mean nothing")
    for name in KERNELS:
        if chosen.only in name:
            compare(name, chosen.ranks)


if __name__ == "__main__":
    main()
