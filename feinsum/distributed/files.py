"""Arrays in files, whose blocks ranks read and write.

A folder has ``NAME.npy`` for every array; an HDF5 file (``.h5``, ``.hdf5``) has a
dataset, and a Zarr store (``.zarr``) an array, of that name. Nothing here needs MPI:
only one rank at a time may write to HDF5 or Zarr.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feinsum.distributed.boxes import Box
from feinsum.distributed.storage import get_slices
from feinsum.errors import PlanError
from feinsum.extras import require_extra

Mode: TypeAlias = Literal["r", "r+", "w"]

PACKAGES = {".h5": "h5py", ".hdf5": "h5py", ".zarr": "zarr"}
"""The package that reads and writes files, by suffix; numpy for all others."""


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
