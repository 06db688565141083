"""``feinsum tune``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from feinsum.cli.shared.failure import FAILED, INTERRUPTED, interrupted_by_sigterm, say
from feinsum.cli.shared.fractions import fractions_of
from feinsum.cli.shared.notation import DEFAULT_DTYPE, read_einsum, read_values
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    Device,
    Dtype,
    Operands,
    Rows,
    Sizes,
    SizeValues,
    Sparse,
)
from feinsum.cli.shared.output import ID_LENGTH, print_json, record_document
from feinsum.cli.shared.sparse import read_sparse_einsum
from feinsum.cli.shared.user_file import is_file, read_translation_unit
from feinsum.cli.tune.bundles import ARCHITECTURE, export_trials, import_trials
from feinsum.cli.tune.suites import read_suites
from feinsum.errors import FeinsumError, MeasurementError

if TYPE_CHECKING:
    import loopy as lp

    from feinsum.ir import BatchedEinsum
    from feinsum.records import Trial, TuningRecord
    from feinsum.tune import TuningReport

__all__ = ["EXAMPLES", "tune"]

EXAMPLES = """\b
Examples:
  feinsum tune "xre,rij,ej->xei" --sizes x=3,r=3,e=Nel,i=20,j=20
  feinsum tune "ij,j->i" --sizes i=n,j=4 --size n=1000000 --budget 60
  feinsum tune "ij,jk->ik" --sizes i=300,j=300,k=300 --effort measure
  feinsum tune wave.py:gradient --trials 50 --json > trials.jsonl
  feinsum tune "ij,j->i" --sizes i=n,j=4 --fresh --report report
  feinsum tune "ijk,ja,ka->ia" --sparse T.tns --sizes a=16
  feinsum tune --from-misses https://facts.example --workloads 5
  feinsum tune --suite mine.csv --suite tccg --budget 60
  feinsum tune --plan plan.json --budget 60
  feinsum tune --export trials --suite dgfem --suite tccg --trials 20
  feinsum tune --import trials
