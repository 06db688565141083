"""Tuning several workloads, one after the other; a failure ends only its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from constantdict import constantdict

from feinsum.cli.shared.failure import FAILED, say
from feinsum.cli.tune.one import interrupts_told, tune_one
from feinsum.cli.tune.suites import read_suites
from feinsum.errors import FeinsumError
from feinsum.words import counted

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum
    from feinsum.tuning import TuningReport


class _Wanted(NamedTuple):
    """A workload that is to be tuned, and what is said before.

    Attributes:
        sizes: of it, which options override.
    """

    einsum: BatchedEinsum
    why: str
    sizes: Mapping[str, int] = constantdict()


def tune_leaves(
    path: Path, n_most: int | None, database: str | None, options: dict[str, Any]
) -> None:
    """Tune the different leaves of a plan."""
    from feinsum.distributed import Plan
    from feinsum.ir import from_text

    try:
        made = Plan.from_json(path.read_bytes())
    except OSError as error:
        raise typer.BadParameter(
            f"cannot read {path}: {error.strerror}", param_hint="--plan"
        ) from None
    leaves = {leaf.key: leaf.text for leaf in made.leaves}
    wanted = (
        _Wanted(from_text(text), "a leaf of the plan") for text in leaves.values()
    )
    _tune_each(wanted, n_most, "leaves of the plan", database, options)


def tune_suites(
    names: Sequence[str],
    n_most: int | None,
    database: str | None,
    options: dict[str, Any],
) -> None:
    """Tune the workloads of suites and files."""
    wanted = (
        _Wanted(entry.einsum, entry.name, entry.sizes) for entry in read_suites(names)
    )
    _tune_each(wanted, n_most, "workload", database, options)


def tune_misses(
    source: str, n_most: int | None, database: str | None, options: dict[str, Any]
) -> None:
    """Tune what is in demand.

    Facts are recorded in ``database`` or, without one, where the misses are
    counted, if that is a database.
    """
    from feinsum.cli.tune.misses import wanted_einsums
    from feinsum.db import is_service
    from feinsum.measure import open_device

    if database is None and not is_service(source):
        database = source
    here = open_device(options["device"]).device
    wanted = (
        _Wanted(einsum, f"requested {count} times")
        for count, einsum in wanted_einsums(source, here)
    )
    what = "requested workload"
    _tune_each(wanted, n_most, what, database, options)


def _tune_each(
    wanted: Iterator[_Wanted],
    n_most: int | None,
    what: str,
    database: str | None,
    options: dict[str, Any],
) -> None:
    """Tune a limited number of workloads, and fail if one of them failed."""
    outcomes = [
        _is_tuned(
            one.einsum,
            one.why,
            database,
            {**options, "sizes": {**one.sizes, **options["sizes"]}},
        )
        for one in islice(wanted, n_most)
    ]
    n_good = sum(outcomes)
    typer.echo(f"tuned {n_good} of {counted(len(outcomes), what)}")
    if n_good < len(outcomes):
        raise typer.Exit(FAILED)


def _is_tuned(
    einsum: BatchedEinsum, why: str, database: str | None, options: dict[str, Any]
) -> bool:
    """Tune one of several; whether that succeeded, and else say why."""
    typer.echo(f"{why}: {einsum}")
    reports: list[TuningReport] = []
    try:
        with interrupts_told(reports, database, as_json=False):
            tune_one(einsum, database, options, reports)
    except FeinsumError as error:
        say(f"[{error.code}] {error}")
        return False
    return True
