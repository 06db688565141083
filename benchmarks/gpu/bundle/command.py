"""The command: trials go out as a folder of kernels, and come back as facts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.gpu.bundle.facts import import_results
from benchmarks.gpu.bundle.folder import export_bundle
from feinsum.cli.app import ReportingGroup
from feinsum.cli.shared.notation import DEFAULT_DTYPE, read_einsum, read_values
from feinsum.cli.shared.options import Database, Dtype, Sizes, SizeValues
from feinsum.cli.tune.options import Suites
from feinsum.cli.tune.sources import read_suites
from feinsum.db import opened_store
from feinsum.tuning import make_problem
from feinsum.words import format_count

ARCHITECTURE = "sm_90"
"""Default target architecture: the H100."""

Folder: TypeAlias = Annotated[Path, typer.Argument(help="The folder of the trials.")]
Einsum: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="SUBSCRIPTS", help="An einsum, such as 'ij,jk->ik'."),
]
Trials: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=1, help="Recipes of each workload.")
]
Architecture: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="GPU to predict and compile for, such as sm_80; on others the runner "
        "compiles the sources.",
    ),
]
After: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Export the next round: skip what was tried there, neighbours of the best "
        "first.",
    ),
]

app = typer.Typer(
    cls=ReportingGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Trials for a GPU on a machine without feinsum.",
)


@app.command("export")
def export_trials(
    folder: Folder,
    subscripts: Einsum = None,
    sizes: Sizes = None,
    dtype: Dtype = DEFAULT_DTYPE,
    size: SizeValues = None,
    suite: Suites = None,
    trials: Trials = 20,
    architecture: Architecture = ARCHITECTURE,
    after: After = None,
) -> None:
    """Write kernels of an einsum, of --suite, or of both to a folder."""
    entries = read_suites(suite or ())
    problems = [make_problem(entry.einsum, entry.sizes) for entry in entries]
    if subscripts is not None:
        einsum = read_einsum(subscripts, sizes, dtype=dtype)
        problems.append(make_problem(einsum, read_values(size or (), "--size")))
    if not problems:
        raise typer.BadParameter("give an einsum or --suite")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("compile", total=len(problems))
        exported = export_bundle(
            problems,
            folder,
            architecture,
            n_candidates=trials,
            after=after,
            on_workload=lambda n: progress.update(task, completed=n),
        )
    typer.echo(
        f"{exported.n_candidates} kernels of "
        f"{format_count(exported.n_workloads, 'workload')}, "
        f"{exported.n_bytes / 1e6:.1f} MB, in {folder}"
    )
    for why, n in sorted(exported.left_out.items()):
        typer.echo(f"skipped {format_count(n, 'recipe')}: {why}")
    typer.echo(
        "copy the folder to the machine with the GPU and run: python3 runner.py "
        "--budget 180"
    )


@app.command("import")
def import_trials(folder: Folder, database: Database = None) -> None:
    """Record the results of a runner, with the GPU's own identity."""
    with opened_store(database, may_create=True) as store:
        imported = import_results(folder, store)
    states = ", ".join(f"{n} {state}" for state, n in sorted(imported.states.items()))
    typer.echo(f"candidates: {states or 'none'}")
    devices = sorted({str(fact.environment.device) for fact in imported.facts})
    typer.echo(
        f"recorded {format_count(len(imported.facts), 'fact')} for "
        f"{', '.join(devices) or '-'}"
    )
