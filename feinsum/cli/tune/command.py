"""``feinsum tune``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from feinsum.cli.shared.failure import interrupted_by_sigterm
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
from feinsum.cli.shared.sparse import read_sparse_einsum
from feinsum.cli.shared.user_file import is_file, read_translation_unit
from feinsum.cli.tune.one import interrupts_told, tune_one
from feinsum.cli.tune.options import (
    Budget,
    Effort,
    Efforts,
    Fresh,
    FromMisses,
    Live,
    OptionalTarget,
    PlanFile,
    Report,
    Scheduler,
    Strategy,
    Suites,
    TrialLimit,
    Trials,
    Workloads,
)
from feinsum.cli.tune.several import tune_leaves, tune_misses, tune_suites

if TYPE_CHECKING:
    import loopy as lp

    from feinsum.ir import BatchedEinsum
    from feinsum.tuning import TuningReport

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
"""

OF_SUBSCRIPTS = ("sizes", "operands", "rows", "dtype", "sparse")
"""Options that describe the arrays of subscripts."""


def tune(
    context: typer.Context,
    target: OptionalTarget = None,
    sizes: Sizes = None,
    operands: Operands = None,
    rows: Rows = None,
    dtype: Dtype = DEFAULT_DTYPE,
    size: SizeValues = None,
    sparse: Sparse = None,
    suite: Suites = None,
    plan: PlanFile = None,
    from_misses: FromMisses = None,
    workloads: Workloads = None,
    effort: Effort = "patient",
    trials: Trials = None,
    budget: Budget = None,
    strategy: Strategy = None,
    trial_limit: TrialLimit = 60.0,
    fresh: Fresh = False,
    scheduler: Scheduler = None,
    report: Report = None,
    live: Live = False,
    device: Device = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Find and record the fastest recipe of an einsum.

    Every recipe runs in a separate process and is compared with numpy before it
    is timed. The best are recorded, even after Ctrl-C or SIGTERM. Trials are
    stored as they end, so an interrupted tuning resumes where it stopped. --json
    prints one line per trial.

    What to tune: an einsum (--sizes, --operands, --rows, --dtype, --sparse), a
    kernel in a file, or several workloads (--suite, --plan, --from-misses).

    How long to search: --effort, or --trials, --budget and --strategy.
    """
    options = {
        **_limits(effort, trials, budget, strategy),
        "sizes": read_values(size or (), "--size"),
        "device": device,
        "trial_limit_s": trial_limit,
        "resume": not fresh,
        "scheduler": scheduler,
    }
    if report is not None:
        _prepare_report(report)
    if several := _several(plan, suite, from_misses):
        option, tune_each = several
        _check_alone(context, target, report, as_json or live, option)
        with interrupted_by_sigterm():
            tune_each(workloads, database, options)
        return
    if target is None:
        raise typer.BadParameter(
            "give an einsum, a file, --suite, --plan or --from-misses"
        )
    if is_file(target):
        _refuse_options_of_subscripts(context, target)
    reports: list[TuningReport] = []
    with interrupted_by_sigterm(), interrupts_told(reports, database, as_json):
        workload, profile = _read(target, sparse, sizes, operands, rows, dtype)
        options["sizes"] = {**profile, **options["sizes"]}
        tune_one(
            workload,
            database,
            options,
            reports,
            as_json=as_json,
            is_live=live,
            folder=report,
        )


def _several(
    plan: Path | None, suites: Sequence[str] | None, misses: str | None
) -> tuple[str, Callable[..., None]] | None:
    """The option that selects several workloads, and the function that tunes them."""
    sources: dict[str, tuple[Callable[..., None], Any]] = {
        "--plan": (tune_leaves, plan),
        "--suite": (tune_suites, suites),
        "--from-misses": (tune_misses, misses),
    }
    given = {
        option: partial(tune_each, source)
        for option, (tune_each, source) in sources.items()
        if source
    }
    if len(given) > 1:
        raise typer.BadParameter(f"give {' or '.join(given)}")
    return next(iter(given.items()), None)


def _read(
    target: str,
    sparse: Path | None,
    sizes: list[str] | None,
    operands: str | None,
    rows: str | None,
    dtype: str,
) -> tuple[BatchedEinsum | lp.TranslationUnit, dict[str, int]]:
    """The subject of a target: the kernel of a file, or an einsum with its profile."""
    if is_file(target):
        return read_translation_unit(target), {}
    if sparse is None:
        return read_einsum(target, sizes, operands, rows, dtype), {}
    return read_sparse_einsum(target, sparse, sizes, operands, rows, dtype)


def _limits(
    effort: Efforts, n_trials: int | None, budget_s: float | None, strategy: str | None
) -> dict[str, Any]:
    """How far the tuning goes: as is said, and else as the effort says."""
    from feinsum.tuning import LIMITS

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
    is_shown_otherwise: bool,
    option: str,
) -> None:
    """Refuse what has no meaning where an option says what is tuned."""
    if target is not None or report is not None or is_shown_otherwise:
        raise typer.BadParameter(
            f"{option} selects what is tuned; omit the einsum, "
            "--report, --live and --json",
            param_hint=option,
        )
    _refuse_options_of_subscripts(context, option)


def _prepare_report(folder: Path) -> None:
    """Refuse a report that could not be written before work is done for it."""
    from feinsum.drawing import check_plots

    check_plots("a report")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write a report to {folder}: {error.strerror}"
        ) from None
    if not os.access(folder, os.W_OK):
        raise typer.BadParameter(
            f"cannot write a report to {folder}: it is not writable"
        )


def _refuse_options_of_subscripts(context: typer.Context, target: str) -> None:
    """A file says itself what these options say of subscripts."""
    given = [f"--{name}" for name in OF_SUBSCRIPTS if _is_given(context, name)]
    if given:
        raise typer.BadParameter(
            f"{', '.join(given)} would have no effect on a file; omit "
            f"{'it' if len(given) == 1 else 'them'}",
            param_hint=target,
        )


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
