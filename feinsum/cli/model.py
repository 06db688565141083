"""``feinsum model``: the model that corrects predictions.

Predictions order the recipes of a workload that nobody measured; the model learns from
trials how far the analytic cost is off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import print_document, print_table, to_digits
from feinsum.words import counted

if TYPE_CHECKING:
    from feinsum.predict.correction import Correction, Feature, Ranking, Samples
    from feinsum.records import Store, Trial

app = typer.Typer(
    rich_markup_mode=None,
    help="Fit or show the model that corrects predictions.",
    epilog="\b\nExample:\n  feinsum model show",
)

FIT_EXAMPLES = """\b
Examples:
  feinsum model fit --database trials.sqlite
  feinsum model fit --database trials.sqlite --output model.json
"""


@app.command(epilog=FIT_EXAMPLES)
def fit(
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the model to this file, replacing an existing one. Default: "
            "write nothing.",
        ),
    ] = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Fit a model to all trials of a database, and evaluate it.

    The table shows the slowdown of the recipes ranked first, relative to the best
    known one: without a model, and with one fitted to other workloads. Needs
    scikit-learn.
    """
    from feinsum.db import opened_store
    from feinsum.predict.correction import (
        check_enough,
        fit,
        held_out,
        samples_of,
        write_correction,
    )
    from feinsum.records import utc_now

    with opened_store(database) as store:
        samples = samples_of(_trials(store))
    # before the fit
    check_enough(samples)
    plain, corrected = held_out(samples.groups)
    correction = fit(samples.groups, utc_now())
    if output is not None:
        write_correction(correction, output)
    view = _Fit(samples, plain, corrected, output)
    print_document(view.document(), as_json, view.print)


def _trials(store: Store) -> Iterator[Trial]:
    for workload in store.tried():
        yield from store.trials(workload)


@app.command(epilog="\b\nExample:\n  feinsum model show --json")
def show(as_json: AsJson = False) -> None:
    """Show the model that corrects predictions, and its training data.

    Reads the file named by FEINSUM_MODEL, else the packaged model.
    """
    from feinsum.predict.correction import read_correction, source_in_use

    source = source_in_use()
    view = _Model(source, read_correction(source))
    print_document(view.document(), as_json, view.print)


FOOTNOTE = """\
Times relative to the best known recipe, on held-out workloads.
"""


@dataclass(frozen=True)
class _Fit:
    """The data of a fit, and how well it ranks the data left out.

    Attributes:
        plain, corrected: rankings without and with a model.
        output: where the model was written.
    """

    samples: Samples
    plain: Ranking
    corrected: Ranking
    output: Path | None

    def print(self) -> None:
        """Print the data left out, then a table."""
        for reason, n in self.samples.left_out.items():
            typer.echo(f"skipped: {n} ({reason})")
        typer.echo(
            f"{counted(self.samples.n_trials, 'trial')}, "
            f"{len(self.samples.groups)} groups of "
            f"{len(self.samples.notations)} notations, "
            f"{counted(self.samples.n_devices, 'device')}\n"
        )
        # without a group of several recipes there is nothing to rank
        if self.plain.first:
            print_table(
                ("cost",),
                ("first", "worst", "best of five", "worst"),
                [
                    ("analytic", *_cells(self.plain)),
                    ("corrected", *_cells(self.corrected)),
                ],
            )
            typer.echo(FOOTNOTE)
        else:
            typer.echo("no workload has enough recipes to compare rankings\n")
        typer.echo(
            "nothing was written; give --output"
            if self.output is None
            else f"written to {self.output}"
        )

    def document(self) -> dict[str, Any]:
        """Everything as JSON; null where no workload has recipes enough."""
        return {
            "n_trials": self.samples.n_trials,
            "n_groups": len(self.samples.groups),
            "n_notations": len(self.samples.notations),
            "n_devices": self.samples.n_devices,
            "left_out": dict(self.samples.left_out),
            "n_ranked": len(self.plain.first),
            "analytic": _summary(self.plain),
            "corrected": _summary(self.corrected),
            "output": None if self.output is None else str(self.output),
        }


def _cells(ranking: Ranking) -> list[str]:
    return [to_digits(value, 3) for value in (_summary(ranking) or {}).values()]


def _summary(ranking: Ranking) -> dict[str, float] | None:
    if not ranking.first:
        return None
    return {
        "first_mean": ranking.mean(ranking.first),
        "first_worst": max(ranking.first),
        "best_of_five_mean": ranking.mean(ranking.best),
        "best_of_five_worst": max(ranking.best),
    }


@dataclass(frozen=True)
class _Model:
    """A model and where it is from."""

    source: str
    correction: Correction

    def print(self) -> None:
        """A row for each feature of recipes, then a line about the trials."""
        model = self.correction
        if model.is_analytic:
            typer.echo("no model: predictions are ordered by their analytic costs")
            return
        print_table(
            ("feature", "varies most with"),
            ("scale", "coefficient", "change"),
            [*map(self._row, model.recipe, model.coefficients)],
        )
        typer.echo(
            f"{self.source}\n"
            f"version {model.version}, fitted to {counted(model.n_trials, 'trial')} of "
            f"{counted(model.n_workloads, 'workload')} on "
            f"{counted(model.n_devices, 'device')}, "
            f"{model.fitted_at or 'at an unknown time'}"
        )

    def _row(self, feature: Feature, row: tuple[float, ...]) -> tuple[str, ...]:
        """The coefficient everywhere, and the largest of those beside it."""
        names = [feature.name for feature in self.correction.context]
        largest = max(range(1, len(row)), key=lambda k: abs(row[k]))
        return (
            feature.name,
            names[largest],
            to_digits(feature.scale, 3),
            f"{row[0]:+.3f}",
            f"{row[largest]:+.3f}",
        )

    def document(self) -> dict[str, Any]:
        """Where it is from, and all of it."""
        model = self.correction
        return {
            "source": self.source,
            "version": model.version,
            "id": model.id,
            "n_trials": model.n_trials,
            "n_workloads": model.n_workloads,
            "n_devices": model.n_devices,
            "fitted_at": model.fitted_at,
            "recipe": [asdict(feature) for feature in model.recipe],
            "context": [asdict(feature) for feature in model.context],
            "coefficients": [list(row) for row in model.coefficients],
        }
