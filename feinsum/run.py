"""``python -m feinsum.run``: a plan on MPI ranks, arrays from files.

``mpiexec -n 8 python -m feinsum.run plan.json --inputs arrays --output out.npy`` maps
``arrays/NAME.npy`` for every operand, reads the blocks of each rank, and writes those
of the result to a file that all ranks see. Both can be files of HDF5 or Zarr. With
``--record DATABASE`` it runs several times, and records traffic and run times.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from feinsum.distributed import Box, Plan, ProgramPlan
from feinsum.distributed.facts import AnyPlan, plan_in, read_plan
from feinsum.distributed.files import create_arrays, is_shared, read_block, write_block
from feinsum.distributed.mpi import run_on_ranks, world
from feinsum.distributed.recorded import RUNS, opened_on_rank_0, record_on_ranks
from feinsum.errors import FeinsumError, PlanError
from feinsum.threads import THREADS_VARIABLE

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a plan; the exit code is 0, or 1 after one line that says what failed."""
    chosen = _parser().parse_args(arguments)
    use_one_thread()
    try:
        comm = world()
    except PlanError as error:
        sys.stderr.write(f"feinsum: {error}\n")
        return 1
    try:
        _run(comm, chosen)
    except FeinsumError as error:
        if comm.Get_rank() == 0:
            sys.stderr.write(f"feinsum: {error}\n")
        return 1
    return 0


def use_one_thread() -> None:
    """Leaves have one thread for each rank, unless a variable says otherwise."""
    if not os.environ.get("OMP_NUM_THREADS"):
        os.environ.setdefault(THREADS_VARIABLE, "1")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m feinsum.run", description="Run a plan on the ranks of MPI."
    )
    parser.add_argument(
        "plan", type=Path, help="plan of an einsum or a program, as JSON"
    )
    parser.add_argument(
        "--inputs",
        type=Path,
        required=True,
        help="folder with NAME.npy, or HDF5 or Zarr file, with all operands",
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="a .npy, HDF5 or Zarr file"
    )
    parser.add_argument(
        "--record",
        metavar="DATABASE",
        help="record the traffic and run times in this database (path or URL)",
    )
    parser.add_argument(
        "--runs", type=int, default=RUNS, help="number of timed runs with --record"
    )
    return parser


def _run(comm: Any, chosen: argparse.Namespace) -> None:
    inputs, output = chosen.inputs, chosen.output
    plan_document = _on_all(comm, lambda: read_plan(chosen.plan.read_bytes()))
    plan, rank = plan_in(plan_document), comm.Get_rank()
    meaning = plan_document.meaning if isinstance(plan_document, ProgramPlan) else None
    blocks = _on_all(comm, lambda: _blocks(plan, rank, inputs))
    if chosen.record is None:
        parts = run_on_ranks(plan, blocks, comm, meaning=meaning)
    else:
        parts = _recorded(comm, plan_document, blocks, chosen)
    if plan.statements is None:
        parts = {plan.outputs[0]: parts}
    shapes = {name: plan.shape(name) for name in plan.outputs}
    dtypes = {
        name: meaning.dtype(name) if meaning else plan.dtype for name in plan.outputs
    }
    create = partial(create_arrays, output, shapes, dtypes)
    _on_all(comm, create if rank == 0 else _nothing)
    write = partial(_write, plan, rank, output, parts)
    if is_shared(output):
        _on_all(comm, write)
        return
    for turn in range(comm.Get_size()):
        _on_all(comm, write if turn == rank else _nothing)


def _recorded(
    comm: Any,
    plan_document: AnyPlan,
    blocks: Mapping[str, Any],
    chosen: argparse.Namespace,
) -> Any:
    """Return the parts of the result; rank 0 tells what was recorded."""
    plan, rank = plan_in(plan_document), comm.Get_rank()

    def read(name: str, box: Box) -> Any:
        dtype = plan.operands[name]
        return read_block(chosen.inputs, name, plan.shape(name), dtype, box)

    with opened_on_rank_0(comm, chosen.record) as store:
        parts, fact = record_on_ranks(
            plan_document, blocks, read, comm, store=store, runs=chosen.runs
        )
    if rank == 0:
        sys.stdout.write(f"recorded {fact.id[:12]}: {fact}\n")
    return parts


def _nothing() -> None:
    """The work of idle ranks."""


def _on_all(comm: Any, work: Callable[[], T]) -> T:
    """Do work on each rank; if it fails on one, all raise the same error."""
    result, failure = None, ""
    try:
        result = work()
    except (FeinsumError, OSError, ValueError) as error:
        failure = str(error) or type(error).__name__
    failures = [text for text in comm.allgather(failure) if text]
    if failures:
        raise PlanError(failures[0], rules=("files",))
    return result  # type: ignore[return-value]  # work has returned it


def _blocks(plan: Plan, rank: int, source: Path) -> dict[str, Any]:
    """Return the blocks of this rank, of arrays in files."""
    return {
        name: read_block(
            source, name, plan.shape(name), dtype, plan.start_box(name, rank)
        )
        for name, dtype in plan.operands.items()
    }


def _write(plan: Plan, rank: int, path: Path, parts: Mapping[str, Any]) -> None:
    for name, part in parts.items():
        write_block(path, name, plan.result_box(rank, name), part)


if __name__ == "__main__":
    sys.exit(main())
