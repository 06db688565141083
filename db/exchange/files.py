"""Files of documents: JSON Lines or, by the suffix ``.parquet``, Parquet."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from feinsum.db.exchange.lines import Entry, read_lines, write_lines
from feinsum.db.exchange.parquet import read_parquet, write_parquet
from feinsum.errors import StoreUnavailableError
from feinsum.records import Document

PARQUET = ".parquet"


def write_file(documents: Iterable[Document], path: Path) -> Counter[str]:
    """Write documents to a file; returns their number by kind.

    An existing file is replaced once the new one is complete and on disk.

    Raises:
        StoreUnavailableError: if it cannot be written.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as stream:
            is_table = path.suffix == PARQUET
            write = write_parquet if is_table else write_lines
            n_written = write(documents, stream)
            stream.flush()
            # a rename may reach the disk before the content of the file
            os.fsync(stream.fileno())
        part.replace(path)
    except OSError as error:
        raise StoreUnavailableError(
            f"{path} cannot be written: {error}; give another path"
        ) from None
    finally:
        part.unlink(missing_ok=True)
    return n_written


def read_file(path: Path) -> Iterator[Entry]:
    """Yield the documents of a file, each checked.

    Raises:
        StoreUnavailableError: if it cannot be read.
        InvalidRecordError, SchemaVersionError: if it is not a file of documents.
    """
    try:
        with path.open("rb") as stream:
            is_table = path.suffix == PARQUET
            yield from read_parquet(stream) if is_table else read_lines(stream)
    except OSError as error:
        raise StoreUnavailableError(
            f"{path} cannot be read: {error}; give the path of a file that 'feinsum "
            "db export' wrote"
        ) from None
