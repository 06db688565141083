"""``feinsum model``: fitting the model that corrects predictions, and showing it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import print_json

if TYPE_CHECKING:
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
    from feinsum.cli.model.view import Fit
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
    check_enough(samples)
    plain, corrected = held_out(samples.groups)
    correction = fit(samples.groups, utc_now())
    if output is not None:
        write_correction(correction, output)
    view = Fit(samples, plain, corrected, output)
    if as_json:
        print_json(view.document())
    else:
        view.print()


def _trials(store: Store) -> Iterator[Trial]:
    for workload in store.tried():
        yield from store.trials(workload)


@app.command(epilog="\b\nExample:\n  feinsum model show --json")
def show(as_json: AsJson = False) -> None:
    """Show the model that corrects predictions, and its training data.

    Reads the file named by FEINSUM_MODEL, else the packaged model.
    """
    from feinsum.cli.model.view import Shown
    from feinsum.predict.correction import read_correction, source_in_use

    source = source_in_use()
    view = Shown(source, read_correction(source))
    if as_json:
        print_json(view.document())
    else:
        view.print()
