"""Run plans with blocks on GPUs: ``mpiexec -n 4 python -m benchmarks.gpu.ranks``.

Ranks share the available GPUs. Rank 0 prints times, and the path of messages. The exit
code is 1 if a result is wrong.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

import feinsum
from feinsum.distributed import plan
from feinsum.distributed.local import LeafFunction
from feinsum.distributed.mpi import Traffic, run_on_ranks
from feinsum.distributed.storage import get_slices, is_mpi_cuda_aware, to_host

CASES: dict[str, tuple[str, dict[str, int]]] = {
    "product": ("ik,kj->ij", {"i": 1000, "j": 900, "k": 1100}),
    "sum over ranks": ("ik,kj->ij", {"i": 30, "j": 20, "k": 90_000}),
    "MTTKRP": ("ijk,jr,kr->ir", {"i": 120, "j": 130, "k": 140, "r": 24}),
    "tensor times matrix": ("ijk,kl->ijl", {"i": 90, "j": 80, "k": 120, "l": 70}),
}
TOLERANCE = 1e-11


def run_case(
    comm: Any,
    subscripts: str,
    sizes: dict[str, int],
    to_gpu: Callable[[Any], Any],
    leaf: LeafFunction | None,
) -> str:
    """Run a plan on all ranks, verify it, and describe its time.

    Raises:
        AssertionError: if a block of the result is wrong or misplaced.
    """
    terms = subscripts.partition("->")[0].split(",")
    shapes = [tuple(sizes[index] for index in term) for term in terms]
    names = [f"A{k}" for k in range(len(terms))]
    rng = np.random.default_rng(0)
    operands = {n: rng.random(s) for n, s in zip(names, shapes, strict=True)}
    arrays = [feinsum.array(n, s) for n, s in zip(names, shapes, strict=True)]
    ranks_plan = plan(feinsum.einsum(subscripts, *arrays), processes=comm.Get_size())
    rank, traffic = comm.Get_rank(), Traffic()
    boxes = {name: ranks_plan.start_box(name, rank) for name in names}
    blocks = {
        name: to_gpu(np.ascontiguousarray(operands[name][get_slices(box)]))
        for name, box in boxes.items()
        if box is not None
    }
    seconds = []
    for _ in range(3):
        comm.Barrier()
        start = perf_counter()
        part = to_host(
            run_on_ranks(ranks_plan, blocks, comm, leaf=leaf, traffic=traffic)
        )
        seconds.append(perf_counter() - start)
    box, error = ranks_plan.result_box(rank), 0.0
    if box is not None:
        expected = np.einsum(subscripts, *operands.values(), optimize=True)
        error = float(np.abs(part - expected[get_slices(box)]).max() / expected.max())
    worst = max(comm.allgather(error))
    assert worst <= TOLERANCE, f"off by {worst:.2g} of the largest entry"
    n_received = sum(comm.allgather(traffic.received))
    return f"{1e3 * min(seconds):.1f} ms, {n_received} entries received in three runs"


def run_all(
    comm: Any, to_gpu: Callable[[Any], Any], leaf: LeafFunction | None = None
) -> bool:
    """Run all cases, print a line for each on rank 0, and return whether all were
    right.
    """
    failures = 0
    for name, (subscripts, sizes) in CASES.items():
        try:
            text = run_case(comm, subscripts, sizes, to_gpu, leaf)
        except (AssertionError, feinsum.FeinsumError) as error:
            failures, text = failures + 1, f"failed: {error}"
        if comm.Get_rank() == 0:
            print(f"{name}: {text}", flush=True)
    return not failures


def main() -> int:
    comm = importlib.import_module("mpi4py.MPI").COMM_WORLD
    cupy = importlib.import_module("cupy")
    cupy.cuda.Device(comm.Get_rank() % cupy.cuda.runtime.getDeviceCount()).use()
    if comm.Get_rank() == 0:
        path = "from GPU to GPU" if is_mpi_cuda_aware() else "through the host"
        print(f"{comm.Get_size()} ranks, messages {path}", flush=True)
    return 0 if run_all(comm, cupy.asarray) else 1


if __name__ == "__main__":
    raise SystemExit(main())
