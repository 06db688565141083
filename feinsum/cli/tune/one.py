"""Tuning one workload: the view of it, its report, and what is said of an early end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from feinsum.cli.shared.failure import INTERRUPTED, say
from feinsum.cli.shared.fractions import fractions_of
from feinsum.cli.shared.output import ID_LENGTH, print_json, record_document
from feinsum.errors import MeasurementError
from feinsum.words import counted

if TYPE_CHECKING:
    import loopy as lp

    from feinsum.ir import BatchedEinsum
    from feinsum.records import Trial, TuningRecord
    from feinsum.tuning import TuningReport
    from feinsum.tuning.report import LivePage


def tune_one(
    target: BatchedEinsum | lp.TranslationUnit,
    database: str | None,
    options: dict[str, Any],
    reports: list[TuningReport],
    *,
    as_json: bool = False,
    is_live: bool = False,
    folder: Path | None = None,
) -> None:
    """Tune, show it, and write the report; also of an early end.

    Args:
        reports: gets the one report, before anything else is done with it.
    """
    from feinsum.cli.tune.view import JsonLines, ProgressBar
    from feinsum.db import opened_store
    from feinsum.tuning import tune_einsum, write_report
    from feinsum.tuning.progress import both

    view = JsonLines() if as_json else ProgressBar()
    try:
        with opened_store(database, has_shipped=True, may_create=True) as store:
            with view, _live_page(is_live) as page:
                report = tune_einsum(
                    target,
                    database=store,
                    on_start=both(view.begin, page.begin if page else None),
                    on_progress=both(view.show, page.show if page else None),
                    on_final=both(view.final, page.final if page else None),
                    on_stop=reports.append,
                    **options,
                )
            reports.append(report)
            view.finish(report, fractions_of(report.records, store))
    finally:
        if folder is not None and reports:
            write_report(reports[0], folder)
    if not report.records:
        raise nothing_recorded(report.trials)


def _live_page(is_wanted: bool) -> AbstractContextManager[LivePage | None]:
    from feinsum.tuning.report import LivePage

    if not is_wanted:
        return nullcontext()
    page = LivePage()
    say(f"live: {page.url}")
    return page


@contextmanager
def interrupts_told(
    reports: Sequence[TuningReport], database: str | None, as_json: bool
) -> Iterator[None]:
    """Say what was recorded if the body is interrupted, whatever it just does."""
    try:
        yield
    except KeyboardInterrupt:
        records = reports[0].records if reports else ()
        if as_json:
            documents = _documents(records, database)
            print_json({"event": "interrupted", "records": documents}, is_line=True)
        say(_interruption(records))
        raise typer.Exit(INTERRUPTED) from None


def _documents(
    records: Sequence[TuningRecord], database: str | None
) -> list[dict[str, Any]]:
    if not records:
        return []
    from feinsum.db import opened_store

    with opened_store(database, has_shipped=True) as store:
        fractions = fractions_of(records, store)
    return [record_document(record, fractions) for record in records]


def _interruption(records: Sequence[TuningRecord]) -> str:
    if not records:
        return "interrupted; nothing was recorded"
    ids = ", ".join(record.id[:ID_LENGTH] for record in records)
    return f"interrupted; recorded: {ids}"


def nothing_recorded(trials: Sequence[Trial]) -> MeasurementError:
    n_passed = sum(trial.is_ok for trial in trials)
    if n_passed:
        return MeasurementError(
            f"nothing was recorded: {n_passed} of {counted(len(trials), 'trial')} "
            "passed, "
            "but none when timed again; see the warnings"
        )
    first = next((t.message for t in trials if t.message), "no recipe was tried")
    return MeasurementError(
        f"nothing was recorded: none of {counted(len(trials), 'trial')} passed; "
        f"the first failed with: {first}"
    )
