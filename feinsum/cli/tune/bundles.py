"""Trials that travel: ``--export`` and ``--import``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from feinsum.cli.tune.suites import read_suites
from feinsum.words import counted

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum

__all__ = ["ARCHITECTURE", "export_trials", "import_trials"]

ARCHITECTURE = "sm_90"
"""Default target architecture: the H100."""


def export_trials(
    folder: Path,
    subject: BatchedEinsum | None,
    sizes: dict[str, int],
    suites: Sequence[str],
    architecture: str,
    n_candidates: int | None,
    after: Path | None,
) -> None:
    """Write a bundle, and say what it holds."""
    from rich.console import Console
    from rich.progress import Progress

    from feinsum.tuning import make_problem
    from feinsum.tuning.bundle.folder import export_bundle

    entries = read_suites(suites)
    problems = [make_problem(entry.einsum, entry.sizes) for entry in entries]
    if subject is not None:
        problems.append(make_problem(subject, sizes))
    if not problems:
        raise typer.BadParameter("give an einsum or --suite", param_hint="--export")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("compile", total=len(problems))
        said = export_bundle(
            problems,
            folder,
            architecture,
            n_candidates=n_candidates or 20,
            after=after,
            on_workload=lambda n: progress.update(task, completed=n),
        )
    typer.echo(
        f"{said.n_candidates} kernels of {counted(said.n_workloads, 'workload')}, "
        f"{said.n_bytes / 1e6:.1f} MB, in {folder}"
    )
    for why, n in sorted(said.left_out.items()):
        typer.echo(f"skipped {counted(n, 'recipe')}: {why}")
    typer.echo(
        "copy the folder to the machine with the GPU and run: python3 runner.py "
        "--budget 180"
    )


def import_trials(folder: Path, database: str | None) -> None:
    """Record what a runner found, and say how many."""
    from feinsum.db import opened_store
    from feinsum.tuning.bundle.folder import import_results

    with opened_store(database, may_create=True) as store:
        imported = import_results(folder, store)
    states = ", ".join(f"{n} {state}" for state, n in sorted(imported.states.items()))
    typer.echo(f"candidates: {states or 'none'}")
    devices = sorted({str(fact.environment.device) for fact in imported.facts})
    typer.echo(
        f"recorded {counted(len(imported.facts), 'fact')} for "
        f"{', '.join(devices) or '-'}"
    )
