"""The options of ``feinsum tune`` that no other command shares, in groups."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import typer

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
FromMisses: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL|DATABASE",
        help="Tune the workloads that a service could not answer for this device, "
        "most wanted first.",
    ),
]
Workloads: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Maximum number of workloads to tune. Default: all."
    ),
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
    typer.Option("--plan", metavar="FILE", help="Tune the leaves of a plan."),
]
Suites: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME|FILE",
        help="Tune the workloads of a suite (tccg, dgfem, everyday) or of a "
        "file: CSV, JSON, or lines of an einsum and its sizes. May be repeated.",
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
class SourceOptions:
    """Options that select several workloads, and how many of them are tuned."""

    suite: Suites = None
    plan: PlanFile = None
    from_misses: FromMisses = None
    workloads: Workloads = None

    def get_selected(self) -> str | None:
        """Return the option that selects workloads; None if there is none.

        Raises:
            typer.BadParameter: if there are several.
        """
        sources = {
            "--plan": self.plan,
            "--suite": self.suite,
            "--from-misses": self.from_misses,
        }
        options = [option for option, source in sources.items() if source]
        if len(options) > 1:
            raise typer.BadParameter(f"give {' or '.join(options)}")
        return options[0] if options else None


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


@dataclass(frozen=True)
class ViewOptions:
    """Options of what is shown besides the progress."""

    report: Report = None
    live: Live = False
