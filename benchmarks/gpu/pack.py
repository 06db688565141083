"""Build a folder that benchmarks feinsum on a machine with a GPU and no network.

``python -m benchmarks.gpu.pack build FOLDER`` collects wheels, compiles the kernels of
a contest and of trials, and copies ``gpu.sh`` and the scripts it runs::

    gpu.sh      runs everything, in parts
    benchmarks/ the scripts
    wheels/     feinsum and its dependencies, without CuPy, JAX and torch
    contest/    kernels of the entries of both suites, as functions, for all rivals
    trials/     recipes of workloads without a packaged fact for that GPU
    results/    is created there, and copied back

``record FOLDER`` imports the results of the trials.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.progress import Progress

from benchmarks.experiments.entries import list_both_suites
from benchmarks.gpu.bundle.facts import import_results
from benchmarks.gpu.bundle.folder import Exported, export_bundle, read_seconds
from benchmarks.gpu.make_contest import read_packaged_seconds, write_contest
from feinsum.cli.app import ReportingGroup
from feinsum.cli.shared.options import Database
from feinsum.cli.tune.sources import Suites, read_suites
from feinsum.db import opened_store
from feinsum.errors import MeasurementError
from feinsum.records import TransformSpec
from feinsum.tuning import make_problem
from feinsum.words import format_count

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = "benchmarks/gpu", "benchmarks/experiments"
"""Folders to copy."""
MOST_BYTES = 60_000_000
BASELINE = "x86-64-v2"
"""Target of the C compiler on x86-64."""
RESULTS = Path("results", "trials.jsonl")
"""Results of the trials, within the pack."""
FAILURES = "failures.txt"

SecondsByKey: TypeAlias = Mapping[str, Mapping[TransformSpec, float]]
"""Seconds of recipes, by workload key."""

Folder: TypeAlias = Annotated[Path, typer.Argument(help="The folder of the pack.")]

app = typer.Typer(
    cls=ReportingGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Build packs for machines with a GPU, and import their results.",
)


@app.command("build")
def build_pack(
    folder: Folder,
    python: Annotated[
        str,
        typer.Option(help="Interpreter of the version of the machine with the GPU."),
    ] = sys.executable,
    architecture: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="GPU to predict and compile for, such as sm_80; on others, the "
            "sources are compiled.",
        ),
    ] = "sm_90",
    only: Annotated[
        str, typer.Option(metavar="REGEX", help="Entries of the contest.")
    ] = "",
    suite: Suites = None,
    trials: Annotated[
        int, typer.Option(metavar="N", min=2, help="Recipes of a workload to try.")
    ] = 4,
    variations: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Variations of each recipe of the contest."
        ),
    ] = 0,
    after: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="A pack with results: the contest has its fastest recipes; its "
            "workloads are tried again, with neighbours of the best.",
        ),
    ] = None,
    wheels: Annotated[bool, typer.Option(help="Collect wheels.")] = True,
) -> None:
    """Build a pack in a new folder, and FOLDER.tar next to it."""
    if folder.exists() and any(folder.iterdir()):
        raise MeasurementError(f"{folder} is not empty; give a new folder")
    seconds_by_key = (
        {} if after is None else read_seconds(after / "trials", after / RESULTS)
    )
    entries = list_both_suites(only, max_gflop=1e6)
    problems = _list_problems(suite or ["dgfem", "tccg"], architecture, seconds_by_key)
    if not entries or not problems:
        raise MeasurementError(
            f"the pack would have {len(entries)} entries and {len(problems)} workloads "
            "to try; expected some of both"
        )
    folder.mkdir(parents=True, exist_ok=True)
    with (
        _collect_wheels(folder / "wheels", python) if wheels else nullcontext(),
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        task = progress.add_task("compile", total=len(entries) + len(problems))
        exported = {
            "contest": write_contest(
                folder / "contest", architecture, entries, seconds_by_key,
                lambda _: progress.advance(task), variations,
            ),
            "trials": export_bundle(
                problems, folder / "trials", architecture,
                n_candidates=trials, tried=seconds_by_key,
                on_workload=lambda _: progress.advance(task),
            ),
        }  # fmt: skip
    _copy_scripts(folder)
    _report_contents(folder, exported)


@contextmanager
def _collect_wheels(folder: Path, python: str) -> Iterator[None]:
    """Collect wheels in the background; C code is compiled for any processor.

    Raises:
        MeasurementError: if pip fails.
    """
    flags = f"-march={BASELINE}" if platform.machine() == "x86_64" else ""
    command = [
        python, "-m", "pip", "wheel", "--quiet", "--no-cache-dir", "--wheel-dir",
        str(folder), "--constraint", str(ROOT / "constraints.txt"), f"{ROOT}[cli]",
    ]  # fmt: skip
    with subprocess.Popen(command, env={**os.environ, "CFLAGS": flags}) as pip:
        try:
            yield
        except BaseException:
            pip.kill()
            raise
        if pip.wait():
            raise MeasurementError(
                f"pip collects no wheels: exit code {pip.returncode}"
            )


def _list_problems(
    suites: list[str], architecture: str, seconds_by_key: SecondsByKey
) -> dict[str, Any]:
    """Return workloads without a packaged fact, or those that were tried before."""
    problems = {e.name: make_problem(e.einsum, e.sizes) for e in read_suites(suites)}
    packaged = read_packaged_seconds(architecture)
    return {
        name: problem
        for name, problem in problems.items()
        if (key := str(problem.form.key)) in seconds_by_key
        or (not seconds_by_key and key not in packaged)
    }


def _copy_scripts(folder: Path) -> None:
    for name in SCRIPTS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "benchmarks/gpu.sh", folder)


def _report_contents(folder: Path, exported: Mapping[str, Exported]) -> None:
    """Print the contents of the pack, and the kernels that it lacks.

    Raises:
        MeasurementError: if the pack is too large.
    """
    failures = [
        f"{part}: {name}: {spec}: {why}"
        for part, summary in exported.items()
        for name, recipes in summary.left_out.items()
        for spec, why in recipes.items()
    ]
    (folder / FAILURES).write_text("".join(f"{line}\n" for line in failures))
    for line in failures:
        typer.echo(line)
    for part, summary in exported.items():
        typer.echo(
            f"{part}: {summary.n_candidates} kernels of "
            f"{format_count(summary.n_workloads, 'workload')}, "
            f"{summary.n_bytes / 1e6:.1f} MB"
        )
    archive = shutil.make_archive(str(folder), "tar", folder.parent, folder.name)
    n_bytes = Path(archive).stat().st_size
    typer.echo(
        f"{format_count(len(failures), 'recipe')} left out, see {folder / FAILURES}\n"
        f"{n_bytes / 1e6:.1f} MB in {archive}; there: tar xf {Path(archive).name} && "
        f"{folder.name}/gpu.sh"
    )
    if n_bytes > MOST_BYTES:
        raise MeasurementError(f"the pack takes more than {MOST_BYTES / 1e6:g} MB")


@app.command("record")
def record_trials(folder: Folder, database: Database = None) -> None:
    """Record the results of the trials, with the identity of the GPU."""
    with opened_store(database, may_create=True) as store:
        imported = import_results(folder / "trials", folder / RESULTS, store)
    states = ", ".join(f"{n} {state}" for state, n in sorted(imported.states.items()))
    typer.echo(f"candidates: {states or 'none'}")
    devices = sorted({str(fact.environment.device) for fact in imported.facts})
    typer.echo(
        f"recorded {format_count(len(imported.facts), 'fact')} for "
        f"{', '.join(devices) or '-'}"
    )


if __name__ == "__main__":
    app(prog_name="python -m benchmarks.gpu.pack")
