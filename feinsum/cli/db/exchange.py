"""``feinsum db export`` and ``feinsum db import``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feinsum.cli.shared.failure import FAILED, report_bad
from feinsum.cli.shared.kinds import numbers_in_words
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    Trials,
    WithImplausible,
    WithoutRetractions,
)
from feinsum.cli.shared.output import print_json
from feinsum.cli.shared.progress import counted, counting

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator

    from feinsum.db.exchange import Bad, Entry, Imported
    from feinsum.records import Document

EXPORT_EXAMPLES = """\b
Examples:
  feinsum db export facts.jsonl --with-trials
  feinsum db export - | gzip > facts.jsonl.gz
  feinsum db export facts.parquet
  feinsum db export --kernel-tuner results
"""

IMPORT_EXAMPLES = """\b
Examples:
  feinsum db import facts.jsonl
  gzip -dc facts.jsonl.gz | feinsum db import - --skip-bad
  feinsum db import packaged --database https://facts.example
"""

STREAM = "-"

PACKAGED = "packaged"
"""Stands for the facts of this installation; a file of that name is ./packaged."""


def export(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-",
            help="Output file: JSON Lines, or Parquet if it ends in .parquet; - for "
            "standard output; a folder with --kernel-tuner.",
            show_default=False,
        ),
    ],
    trials: Trials = False,
    t4: Annotated[
        bool,
        typer.Option(
            "--kernel-tuner",
            help="Write Kernel Tuner's T4 format to a folder, one file per workload "
            "and environment.",
        ),
    ] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Write facts and device limits to a file.

    An existing file is replaced once the new one is complete.
    """
    from feinsum.db import opened_documents
    from feinsum.db.exchange import all_documents

    if file == STREAM and (as_json or t4):
        raise typer.BadParameter(
            "standard output takes neither --json nor --kernel-tuner"
        )
    with opened_documents(database) as store, counting("writing ...") as step:
        documents = all_documents(store, has_trials=trials)
        n_written = _write(counted(documents, step), file, is_t4=t4)
    if as_json:
        print_json({"file": file, "n_written": n_written})
    elif file != STREAM:
        typer.echo(f"{numbers_in_words(n_written)} written to {file}")


def import_(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|-|packaged",
            help="Output of 'feinsum db export': JSON Lines, or Parquet if it ends in "
            ".parquet; - for JSON Lines from standard input; packaged for the facts "
            "that come with this installation.",
            show_default=False,
        ),
    ],
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Skip and report invalid documents."),
    ] = False,
    with_implausible: WithImplausible = False,
    without_retractions: WithoutRetractions = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Add the documents of a file to a database.

    Each document is validated, and must be plausible. Known documents are ignored, so a
    file can be imported again. The import stops at the first invalid document and keeps
    the ones before it. With --skip-bad it continues, and exits with code 1.
    """
    from feinsum.db import opened_documents
    from feinsum.db.exchange import import_entries
    from feinsum.records import check_plausible, unchecked

    entries = _entries(file)
    if without_retractions:
        entries = _without_retractions(entries)
    with (
        opened_documents(database, may_create=True) as store,
        counting("reading ...") as step,
    ):
        check = unchecked if with_implausible else check_plausible
        on_bad = report_bad if skip_bad else _stop
        imported = import_entries(store, entries, on_bad, step, check=check)
    if as_json:
        print_json(vars(imported))
    else:
        _print(imported)
    if imported.n_bad:
        raise typer.Exit(FAILED)


def _entries(file: str) -> Iterator[Entry]:
    """Yield the entries of a file, of standard input or of the packaged facts."""
    from feinsum.db import shipped_facts
    from feinsum.db.exchange import read_file, read_lines

    if file == PACKAGED:
        return ((f"packaged {r.id[:12]}", r) for r in shipped_facts().records())
    if file == STREAM:
        return read_lines(typer.get_binary_stream("stdin"))
    return read_file(Path(file))


def _without_retractions(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield all entries except retractions."""
    from feinsum.db.exchange import Bad
    from feinsum.records import Retraction

    for entry in entries:
        if isinstance(entry, Bad) or not isinstance(entry[1], Retraction):
            yield entry


def _write(documents: Iterable[Document], file: str, *, is_t4: bool) -> Counter[str]:
    from feinsum.db.exchange import write_file, write_lines, write_t4

    if is_t4:
        return write_t4(documents, Path(file))
    if file == STREAM:
        return write_lines(documents, typer.get_binary_stream("stdout"))
    return write_file(documents, Path(file))


def _print(imported: Imported) -> None:
    typer.echo(f"read: {numbers_in_words(imported.n_read)}")
    typer.echo(f"new: {numbers_in_words(imported.n_new)}")
    if imported.n_bad:
        typer.echo(f"skipped: {imported.n_bad}")


def _stop(bad: Bad) -> None:
    """Raise the error of the first document that cannot be stored."""
    from feinsum.errors import InvalidRecordError

    raise InvalidRecordError(
        f"{bad}; the documents before it were imported: correct it, or skip invalid "
        "documents with --skip-bad"
    )
