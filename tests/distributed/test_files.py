"""Arrays in files: every rank reads and writes boxes of them."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from feinsum.errors import PlanError
from feinsum.run import create_arrays, is_shared, read_block, write_block

SHAPES = {"A": (5, 4), "s": ()}


@pytest.mark.parametrize("name", ["folder", "file.h5", "file.hdf5", "store.zarr"])
def test_blocks_come_back(tmp_path, name):
    """What was written box by box, cyclic or not, is read so; all else is zero."""
    path = tmp_path / name
    create_arrays(path, SHAPES, np.dtype("f4"))
    block = np.arange(6, dtype="f4").reshape(2, 3)
    box = (range(1, 5, 3), range(3))
    write_block(path, "A", box, block)
    write_block(path, "s", (), np.float32(7))
    write_block(path, "A", None, None)
    whole = read_block(path, "A", (5, 4), "f4", (range(5), range(4)))
    assert (whole[[1, 4], :3] == block).all()
    assert (read_block(path, "A", (5, 4), "f4", box) == block).all()
    assert whole.sum() == block.sum()
    assert read_block(path, "s", (), "f4", ()) == 7
    assert read_block(path, "A", (5, 4), "f4", None) is None
    assert is_shared(path) == (name == "folder")


@pytest.mark.parametrize("name", ["folder", "file.h5", "store.zarr"])
def test_other_arrays_are_refused(tmp_path, name):
    """Errors name arrays that are missing or have another shape or dtype."""
    path = tmp_path / name
    create_arrays(path, SHAPES, np.dtype("f4"))
    for shape, dtype in [((4, 5), "f4"), ((5, 4), "f8")]:
        with pytest.raises(PlanError, match="expected") as caught:
            read_block(path, "A", shape, dtype, None)
        assert caught.value.rules == ("files",)
    with pytest.raises((PlanError, OSError), match="B"):
        read_block(path, "B", (5, 4), "f4", None)


def test_one_file_of_numpy_has_one_array(tmp_path):
    """A ``.npy`` file has one array; several need a folder."""
    create_arrays(tmp_path / "out.npy", {"out": (2, 2)}, np.dtype("f8"))
    write_block(tmp_path / "out.npy", "out", (range(1), range(2)), np.ones((1, 2)))
    assert np.load(tmp_path / "out.npy").tolist() == [[1, 1], [0, 0]]
    with pytest.raises(PlanError, match="give a folder"):
        create_arrays(tmp_path / "out.npy", SHAPES, np.dtype("f8"))


@pytest.mark.parametrize(("name", "package"), [("a.h5", "h5py"), ("a.zarr", "zarr")])
def test_without_a_package_it_is_said_what_to_install(
    tmp_path, monkeypatch, name, package
):
    """The error names the package to install."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(PlanError, match=r"feinsum\[files\]") as caught:
        create_arrays(tmp_path / name, SHAPES, np.dtype("f8"))
    assert caught.value.rules == ("files",)
