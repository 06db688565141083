"""``feinsum tune``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from feinsum.cli.shared.failure import interrupt_on_sigterm
from feinsum.cli.shared.help import HelpAll
from feinsum.cli.shared.notation import check_parameters, read_values
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    Device,
    EinsumOptions,
    SizeValues,
    Sparse,
    expand_groups,
)
from feinsum.cli.shared.user_file import is_file, read_translation_unit
from feinsum.cli.tune.run import tune_one
from feinsum.cli.tune.sources import SourceOptions, tune_each

if TYPE_CHECKING:
    import loopy as lp

    from feinsum.ir import BatchedEinsum

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

Trials: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Maximum number of recipes to try, including known trials. Default: 20, "
        "or all if exhaustive.",
    ),
]
Budget: TypeAlias = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        min=0,
        help="Start no new trial of a workload after this time; the finals follow.",
    ),
]
Strategy: TypeAlias = Annotated[
    Literal["tpe", "random", "exhaustive"] | None,
    typer.Option(
        help="Search strategy: learning, random, or all in order. Default: tpe."
    ),
]
Efforts: TypeAlias = Literal["measure", "patient", "exhaustive"]
Effort: TypeAlias = Annotated[
    Efforts,
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
OptionalTarget: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="SUBSCRIPTS|FILE.py[:NAME]",
        help="An einsum, or a Python file with a function (by default build) that "
        "returns a Loopy translation unit.",
        show_default=False,
    ),
]
Live: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Serve the report on a page of this machine while the trials run.",
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


@dataclass(frozen=True)
class SearchOptions:
    """Options of the search: its strategy and limits."""

    effort: Effort = "patient"
    trials: Trials = None
    budget: Budget = None
    strategy: Strategy = None
    trial_limit: TrialLimit = 60.0
    fresh: Fresh = False
    scheduler: Scheduler = None

    def as_arguments(self) -> dict[str, Any]:
        """Return the arguments of a tuning; the effort gives missing limits."""
        from feinsum.tuning import LIMITS

        limits = LIMITS[self.effort]
        strategy = self.strategy or limits.strategy
        n_trials = self.trials
        # the limit belongs to a strategy; exhaustive search ends by itself
        if n_trials is None and strategy == limits.strategy:
            n_trials = limits.n_trials
        return {
            "n_trials": n_trials,
            "budget_s": limits.budget_s if self.budget is None else self.budget,
            "strategy": strategy,
            "trial_limit_s": self.trial_limit,
            "resume": not self.fresh,
            "scheduler": self.scheduler,
        }


OF_SUBSCRIPTS = ("sizes", "operands", "rows", "dtype", "sparse")
"""Options that describe the arrays of subscripts."""


@expand_groups
def tune(
    context: typer.Context,
    target: OptionalTarget = None,
    *,
    arrays: EinsumOptions,
    size: SizeValues = None,
    sparse: Sparse = None,
    sources: SourceOptions,
    search: SearchOptions,
    report: Report = None,
    live: Live = False,
    device: Device = None,
    database: Database = None,
    as_json: AsJson = False,
    help_all: HelpAll = False,
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
    sizes = read_values(size or (), "--size")
    options = search.as_arguments() | {"device": device, "sizes": sizes}
    # hours of tuning must not end at a folder that cannot be written
    if report is not None:
        _prepare_report(report)
    if option := sources.get_selected():
        if target is not None or report is not None or as_json or live:
            raise typer.BadParameter(
                f"{option} selects what is tuned; omit the einsum, "
                "--report, --live and --json",
                param_hint=option,
            )
        _refuse_options_of_subscripts(context, option)
        with interrupt_on_sigterm():
            tune_each(sources, database, options)
        return
    if target is None:
        raise typer.BadParameter(
            "give an einsum, a file, --suite, --plan or --from-misses"
        )
    if is_file(target):
        _refuse_options_of_subscripts(context, target)
    with interrupt_on_sigterm():
        tune_one(
            lambda: _read(target, sparse, arrays, sizes),
            database,
            options,
            as_json=as_json,
            is_live=live,
            folder=report,
        )


def _read(
    target: str, sparse: Path | None, arrays: EinsumOptions, sizes: Mapping[str, int]
) -> tuple[BatchedEinsum | lp.TranslationUnit, dict[str, int]]:
    """Read a kernel from a file, or an einsum and the profile of its sparse operand."""
    if is_file(target):
        return read_translation_unit(target), {}
    einsum, profile = arrays.read_with_profile(target, sparse)
    check_parameters(sizes, [einsum])
    return einsum, profile


def _prepare_report(folder: Path) -> None:
    """Refuse a report that could not be written before work is done for it."""
    from feinsum.drawing import check_plots

    # a missing matplotlib would be noticed at the end
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
    """Refuse options of subscripts for a file, which describes its arrays itself."""
    # check the source, not the values: --dtype has a default
    options = [
        f"--{name}"
        for name in OF_SUBSCRIPTS
        if (source := context.get_parameter_source(name))
        and source.name == "COMMANDLINE"
    ]
    if options:
        raise typer.BadParameter(
            f"{', '.join(options)} would have no effect on a file; omit "
            f"{'it' if len(options) == 1 else 'them'}",
            param_hint=target,
        )
