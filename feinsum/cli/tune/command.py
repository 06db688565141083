"""``feinsum tune``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from feinsum.cli.shared.failure import interrupt_on_sigterm
from feinsum.cli.shared.help import HelpAll
from feinsum.cli.shared.notation import read_values
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
from feinsum.cli.tune.options import (
    OptionalTarget,
    SearchOptions,
    SourceOptions,
    ViewOptions,
)
from feinsum.cli.tune.run import tune_one
from feinsum.cli.tune.sources import tune_each

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
    view: ViewOptions,
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
    if view.report is not None:
        _prepare_report(view.report)
    if option := sources.get_selected():
        if target is not None or view.report is not None or as_json or view.live:
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
            lambda: _read(target, sparse, arrays),
            database,
            options,
            as_json=as_json,
            is_live=view.live,
            folder=view.report,
        )


def _read(
    target: str, sparse: Path | None, arrays: EinsumOptions
) -> tuple[BatchedEinsum | lp.TranslationUnit, dict[str, int]]:
    """Read a kernel from a file, or an einsum and the profile of its sparse operand."""
    if is_file(target):
        return read_translation_unit(target), {}
    return arrays.read_with_profile(target, sparse)


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