"""

OF_SUBSCRIPTS = ("sizes", "operands", "rows", "dtype", "sparse")
"""Options that describe the arrays of subscripts."""

Trials: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Maximum number of recipes to try, including known trials. Default: 20, "
        "or all if exhaustive.",
    ),
]
Budget: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", min=0, help="Start no trial after this time."),
]
Strategy: TypeAlias = Annotated[
    Literal["tpe", "random", "exhaustive"] | None,
    typer.Option(
        help="Search strategy: learning, random, or all in order. Default: tpe."
    ),
]
_Effort: TypeAlias = Literal["measure", "patient", "exhaustive"]
Effort: TypeAlias = Annotated[
    _Effort,
    typer.Option(
        help="Recipes to try: the few predicted to be the fastest, a full search, "
        "or all. --trials, --budget and --strategy override this."
    ),
]
TrialLimit: TypeAlias = Annotated[
    float,
    typer.Option(metavar="SECONDS", min=1, help="Stop a trial after this time."),
]

Fresh: TypeAlias = Annotated[
    bool,
    typer.Option("--fresh", help="Repeat trials that are in the database."),
]
FromMisses: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL|DATABASE",
        help="Tune workloads that a service had no answer for on this device, the "
        "most wanted first.",
    ),
]
Workloads: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of these to tune. Default: all."),
]
OptionalTarget: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="SUBSCRIPTS|FILE.py[:NAME]",
        help="An einsum, or a Python file with a function (by default build) that "
        "returns a Loopy translation unit.",
        show_default=False,
    ),
]
PlanFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--plan", metavar="FILE", help="Tune what the processes of a plan compute."
    ),
]
ExportFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--export",
        metavar="FOLDER",
        help="Write the trials there, for a GPU on a machine without feinsum.",
    ),
]
ImportFolder: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--import", metavar="FOLDER", help="Record what was found there on a GPU."
    ),
]
Suites: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Tune, or export, the workloads of a suite (tccg, dgfem, everyday) or of "
        "a file: CSV, JSON, or lines of an einsum and its sizes. May be repeated.",
    ),
]
Architecture: TypeAlias = Annotated[
    str, typer.Option(help="The GPU that is compiled for by --export, such as sm_80.")
]
After: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Export the next round: neighbours of the best that were found there.",
    ),
]
Scheduler: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run the trials on the workers of this Dask scheduler, such as "
        "tcp://host:8786.",
    ),
]
Report: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Write report.html and report.png to this folder."
    ),
]


def tune(
    context: typer.Context,
    target: OptionalTarget = None,
    sizes: Sizes = None,
    operands: Operands = None,
    rows: Rows = None,
    dtype: Dtype = DEFAULT_DTYPE,
    size: SizeValues = None,
    sparse: Sparse = None,
    trials: Trials = None,
    budget: Budget = None,
    effort: Effort = "patient",
    strategy: Strategy = None,
    trial_limit: TrialLimit = 60.0,
    fresh: Fresh = False,
    scheduler: Scheduler = None,
    report: Report = None,
    from_misses: FromMisses = None,
    workloads: Workloads = None,
    plan: PlanFile = None,
    export: ExportFolder = None,
    suite: Suites = None,
    architecture: Architecture = ARCHITECTURE,
    after: After = None,
    import_: ImportFolder = None,
    device: Device = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Search for the fastest recipe of an einsum and record it.

    Every recipe runs in a separate process and is compared with numpy before it
    is timed. The best are recorded, even after Ctrl-C or SIGTERM. Trials are
    stored as they end, so an interrupted tuning resumes where it stopped. --json
    prints one line per trial.
    """
    options = {
        **_limits(effort, trials, budget, strategy),
        "sizes": read_values(size or (), "--size"),
        "device": device,
        "trial_limit_s": trial_limit,
        "resume": not fresh,
        "scheduler": scheduler,
    }
    if import_ is not None:
        _check_alone(context, target, report, as_json, "--import")
        import_trials(import_, database)
        return
    if export is not None:
        subject = None
        if target is not None:
            subject = read_einsum(target, sizes, operands, rows, dtype)
        export_trials(
            export, subject, options["sizes"], suite or (), architecture, trials, after
        )
        return
    if after is not None:
        raise typer.BadParameter("--after goes with --export")
    if report is not None:
        _prepare_report(report)
    if plan is not None:
        _check_alone(context, target, report, as_json, "--plan")
        if from_misses is not None:
            raise typer.BadParameter("give --plan or --from-misses")
        with interrupted_by_sigterm():
            _tune_leaves(plan, workloads, database, options)
        return
    if suite:
        _check_alone(context, target, report, as_json, "--suite")
        if from_misses is not None:
            raise typer.BadParameter("give --suite or --from-misses")
        with interrupted_by_sigterm():
            _tune_suites(suite, workloads, database, options)
        return
    if from_misses is not None:
        _check_alone(context, target, report, as_json, "--from-misses")
        with interrupted_by_sigterm():
            _tune_misses(from_misses, workloads, database, options)
        return
    if target is None:
        raise typer.BadParameter(
            "give an einsum, a file, --suite, --plan or --from-misses"
        )
    if is_file(target):
        _refuse_options_of_subscripts(context, target)
    reports: list[TuningReport] = []
    with interrupted_by_sigterm(), _interrupts_told(reports, database, as_json):
        workload: BatchedEinsum | lp.TranslationUnit
        if is_file(target):
            workload = read_translation_unit(target)
        elif sparse is None:
            workload = read_einsum(target, sizes, operands, rows, dtype)
        elif rows is not None:
            raise typer.BadParameter(
                "a sparse operand is in one row", param_hint="--rows"
            )
        else:
            workload, profile = read_sparse_einsum(
                target, sparse, sizes, operands, dtype
            )
            options["sizes"] = {**profile, **options["sizes"]}
        _tune(workload, database, options, as_json, report, reports)


def _limits(
    effort: _Effort, n_trials: int | None, budget_s: float | None, strategy: str | None
) -> dict[str, Any]:
    """How far the tuning goes: as is said, and else as the effort says."""
    from feinsum.tune import LIMITS

    usual = LIMITS[effort]
    chosen = strategy or usual.strategy
    if n_trials is None and chosen == usual.strategy:
        n_trials = usual.n_trials
    budget_s = usual.budget_s if budget_s is None else budget_s
    return {"n_trials": n_trials, "budget_s": budget_s, "strategy": chosen}


def _check_alone(
    context: typer.Context,
    target: str | None,
    report: Path | None,
    as_json: bool,
    option: str,
) -> None:
    """Refuse what has no meaning where an option says what is tuned."""
    if target is not None or report is not None or as_json:
        raise typer.BadParameter(
            f"{option} selects what is tuned; omit the einsum, --report and --json",
            param_hint=option,
        )
    _refuse_options_of_subscripts(context, option)


def _tune_leaves(
    path: Path, n_most: int | None, database: str | None, options: dict[str, Any]
) -> None:
    """Tune the different leaves of a plan; a failure ends only its own."""
    from feinsum.ir import from_text
    from feinsum.plans import Plan

    try:
        made = Plan.from_json(path.read_bytes())
    except OSError as error:
        raise typer.BadParameter(
            f"cannot read {path}: {error.strerror}", param_hint="--plan"
        ) from None
    leaves = {leaf.key: leaf.text for leaf in made.leaves}
    texts = list(leaves.values())[:n_most]
    outcomes = [
        _is_tuned(from_text(text), "a leaf of the plan", database, options)
        for text in texts
    ]
    n_good = sum(outcomes)
    typer.echo(f"tuned {n_good} of {len(outcomes)} leaves of the plan")
    if n_good < len(outcomes):
        raise typer.Exit(FAILED)


