"""Sparse tensor files in FROSTT's format (``.tns``), read and written as a stream.

A line is an entry: its indices, from 1, and its value, separated by spaces. ``#``
starts a comment.

Source: Smith et al. 2017 (FROSTT).
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath, sysconf
from pathlib import Path
from typing import Any, BinaryIO, Literal, NoReturn, cast

import numpy as np
import numpy.typing as npt

from feinsum.sparse.convert import to_coo
from feinsum.sparse.formats import (
    COO,
    Array,
    SparseArray,
    check_shape,
    choose_index_dtype,
    reject,
)
from feinsum.words import format_count

BLOCK_BYTES = 2**22

_MAX_LINE_BYTES = 2**16

_MAX_INDEX = 2**53
"""Numbers are read as doubles, which hold every integer up to this one."""


def read_tns(
    path: str | PathLike[str],
    *,
    shape: Sequence[int] | None = None,
    dtype: npt.DTypeLike = np.float64,
    max_bytes: int | None = None,
) -> COO:
    """Read the tensor in a ``.tns`` or ``.tns.gz`` file.

    An entry takes 4 bytes for each index (8 beyond 2**31) and the bytes of its value.
    While reading, one more column and 100 MB for the current block of the file are
    needed. So 100 million entries of order 3 take 2.0 GB, and 2.9 GB while reading.

    Args:
        path: path of the file.
        shape: extents; by default the largest index of each axis.
        dtype: dtype of the values: float32 or float64.
        max_bytes: memory limit for the entries; by default the free memory.

    Raises:
        InvalidSparseArrayError: with the code of the broken rule, and the line.
        OSError: if the file cannot be opened.
    """
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        reject("value-dtype", f"given {np.dtype(dtype)}; expected float32 or float64")
    limit = _free_bytes() if max_bytes is None else max_bytes
    columns = _Columns(np.dtype(dtype), limit)
    for indices, values in iterate_tns(path):
        columns.add(indices, values)
    if not columns.columns:
        reject("empty-file", f"{fspath(path)} has no entries; expected one a line")
    extents = tuple(largest + 1 for largest in columns.largest)
    final_shape = extents if shape is None else check_shape(tuple(shape))
    if len(final_shape) != len(extents):
        reject(
            "rank",
            f"the entries have {format_count(len(extents), 'index')}; the shape "
            f"has {format_count(len(final_shape), 'extent')}",
        )
    return COO(final_shape, columns.take_columns(), columns.take_values())


@dataclass
class _Columns:
    """The columns of entries read so far, in blocks."""

    dtype: np.dtype[Any]
    max_bytes: int
    columns: list[list[Array]] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)
    largest: list[int] = field(default_factory=list)
    n_bytes: int = 0

    def add(self, indices: Array, values: Array) -> None:
        if not self.columns:
            self.columns = [[] for _ in indices]
            self.largest = [0] * len(indices)
        for axis, column in enumerate(indices):
            top = int(column.max())
            self.largest[axis] = max(self.largest[axis], top)
            self.columns[axis].append(column.astype(choose_index_dtype(top)))
            self.n_bytes += self.columns[axis][-1].nbytes
        self.values.append(values.astype(self.dtype))
        self.n_bytes += self.values[-1].nbytes
        if self.n_bytes > self.max_bytes:
            n_read = sum(map(len, self.values))
            reject(
                "memory",
                f"the first {format_count(n_read, 'entry')} take "
                f"{self.n_bytes} bytes; allowed are "
                f"{self.max_bytes}: raise max_bytes, or read the file in blocks with "
                "iterate_tns",
            )

    def take_columns(self) -> tuple[Array, ...]:
        """Join the blocks of each column, freeing the blocks on the way."""
        joined = []
        for blocks in self.columns:
            joined.append(np.concatenate(blocks))
            blocks.clear()
        return tuple(joined)

    def take_values(self) -> Array:
        joined = np.concatenate(self.values)
        self.values.clear()
        return joined


def iterate_tns(
    path: str | PathLike[str], *, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[Array, Array]]:
    """Yield the entries of a ``.tns`` file, block by block, in bounded memory.

    Args:
        path: path of the file; compressed if it ends with ``.gz``.
        block_bytes: bytes of text to read at once; memory use is 25 times as much.

    Yields:
        Indices from 0, int64, one row per axis; and values, float64.

    Raises:
        InvalidSparseArrayError: with the code of the broken rule, and the line.
    """
    order: int | None = None
    for text, line in _read_blocks(Path(path), block_bytes):
        counts, line_numbers = _count_words(text, line)
        if not len(counts):
            continue
        if order is None:
            order = int(counts[0]) - 1
        yield _parse_entries(text, counts, line_numbers, order)


def _read_blocks(path: Path, block_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole lines without comments, and the numbers of their first."""
    unfinished, line = b"", 1
    with _open(path, "rb") as file:
        while data := _read(file, block_bytes, path):
            data = unfinished + data
            n_complete = data.rfind(b"\n") + 1
            text, unfinished = data[:n_complete], data[n_complete:]
            # a file without newlines would grow to one block, however large
            if len(unfinished) > _MAX_LINE_BYTES:
                last = line + text.count(b"\n")
                reject("line", f"line {last} is longer than {_MAX_LINE_BYTES} bytes; "
                       "expected one entry")  # fmt: skip
            yield re.sub(rb"#[^\n]*", b"", text), line
            line += text.count(b"\n")
    if unfinished.partition(b"#")[0].strip():
        reject(
            "cut",
            f"line {line}, the last, has no end: {path.name} may have been cut there. "
            "If it is whole, add a newline",
        )


