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

from feinsum.distributed import Plan, ProgramPlan
from feinsum.distributed.facts import get_inner_plan, read_plan
from feinsum.distributed.files import create_arrays, is_shared, read_block, write_block
from feinsum.distributed.local import name_outputs
from feinsum.distributed.mpi import get_world, run_on_every_rank, run_on_ranks
from feinsum.distributed.plans import require_dense_plan
from feinsum.distributed.recorded import RUNS, record_on_ranks
from feinsum.errors import FeinsumError, PlanError
from feinsum.threads import THREADS_VARIABLE

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a plan; the exit code is 0, or 1 after one line that says what failed."""
    options = _make_parser().parse_args(arguments)
    use_one_thread()
    try:
        comm = get_world()
    except PlanError as error:
        sys.stderr.write(f"feinsum: {error}\n")
        return 1
    try:
        _run(comm, options)
    except FeinsumError as error:
        if comm.Get_rank() == 0:
            sys.stderr.write(f"feinsum: {error}\n")
        return 1
    return 0


def use_one_thread() -> None:
    """Give leaves one thread for each rank, unless a variable says otherwise."""
    if not os.environ.get("OMP_NUM_THREADS"):
        os.environ.setdefault(THREADS_VARIABLE, "1")


class _FirstRankParser(argparse.ArgumentParser):
    """Prints help and errors on rank 0 alone, as all ranks parse the same options."""

    def _print_message(self, message: str, file: Any = None) -> None:
        try:
            is_first = get_world().Get_rank() == 0
        except PlanError:  # without MPI there are no other ranks
            is_first = True
        if is_first:
            super()._print_message(message, file)


def _make_parser() -> argparse.ArgumentParser:
    parser = _FirstRankParser(
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


def _run(comm: Any, options: argparse.Namespace) -> None:
    output = options.output
    document = _return_on_all(comm, lambda: read_plan(options.plan.read_bytes()))
    plan, rank = get_inner_plan(document), comm.Get_rank()
    require_dense_plan(plan, "run on arrays from files")
    semantics = document.meaning if isinstance(document, ProgramPlan) else None
    blocks = _return_on_all(comm, lambda: _read_blocks(plan, rank, options.inputs))
    if options.record is None:
        parts = run_on_ranks(plan, blocks, comm, meaning=semantics)
    else:
        parts, fact = record_on_ranks(
            document, blocks, comm, record=options.record, runs=options.runs
        )
        if rank == 0:
            sys.stdout.write(f"recorded {fact.id[:12]}: {fact}\n")
    named = name_outputs(plan, parts)
    shapes = {name: plan.shape(name) for name in plan.outputs}
    dtypes = {
        name: semantics.dtype(name) if semantics else plan.dtype
        for name in plan.outputs
    }
    create = partial(create_arrays, output, shapes, dtypes)
    _return_on_all(comm, create if rank == 0 else _do_nothing)
    write = partial(_write_blocks, plan, rank, output, named)
    if is_shared(output):
        _return_on_all(comm, write)
        return
    # HDF5 and Zarr have one writer at a time
    for turn in range(comm.Get_size()):
        _return_on_all(comm, write if turn == rank else _do_nothing)


def _do_nothing() -> None:
    """Wait for other ranks."""


def _return_on_all(comm: Any, work: Callable[[], T]) -> T:
    """Return the result of this rank; if files fail on one, all raise the error."""

    def convert_errors() -> T:
        try:
            return work()
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            file = f"{error.filename}: " if error.filename else ""
            raise PlanError(f"{file}{reason}", rules=("files",)) from error
        except (FeinsumError, ValueError) as error:
            raise PlanError(str(error), rules=("files",)) from error

    return run_on_every_rank(comm, convert_errors)


def _read_blocks(plan: Plan, rank: int, source: Path) -> dict[str, Any]:
    """Read the blocks of this rank from arrays in files."""
    return {
        name: read_block(
            source, name, plan.shape(name), dtype, plan.start_box(name, rank)
        )
        for name, dtype in plan.operands.items()
    }


def _write_blocks(plan: Plan, rank: int, path: Path, blocks: Mapping[str, Any]) -> None:
    for name, block in blocks.items():
        write_block(path, name, plan.result_box(rank, name), block)


if __name__ == "__main__":
    sys.exit(main())
