"""``python -m feinsum.run``: a plan on the ranks of MPI, arrays from files.

``mpiexec -n 8 python -m feinsum.run plan.json --inputs arrays --output out.npy`` maps
``arrays/NAME.npy`` for every operand, reads the blocks of each rank, and writes those
of the result to a file that all ranks see. Both can be files of HDF5 or Zarr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from feinsum.errors import FeinsumError, PlanError
from feinsum.plans import Plan
from feinsum.plans.files import create_arrays, is_shared, read_block, write_block
from feinsum.plans.local import Meaning
from feinsum.plans.mpi import run_on_ranks, world
from feinsum.programs import ProgramPlan
from feinsum.targets.host.threads import THREADS_VARIABLE

__all__ = ["main", "use_one_thread"]

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
        _run(comm, chosen.plan, chosen.inputs, chosen.output)
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
        "plan", type=Path, help="document of a plan, of an einsum or of a program"
    )
    parser.add_argument(
        "--inputs",
        type=Path,
        required=True,
        help="folder of NAME.npy, or file of HDF5 or Zarr, with all operands",
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="a .npy file, or one of HDF5 or Zarr"
    )
    return parser


def _run(comm: Any, path: Path, inputs: Path, output: Path) -> None:
    plan, meaning = _on_all(comm, lambda: _read(path))
    rank = comm.Get_rank()
    blocks = _on_all(comm, lambda: _blocks(plan, rank, inputs))
    parts = run_on_ranks(plan, blocks, comm, meaning=meaning)
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


def _read(path: Path) -> tuple[Plan, Meaning | None]:
    """A plan of einsums, or of a program with what its statements compute."""
    text = path.read_bytes()
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict) and "program" in document:
        made = ProgramPlan.from_json(text)
        return made.plan, made.meaning
    return Plan.from_json(text), None


def _nothing() -> None:
    """What ranks do that have nothing to do."""


def _on_all(comm: Any, work: Callable[[], T]) -> T:
    """What each rank does by itself; if it fails on one, all raise the same error."""
    found, failure = None, ""
    try:
        found = work()
    except (FeinsumError, OSError, ValueError) as error:
        failure = str(error) or type(error).__name__
    failures = [text for text in comm.allgather(failure) if text]
    if failures:
        raise PlanError(failures[0], rules=("files",))
    return found  # type: ignore[return-value]  # work has returned it


def _blocks(plan: Plan, rank: int, source: Path) -> dict[str, Any]:
    """The blocks of this rank, of arrays in files."""
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