def _open(path: Path, mode: Literal["rb", "wb"]) -> BinaryIO:
    """Open a file, compressed if its name ends with ``.gz``."""
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, mode))
    return path.open(mode)


def _read(file: BinaryIO, n_bytes: int, path: Path) -> bytes:
    try:
        return file.read(n_bytes)
    except EOFError:
        reject("cut", f"{path.name} ends within its compressed data; fetch it again")
    except (gzip.BadGzipFile, zlib.error) as error:
        reject("compression", f"{path.name} is not a complete gzip file: {error}")


def _count_words(text: bytes, line: int) -> tuple[Array, Array]:
    """Count the words of each nonempty line; return counts and line numbers."""
    if not text:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    characters = np.frombuffer(text, np.uint8)
    is_word = characters > ord(" ")
    begins = is_word.copy()
    begins[1:] &= ~is_word[:-1]
    ends = np.flatnonzero(characters == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    # every segment has its newline: for an empty one, reduceat would return an entry,
    # not 0
    counts = np.add.reduceat(begins, starts, dtype=np.int32)
    full = np.flatnonzero(counts)
    return counts[full], full + line


def _parse_entries(
    text: bytes, counts: Array, lines: Array, order: int
) -> tuple[Array, Array]:
    """Parse the numbers of a block into indices and values."""
    odd = np.flatnonzero(counts != order + 1)
    if len(odd) or order < 1:
        k = int(odd[0]) if len(odd) else 0
        reject(
            "line",
            f"line {lines[k]} has {format_count(int(counts[k]), 'word')}; expected "
            f"{max(order, 1) + 1}: indices and a value, with spaces between",
        )
    numbers = _parse_numbers(text)
    if numbers is None or len(numbers) != len(counts) * (order + 1):
        _reject_words(text, int(lines[0]))
    table = numbers.reshape(-1, order + 1)
    indices, values = table[:, :-1], table[:, -1]
    is_index = (indices >= 1) & (indices <= _MAX_INDEX) & (indices % 1 == 0)
    wrong = np.flatnonzero(~is_index.all(axis=1))
    if len(wrong):
        k = int(wrong[0])
        reject(
            "index-range",
            f"line {lines[k]} has the indices {_format_row(indices[k])}; "
            f"expected integers from 1 to {_MAX_INDEX}",
        )
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        k = int(wrong[0])
        reject("not-finite", f"line {lines[k]} has the value {values[k]}; expected a "
               "finite one")  # fmt: skip
    # copies, since a view of the values would keep the whole table in memory
    return indices.T.astype(np.int64) - 1, values.copy()


def _parse_numbers(text: bytes) -> Array | None:
    """Parse the numbers of a text; None if a word is not a number."""
    try:
        return np.loadtxt(io.BytesIO(text), comments=None, ndmin=2).ravel()
    except ValueError:
        return None


def _reject_words(text: bytes, line: int) -> NoReturn:
    """Raise an error that locates the first word that is not a number."""
    for number, words in enumerate(text.split(b"\n"), line):
        for word in words.split():
            # float() accepts underscores between digits, loadtxt does not
            if not re.fullmatch(rb"[-+0-9.eEinfatyINFATY]+", word) or not _is_number(
                word
            ):
                reject(
                    "line",
                    f"line {number} has the word {word.decode('ascii', 'replace')!r}; "
                    "expected a number, with spaces between numbers",
                )
    reject("line", f"the numbers from line {line} on cannot be parsed")


def _is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _format_row(row: Array) -> str:
    return " ".join(f"{number:g}" for number in row)


def _free_bytes() -> int:
    # excludes the page cache, which the system would free, so the limit is on the safe
    # side
    return sysconf("SC_AVPHYS_PAGES") * sysconf("SC_PAGE_SIZE")


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
    with _open(Path(path), "wb") as file:
        for start in range(0, entries.nnz, _ENTRIES):
            chunk = slice(start, start + _ENTRIES)
            columns = [(column[chunk] + 1).tolist() for column in entries.indices]
            # the sum makes numbers of booleans
            values = (entries.values[chunk] + 0).tolist()
            rows = zip(*columns, values, strict=True)
            # tolist gave Python's numbers: their repr reproduces a float, numpy's adds
            # its type
            text = "".join(" ".join(map(repr, row)) + "\n" for row in rows)
            file.write(text.encode())
