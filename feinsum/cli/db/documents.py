"""``feinsum db export``, ``import``, ``diff``, ``merge`` and ``retract``."""

from __future__ import annotations

import getpass
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feinsum.cli.shared.failure import DIFFERENT, FAILED, report_bad
from feinsum.cli.shared.kinds import format_counts, list_counts
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    Trials,
    WithImplausible,
    WithoutRetractions,
)
from feinsum.cli.shared.output import (
    ID_LENGTH,
    print_document,
    print_json,
    print_table,
    to_digits,
)
from feinsum.cli.shared.progress import count_items, show_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from feinsum.db.exchange.files import Bad, Entry
    from feinsum.db.exchange.merging import Imported, KindDifference
    from feinsum.db.sql.retracting import Retracted, Suspect, SuspectPeaks, SuspectPlan
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
    from feinsum.db.exchange.merging import list_documents

    # Standard output holds the documents, so that nothing else may be printed there.
    if file == STREAM and (as_json or t4):
        raise typer.BadParameter(
            "standard output takes neither --json nor --kernel-tuner"
        )
    with opened_documents(database) as store, show_count("writing ...") as step:
        documents = list_documents(store, has_trials=trials)
        n_written = _write(count_items(documents, step), file, is_t4=t4)
    if as_json:
        print_json({"file": file, "n_written": n_written})
    elif file != STREAM:
        typer.echo(f"{format_counts(n_written)} written to {file}")


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
    from feinsum.db.exchange.files import Bad
    from feinsum.db.exchange.merging import import_entries
    from feinsum.records import Retraction, accept_all, check_plausible

    entries = _read_entries(file)
    # Retractions by others hide facts for good; an import may decline them.
    if without_retractions:
        entries = (
            entry
            for entry in entries
            if isinstance(entry, Bad) or not isinstance(entry[1], Retraction)
        )
    with (
        opened_documents(database, may_create=True) as store,
        show_count("reading ...") as step,
    ):
        check = accept_all if with_implausible else check_plausible
        on_bad = report_bad if skip_bad else _stop
        imported = import_entries(store, entries, on_bad, step, check=check)
    print_document(vars(imported), as_json, lambda: _print_imported(imported))
    if imported.n_bad:
        raise typer.Exit(FAILED)


def _read_entries(file: str) -> Iterator[Entry]:
    """Yield the entries of a file, of standard input or of the packaged facts."""
    from feinsum.db import get_shipped_facts
    from feinsum.db.exchange.files import read_file, read_lines

    # Checked first, so that the facts of the installation need no path.
    if file == PACKAGED:
        return ((f"packaged {r.id[:12]}", r) for r in get_shipped_facts().records())
    if file == STREAM:
        return read_lines(typer.get_binary_stream("stdin"))
    return read_file(Path(file))


def _write(documents: Iterable[Document], file: str, *, is_t4: bool) -> Counter[str]:
    from feinsum.db.exchange.files import write_file, write_lines
    from feinsum.db.exchange.kernel_tuner import write_t4

    if is_t4:
        return write_t4(documents, Path(file))
    if file == STREAM:
        return write_lines(documents, typer.get_binary_stream("stdout"))
    return write_file(documents, Path(file))


def _print_imported(imported: Imported) -> None:
    typer.echo(f"read: {format_counts(imported.n_read)}")
    typer.echo(f"new: {format_counts(imported.n_new)}")
    if imported.n_bad:
        typer.echo(f"skipped: {imported.n_bad}")


def _stop(bad: Bad) -> None:
    """Raise the error of the first document that cannot be stored."""
    from feinsum.errors import InvalidRecordError

    raise InvalidRecordError(
        f"{bad}; the documents before it were imported: correct it, or skip invalid "
        "documents with --skip-bad"
    )


DIFF_EXAMPLES = """\b
Examples:
  feinsum db diff mine.sqlite team.sqlite
  feinsum db diff mine.sqlite postgresql://ada@host/facts --json
"""

MERGE_EXAMPLES = """\b
Examples:
  feinsum db merge laptop.sqlite cluster.sqlite
  feinsum db merge mine.sqlite --database postgresql://ada@host/facts
"""

N_SHOWN = 10
"""Maximum ids to print of each kind."""

DatabaseA = Annotated[
    str,
    typer.Argument(metavar="A", help="A database: path or URL.", show_default=False),
]
DatabaseB = Annotated[
    str, typer.Argument(metavar="B", help="Another database.", show_default=False)
]


def diff(a: DatabaseA, b: DatabaseB, as_json: AsJson = False) -> None:
    """Compare two databases: list what each has and the other lacks.

    Exits with code 1 if they differ.
    """
    from feinsum.db import opened_documents
    from feinsum.db.exchange.merging import compare

    with (
        opened_documents(a, is_read_only=True) as store_a,
        opened_documents(b, is_read_only=True) as store_b,
    ):
        differences = compare(store_a, store_b)
    is_same = all(difference.is_empty for difference in differences)
    kinds = {difference.kind: difference for difference in differences}
    document = {"is_same": is_same, "kinds": kinds}
    print_document(document, as_json, lambda: _print_differences(differences))
    # like diff(1), so that a script can test whether databases are equal
    if not is_same:
        raise typer.Exit(DIFFERENT)


