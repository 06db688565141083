"""Tune one workload, print the result, and write the report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import typer

from feinsum.cli.shared.failure import INTERRUPTED, say
from feinsum.cli.shared.output import ID_LENGTH, print_json
from feinsum.cli.shared.records import compute_fractions, record_document
from feinsum.errors import MeasurementError
from feinsum.words import format_count

if TYPE_CHECKING:
    import loopy as lp

    from feinsum.ir import BatchedEinsum
    from feinsum.records import Trial, TuningRecord
    from feinsum.tuning import TuningReport
    from feinsum.tuning.report import LivePage

    Target: TypeAlias = BatchedEinsum | lp.TranslationUnit


def tune_one(
    read_target: Callable[[], tuple[Target, dict[str, int]]],
    database: str | None,
    options: dict[str, Any],
    *,
    as_json: bool = False,
    is_live: bool = False,
    folder: Path | None = None,
) -> None:
    """Tune one target, print the result, and write the report, even after an early end.

    Args:
        read_target: returns what to tune, and sizes that ``options`` override.
        database: address of the database; None for the user's own.
        options: options of :func:`feinsum.tuning.tune_einsum`.
        as_json: whether to print a JSON document.
        is_live: whether to show the search while it runs.
        folder: folder of the report; None to write none.
    """
    reports: list[TuningReport] = []
    # reading the user's file may take long: an interruption is reported from here on
    try:
        target, sizes = read_target()
        options = options | {"sizes": {**sizes, **options["sizes"]}}
        with _report_in(folder, reports):
            _tune(target, database, options, reports, as_json=as_json, is_live=is_live)
    except KeyboardInterrupt:
        records = reports[0].records if reports else ()
        if as_json:
            documents = _make_documents(records, database)
            print_json({"event": "interrupted", "records": documents}, is_line=True)
        say(_format_interruption(records))
        raise typer.Exit(INTERRUPTED) from None
    if not reports[0].records:
        raise make_unrecorded_error(reports[0].trials)


def _tune(
    target: Target,
    database: str | None,
    options: dict[str, Any],
    reports: list[TuningReport],
    *,
    as_json: bool,
    is_live: bool,
) -> None:
    """Tune with a view; the report is in ``reports`` also after an interruption."""
    from feinsum.cli.tune.view import JsonEvents, ProgressBar
    from feinsum.db import opened_store
    from feinsum.tuning import tune_einsum
    from feinsum.tuning.progress import combine_callbacks

    view = JsonEvents() if as_json else ProgressBar()
    with opened_store(database, has_shipped=True, may_create=True) as store:
        with view, _open_live_page(is_live) as page:
            report = tune_einsum(
                target,
                database=store,
                on_start=combine_callbacks(view.begin, page.begin if page else None),
                on_progress=combine_callbacks(view.show, page.show if page else None),
                on_final=combine_callbacks(view.final, page.final if page else None),
                on_stop=reports.append,
                **options,
            )
        reports.append(report)
        view.finish(report, compute_fractions(report.records, store))


@contextmanager
def _report_in(folder: Path | None, reports: Sequence[TuningReport]) -> Iterator[None]:
    """Write the report after the body, however it ended."""
    from feinsum.tuning import write_report

    try:
        yield
    finally:
        if folder is not None and reports:
            write_report(reports[0], folder)


def _open_live_page(is_live: bool) -> AbstractContextManager[LivePage | None]:
    from feinsum.tuning.report import LivePage

    if not is_live:
        return nullcontext()
    page = LivePage()
    say(f"live: {page.url}")
    return page


def _make_documents(
    records: Sequence[TuningRecord], database: str | None
) -> list[dict[str, Any]]:
    from feinsum.db import opened_store

    if not records:
        return []
    with opened_store(database, has_shipped=True) as store:
        fractions = compute_fractions(records, store)
    return [record_document(record, fractions) for record in records]


def _format_interruption(records: Sequence[TuningRecord]) -> str:
    if not records:
        return "interrupted; nothing was recorded"
    ids = ", ".join(record.id[:ID_LENGTH] for record in records)
    return f"interrupted; recorded: {ids}"


def make_unrecorded_error(trials: Sequence[Trial]) -> MeasurementError:
    """Explain why a tuning has no record: no trial passed, or none when timed again."""
    n_passed = sum(trial.is_ok for trial in trials)
    if n_passed:
        return MeasurementError(
            f"nothing was recorded: {n_passed} of {format_count(len(trials), 'trial')} "
            "passed, but none when timed again; see the warnings"
        )
    first = next((t.message for t in trials if t.message), "no recipe was tried")
    return MeasurementError(
        f"nothing was recorded: none of {format_count(len(trials), 'trial')} passed; "
        f"the first failed with: {first}"
    )