def _tune_suites(
    names: Sequence[str],
    n_most: int | None,
    database: str | None,
    options: dict[str, Any],
) -> None:
    """Tune the workloads of suites and files; a failure ends only its own."""
    outcomes = []
    for entry in read_suites(names)[:n_most]:
        own = {**options, "sizes": {**entry.sizes, **options["sizes"]}}
        outcomes.append(_is_tuned(entry.einsum, entry.name, database, own))
    n_good = sum(outcomes)
    typer.echo(f"tuned {n_good} of {len(outcomes)} workloads")
    if n_good < len(outcomes):
        raise typer.Exit(FAILED)


def _tune_misses(
    source: str, n_most: int | None, database: str | None, options: dict[str, Any]
) -> None:
    """Tune what is in demand, one after the other; a failure ends only its own.

    Facts are recorded in ``database`` or, without one, where the misses are
    counted, if that is a database.
    """
    from feinsum.cli.tune.misses import wanted_einsums
    from feinsum.db import is_service
    from feinsum.measure import open_device

    if database is None and not is_service(source):
        database = source
    here = open_device(options["device"]).device
    outcomes = [
        _is_tuned(einsum, f"asked for {count} times", database, options)
        for count, einsum in islice(wanted_einsums(source, here), n_most)
    ]
    n_good = sum(outcomes)
    typer.echo(f"tuned {n_good} of {len(outcomes)} workloads that are in demand here")
    if n_good < len(outcomes):
        raise typer.Exit(FAILED)


def _is_tuned(
    einsum: BatchedEinsum, why: str, database: str | None, options: dict[str, Any]
) -> bool:
    """Tune one of several; whether that succeeded, and else say why."""
    typer.echo(f"{why}: {einsum}")
    reports: list[TuningReport] = []
    try:
        with _interrupts_told(reports, database, as_json=False):
            _tune(einsum, database, options, False, None, reports)
    except FeinsumError as error:
        say(f"[{error.code}] {error}")
        return False
    return True


@contextmanager
def _interrupts_told(
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


def _prepare_report(folder: Path) -> None:
    """Refuse a report that could not be written before work is done for it."""
    from feinsum.drawing import check_plots

    check_plots("a report")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(
            f"no report can be written to {folder}: {error.strerror}"
        ) from None
    if not os.access(folder, os.W_OK):
        raise typer.BadParameter(f"the folder {folder} of the report is not writable")


def _refuse_options_of_subscripts(context: typer.Context, target: str) -> None:
    """A file says itself what these options say of subscripts."""
    given = [f"--{name}" for name in OF_SUBSCRIPTS if _is_given(context, name)]
    if given:
        raise typer.BadParameter(
            f"a file is given, so {', '.join(given)} would have no effect; leave "
            f"{'it' if len(given) == 1 else 'them'} out",
            param_hint=target,
        )


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _tune(
    target: BatchedEinsum | lp.TranslationUnit,
    database: str | None,
    options: dict[str, Any],
    as_json: bool,
    folder: Path | None,
    reports: list[TuningReport],
) -> None:
    """Tune, show it, and write the report; also of an early end.

    Args:
        reports: gets the one report, before anything else is done with it.
    """
    from feinsum.cli.tune.view import JsonLines, ProgressBar
    from feinsum.db import opened_store
    from feinsum.tune import autotune, write_report

    view = JsonLines() if as_json else ProgressBar()
    try:
        with opened_store(database, has_shipped=True) as store:
            with view:
                report = autotune(
                    target,
                    database=store,
                    on_start=view.begin,
                    on_progress=view.show,
                    on_final=view.final,
                    on_stop=reports.append,
                    **options,
                )
            reports.append(report)
            view.finish(report, fractions_of(report.records, store))
    finally:
        if folder is not None and reports:
            write_report(reports[0], folder)
    if not report.records:
        raise _nothing_recorded(report.trials)


def _interruption(records: Sequence[TuningRecord]) -> str:
    if not records:
        return "interrupted; nothing was recorded"
    ids = ", ".join(record.id[:ID_LENGTH] for record in records)
    return f"interrupted; recorded were {len(records)} facts: {ids}"


def _nothing_recorded(trials: Sequence[Trial]) -> MeasurementError:
    first = next((t.message for t in trials if t.message), "no recipe was tried")
    return MeasurementError(
        f"nothing was recorded: none of {len(trials)} trials passed; "
        f"the first reported: {first}"
    )