def merge(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Databases to add: paths or URLs, opened read-only.",
            show_default=False,
        ),
    ],
    with_implausible: WithImplausible = False,
    without_retractions: WithoutRetractions = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Add the facts, plans, limits, trials and retractions of other databases.

    Nothing is changed or removed, and the order does not matter. Facts that any of
    them retracts disappear from look-ups. Implausible documents are skipped and named
    on stderr; the command then exits with code 1.
    """
    from contextlib import ExitStack

    from feinsum.db import opened_documents
    from feinsum.db.exchange.merging import merge
    from feinsum.records import accept_all, check_plausible

    # All databases are opened before anything is written: a misspelt one is reported
    # first.
    n_new: Counter[str] = Counter()
    left_out: list[Bad] = []
    check = accept_all if with_implausible else check_plausible
    with ExitStack() as stack:
        opened = [
            stack.enter_context(opened_documents(source, is_read_only=True))
            for source in sources
        ]
        target = stack.enter_context(opened_documents(database, may_create=True))
        step = stack.enter_context(show_count("adding ..."))
        wanted = not without_retractions
        for source in opened:
            n_new.update(
                merge(
                    target,
                    source,
                    step,
                    on_bad=left_out.append,
                    check=check,
                    has_retractions=wanted,
                )
            )
    for bad in left_out:
        report_bad(bad)
    lines = [f"{name} added: {number}" for name, number in list_counts(n_new)]
    document = {"n_new": n_new, "n_left_out": len(left_out)}
    print_document(document, as_json, lambda: typer.echo("\n".join(lines)))
    if left_out:
        raise typer.Exit(FAILED)


def _print_differences(differences: Sequence[KindDifference]) -> None:
    print_table(
        ("kind",),
        ("in both", "only in A", "only in B"),
        [
            (d.kind, f"{d.n_both}", f"{len(d.only_a)}", f"{len(d.only_b)}")
            for d in differences
        ],
    )
    for difference in differences:
        for name, ids in (("A", difference.only_a), ("B", difference.only_b)):
            for document_id in ids[:N_SHOWN]:
                typer.echo(
                    f"only in {name}: {difference.kind} {document_id[:ID_LENGTH]}"
                )
            if len(ids) > N_SHOWN:
                typer.echo(f"and {len(ids) - N_SHOWN} more; --json has all")


RETRACT_EXAMPLES = """\b
Examples:
  feinsum db retract 0f7c2ab41d03 --reason "wrong clock" --yes
  feinsum db retract --recorder ci --since 2026-01-31T12:00:00Z
  feinsum db retract --transform rowwise@1 --database https://facts.example
"""

MAX_SUSPECTS = 20
"""Maximum facts to print."""


def retract(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ID...]",
            help="Content ids of facts, or the first 12 digits of stored ones.",
            show_default=False,
        ),
    ] = None,
    workload: Annotated[
        str | None, typer.Option(metavar="KEY", help="Facts of this workload.")
    ] = None,
    recorder: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Facts sent to the service only with keys of this name; repeatable.",
            show_default=False,
        ),
    ] = None,
    transform: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[@VERSION]", help="Facts with recipes of this transform."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Facts that the service received since then, or, if not sent to one, "
            "measured since then. ISO 8601.",
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="Reason; required with --yes.")
    ] = "",
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Retract the facts; otherwise they are listed."),
    ] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Permanently remove facts from every look-up, list and answer.

    Facts must match all given criteria. Retractions are documents that are merged and
    exported like facts, so no merge restores a fact. On a service, this needs the
    scope admin.
    """
    from feinsum.db import opened_documents
    from feinsum.records import RetractionQuery

    query = RetractionQuery(
        ids=tuple(ids or ()),
        workload=workload,
        recorders=tuple(recorder or ()),
        transform=transform,
        since=since,
    )
    # Checked before the database is opened: a service would need a request to refuse.
    if yes and not reason.strip():
        raise typer.BadParameter("give the reason with --reason", param_hint="--yes")
    # Without --yes, nothing is written: a retraction cannot be taken back.
    with opened_documents(database) as store:
        retracted = store.retract(
            query, reason=reason, retracted_by=getpass.getuser(), is_dry_run=not yes
        )
    print_document(retracted, as_json, lambda: _print_retracted(retracted))


def _print_retracted(retracted: Retracted) -> None:
    records = [
        (
            r.id[:ID_LENGTH],
            r.workload,
            r.transform,
            to_digits(r.speedup, 3),
            _format_day(r),
        )
        for r in retracted.suspects[:MAX_SUSPECTS]
    ]
    plans = [
        (p.id[:ID_LENGTH], p.workload, p.plan[:ID_LENGTH], _format_day(p))
        for p in retracted.plans[:MAX_SUSPECTS]
    ]
    peaks = [
        (
            p.id[:ID_LENGTH],
            p.device[:ID_LENGTH],
            to_digits(p.bandwidth_bytes_per_s / 1e9, 3),
            _format_day(p),
        )
        for p in retracted.peaks[:MAX_SUSPECTS]
    ]
    if records:
        names = ("record", "workload", "transform")
        print_table(names, ("speed-up", "recorded"), records)
    if plans:
        print_table(("record", "workload", "plan"), ("recorded",), plans)
    if peaks:
        print_table(("limits", "device"), ("GB/s", "measured"), peaks)
    # a service lists only the first facts, but counts all
    if n_more := retracted.n_facts - len(records) - len(plans) - len(peaks):
        typer.echo(f"and {n_more} more; --json has all")
    for document_id in retracted.unknown:
        typer.echo(
            f"not stored here: {document_id}; the retraction applies to any copy"
        )
    if retracted.n_shared:
        typer.echo(f"kept: {retracted.n_shared} that others also sent or recorded")
    n = retracted.n_facts + len(retracted.unknown)
    if not n:
        typer.echo("no matching facts, or all are already retracted")
    elif retracted.is_dry_run:
        typer.echo(f"facts to retract: {n}; nothing was written; use --yes")
    else:
        typer.echo(f"facts retracted: {n}")


def _format_day(suspect: Suspect | SuspectPlan | SuspectPeaks) -> str:
    return f"{suspect.recorded_at:%Y-%m-%d}"
