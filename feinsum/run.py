"""``python -m feinsum.run``: a plan on MPI ranks, arrays from files.

``mpiexec -n 8 python -m feinsum.run plan.json --inputs arrays --output out.npy`` maps
``arrays/NAME.npy`` for every operand, reads the blocks of each rank, and writes those
of the result to a file that all ranks see. With ``--record DATABASE`` it runs several
times, and records traffic and run times.

A folder has ``NAME.npy`` for every array; an HDF5 file (``.h5``, ``.hdf5``) has a
dataset, and a Zarr store (``.zarr``) an array, of that name. Only one rank at a time
may write to HDF5 or Zarr.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed import Plan, ProgramPlan
from feinsum.distributed.boxes import Box
from feinsum.distributed.facts import get_inner_plan, read_plan
from feinsum.distributed.local import name_outputs
from feinsum.distributed.mpi import get_world, run_on_every_rank, run_on_ranks
from feinsum.distributed.plans import require_dense_plan
from feinsum.distributed.recorded import RUNS, record_on_ranks
from feinsum.distributed.storage import get_slices
from feinsum.errors import FeinsumError, PlanError
from feinsum.extras import require_extra
from feinsum.threads import THREADS_VARIABLE

T = TypeVar("T")

Mode: TypeAlias = Literal["r", "r+", "w"]

PACKAGES = {".h5": "h5py", ".hdf5": "h5py", ".zarr": "zarr"}
"""The package that reads and writes files, by suffix; numpy for all others."""


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


# ---- arrays in files


def is_shared(path: Path) -> bool:
    """Return whether ranks may write to it concurrently."""
    return path.suffix not in PACKAGES


def read_block(
    path: Path, name: str, shape: tuple[int, ...], dtype: Any, box: Box | None
) -> NDArray[Any] | None:
    """Read a box of an array; None for no box.

    Raises:
        PlanError: with the rule ``files`` if there is no such array, or it has the
            wrong shape or dtype.
    """
    with _open_arrays(path, "r") as arrays:
        array = _find_array(arrays, path, name)
        actual = (tuple(array.shape), np.dtype(array.dtype))
        if actual != (shape, np.dtype(dtype)):
            raise PlanError(
                f"{name} in {path} has shape {actual[0]} and dtype {actual[1]}; "
                f"expected {shape} and {np.dtype(dtype)}",
                rules=("files",),
            )
        # a copy: the file is closed before the block is used
        return None if box is None else np.array(array[get_slices(box)], order="C")


def create_arrays(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: np.dtype[Any] | Mapping[str, np.dtype[Any]],
) -> None:
    """Create arrays of zeros, replacing existing ones; call this on one rank only.

    A path that ends in ``.npy`` is the file of a single array.

    Args:
        path: a folder or a package of arrays, or the file of a single array.
        shapes: shape of each array, by name.
        dtype: dtype of all arrays, or of each by name.
    """
    if path.suffix != ".npy":
        if path.suffix not in PACKAGES:
            path.mkdir(parents=True, exist_ok=True)
    elif len(shapes) != 1:
        raise PlanError(
            f"{path} is a file for one array, but there are {', '.join(shapes)}: give "
            "a folder, an HDF5 file or a Zarr store",
            rules=("files",),
        )
    with _open_arrays(path, "w") as arrays:
        for name, shape in shapes.items():
            own_dtype = dtype[name] if isinstance(dtype, Mapping) else dtype
            arrays.create(name, shape, own_dtype)


def write_block(path: Path, name: str, box: Box | None, block: Any) -> None:
    """Write a box of a created array."""
    if box is None:
        return
    with _open_arrays(path, "r+") as arrays:
        _find_array(arrays, path, name)[get_slices(box)] = block


def _find_array(arrays: _Arrays, path: Path, name: str) -> Any:
    try:
        return arrays.find(name)
    except KeyError:
        raise PlanError(f"{path} has no array {name}", rules=("files",)) from None


class _Arrays(NamedTuple):
    """The functions that find and create arrays of a folder, a file or a store."""

    find: Callable[[str], Any]
    create: Callable[[str, tuple[int, ...], Any], Any]


@contextmanager
def _open_arrays(path: Path, mode: Mode) -> Iterator[_Arrays]:
    package = PACKAGES.get(path.suffix)
    if package is None:
        yield _map_files(path, "r" if mode == "r" else "r+")
    elif package == "h5py":
        with _import_package(package).File(path, mode) as file:
            yield _Arrays(file.__getitem__, file.create_dataset)
    else:
        group = _import_package(package).open_group(str(path), mode=mode)
        yield _Arrays(
            group.__getitem__,
            lambda name, shape, dtype: group.create_array(
                name, shape=shape, dtype=dtype
            ),
        )


def _map_files(path: Path, mode: Literal["r", "r+"]) -> _Arrays:
    """Return the files of a folder, or a single one, mapped into memory."""

    def get_path(name: str) -> Path:
        return path if path.suffix == ".npy" else path / f"{name}.npy"

    def create(name: str, shape: tuple[int, ...], dtype: Any) -> None:
        np.lib.format.open_memmap(get_path(name), "w+", dtype, shape).flush()

    def find(name: str) -> Any:
        file = get_path(name)
        try:
            return np.lib.format.open_memmap(file, mode)
        except FileNotFoundError:
            raise PlanError(f"there is no file {file}", rules=("files",)) from None
        except ValueError as error:
            raise PlanError(
                f"{file} is not an array in numpy's format: {error}", rules=("files",)
            ) from None

    return _Arrays(find, create)


def _import_package(name: str) -> Any:
    with require_extra(
        name, "files", "this file", partial(PlanError, rules=("files",))
    ):
        return import_module(name)


if __name__ == "__main__":
    sys.exit(main())
