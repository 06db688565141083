"""How ``feinsum model`` shows a fit and a model: as tables, as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from feinsum.cli.shared.output import print_table, to_digits
from feinsum.words import counted

if TYPE_CHECKING:
    from feinsum.predict.correction import Correction, Feature, Ranking, Samples

FOOTNOTE = """\
Times relative to the best known recipe, on held-out workloads.
"""


@dataclass(frozen=True)
class Fit:
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
        """Print the data left out, then a table of 80 columns at most."""
        for reason, n in self.samples.left_out.items():
            typer.echo(f"skipped: {n} ({reason})")
        typer.echo(
            f"{counted(self.samples.n_trials, 'trial')}, "
            f"{len(self.samples.groups)} groups of "
            f"{len(self.samples.notations)} notations, "
            f"{counted(self.samples.n_devices, 'device')}\n"
        )
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
class Shown:
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
        names = [one.name for one in self.correction.context]
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
            "recipe": [asdict(one) for one in model.recipe],
            "context": [asdict(one) for one in model.context],
            "coefficients": [list(row) for row in model.coefficients],
        }
