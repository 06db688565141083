"""Writing sparse tensor files in FROSTT's format as a stream."""

from __future__ import annotations

import gzip
from os import PathLike
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from feinsum.sparse.convert import to_coo
from feinsum.sparse.formats import SparseArray
from feinsum.sparse.rejection import reject

__all__ = ["write_tns"]

_ENTRIES = 2**16


def write_tns(path: str | PathLike[str], array: SparseArray) -> None:
    """Write a tensor as ``.tns``, compressed if the name ends with ``.gz``.

    Values round-trip exactly. The file does not contain the extents.

    Raises:
        InvalidSparseArrayError: ``value-dtype`` for complex values, and
            ``not-finite`` for values that could not be read back.
    """
    entries = to_coo(array)
    if entries.values.dtype.kind == "c":
        reject("value-dtype", "a .tns file cannot store complex values")
    if not np.isfinite(entries.values).all():
        reject("not-finite", "a .tns file cannot store values that are not finite")
    file = _opened(Path(path))
    with file:
        for start in range(0, entries.nnz, _ENTRIES):
            part = slice(start, start + _ENTRIES)
            columns = [(column[part] + 1).tolist() for column in entries.indices]
            # booleans as numbers
            values = (entries.values[part] + 0).tolist()
            rows = zip(*columns, values, strict=True)
            text = "".join(" ".join(map(repr, row)) + "\n" for row in rows)
            file.write(text.encode())


def _opened(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "wb"))
    return path.open("wb")
