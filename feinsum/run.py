"""``python -m feinsum.run``: a plan on the ranks of MPI, arrays from files.

``mpiexec -n 8 python -m feinsum.run plan.json --inputs arrays --output out.npy`` maps
``arrays/NAME.npy`` for every operand, reads the blocks of each rank, and writes those
of the result to a file that all ranks see.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from feinsum.errors import FeinsumError, PlanError
from feinsum.plans import Box, Plan
from feinsum.plans.mpi import run_on_ranks, world

__all__ = ["main"]

T = TypeVar("T")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a plan; the exit code is 0, or 1 after one line that says what failed."""
    chosen = _parser().parse_args(arguments)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m feinsum.run", description="Run a plan on the ranks of MPI."
    )
    parser.add_argument("plan", type=Path, help="document of a plan")
    parser.add_argument(
        "--inputs", type=Path, required=True, help="folder of NAME.npy for each operand"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="result, a .npy file"
    )
    return parser


def _run(comm: Any, path: Path, inputs: Path, output: Path) -> None:
    plan = _on_all(comm, lambda: Plan.from_json(path.read_bytes()))
    blocks = _on_all(comm, lambda: _blocks(plan, comm.Get_rank(), inputs))
    parts = run_on_ranks(plan, blocks, comm)
    if plan.statements is None:
        parts = {plan.outputs[0]: parts}
    is_first = comm.Get_rank() == 0
    for name, part in parts.items():
        path = output if len(parts) == 1 else output / f"{name}.npy"
        create = partial(_create, plan, name, path) if is_first else (lambda: None)
        _on_all(comm, create)
        _on_all(comm, partial(_write, plan, name, comm.Get_rank(), path, part))


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


def _blocks(plan: Plan, rank: int, folder: Path) -> dict[str, Any]:
    """The blocks of this rank, read from maps of whole arrays."""
    found = {}
    for name in plan.starts:
        path = folder / f"{name}.npy"
        whole = np.load(path, mmap_mode="r", allow_pickle=False)
        if whole.shape != plan.shape(name):
            raise PlanError(
                f"{path} has shape {whole.shape}; expected {plan.shape(name)}",
                rules=("files",),
            )
        box = plan.start_box(name, rank)
        if box is not None:
            found[name] = np.array(whole[_slices(box)])
    return found


def _create(plan: Plan, name: str, path: Path) -> None:
    shape = plan.shape(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.lib.format.open_memmap(path, "w+", plan.dtype, shape).flush()


def _write(plan: Plan, name: str, rank: int, path: Path, part: Any) -> None:
    box = plan.result_box(rank, name)
    if box is not None:
        whole = np.lib.format.open_memmap(path, "r+")
        whole[_slices(box)] = part
        whole.flush()


def _slices(box: Box) -> tuple[Any, ...]:
    return (*(slice(first, end) for first, end in box), ...)


if __name__ == "__main__":
    sys.exit(main())
