"""The command-line interface: options, table, JSON and plot."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_letters
from typing import Annotated, Any, TypeAlias

import typer

from benchmarks.compare.contest import OURS, Outcome, Problem, compare_libraries
from benchmarks.compare.rivals import RIVALS
from feinsum.cli.shared.failure import report_failure, say
from feinsum.cli.shared.notation import DEFAULT_DTYPE, read_einsum, read_values
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    Device,
    Dtype,
    Effort,
    Policy,
    Sizes,
    SizeValues,
    Subscripts,
)
from feinsum.cli.shared.output import print_json, print_table, to_digits
from feinsum.drawing import check_plots
from feinsum.drawing.plots import build_figure
from feinsum.errors import FeinsumError
from feinsum.ir import BatchedEinsum, list_size_names
from feinsum.measure import make_reference
from feinsum.tuning.problem import choose_default_sizes

EXAMPLES = """\b
Examples:
  python -m benchmarks.compare "ij,jk->ik" --sizes i=300,j=300,k=300
  python -m benchmarks.compare "ij,j->i" --sizes i=n,j=4 --plot matvec.png
"""

REMEDY = "repeat on an idle machine ('feinsum doctor' shows its load)"

SUFFIXES = (".pdf", ".png", ".svg")

Plot: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--plot",
        metavar="FILE",
        help="Draw the times to FILE.png, .svg or .pdf, overwriting it; needs "
        "matplotlib.",
    ),
]


def main(arguments: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if arguments is None else arguments)
    program = typer.Typer(add_completion=False, rich_markup_mode=None)
    program.command(epilog=EXAMPLES)(compare)
    command = typer.main.get_command(program)
    try:
        command.main(words, "python -m benchmarks.compare", standalone_mode=False)
    except (FeinsumError, typer.TyperException) as error:
        sys.exit(report_failure(error, is_json="--json" in words))


def compare(
    subscripts: Subscripts,
    sizes: Sizes = None,
    dtype: Dtype = DEFAULT_DTYPE,
    size: SizeValues = None,
    device: Device = None,
    database: Database = None,
    policy: Policy = None,
    effort: Effort = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Time an einsum against numpy, torch, JAX and others.

    All installed libraries get the same arrays. Results are checked before timing, and
    runs alternate. Use an idle machine.
    """
    if plot is not None:
        _check_plot(plot)
    einsum = read_einsum(subscripts, sizes, dtype=dtype)
    values = _choose_sizes(einsum, read_values(size or (), "--size"))
    outcomes = compare_libraries(
        _make_problem(einsum, values),
        device=device,
        database=database,
        policy=policy,
        effort=effort,
        rivals=RIVALS,
    )
    if plot is not None:
        _draw(str(einsum), outcomes, plot)
    if as_json:
        print_json(_make_document(einsum, values, outcomes))
    else:
        _print(einsum, values, outcomes)


def _check_plot(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is timed."""
    if path.suffix not in SUFFIXES:
        raise _refuse(f"{str(path)!r} must end in one of {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise _refuse(f"{str(path)!r}: there is no folder {str(path.parent)!r}")
    check_plots("--plot")


def _refuse(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--plot")


def _choose_sizes(einsum: BatchedEinsum, sizes: dict[str, int]) -> dict[str, int]:
    """Return a value for every size parameter."""
    names = sorted(list_size_names(einsum))
    if unknown := sorted(set(sizes) - set(names)):
        raise typer.BadParameter(
            f"there is no size parameter {unknown[0]!r}; expected some of {names}",
            param_hint="--size",
        )
    return choose_default_sizes(einsum, sizes)


def _make_problem(einsum: BatchedEinsum, values: dict[str, int]) -> Problem:
    """Draw operands, and rename the indices to letters that every library accepts."""
    if len(einsum.rows) > 1 or einsum.sparse_position is not None:
        raise typer.BadParameter(
            "expected one row of dense arrays; compare rows one by one",
            param_hint="SUBSCRIPTS",
        )
    n_most, n_indices = len(ascii_letters), len(einsum.indices)
    if n_indices > n_most:
        raise typer.BadParameter(
            f"the einsum has {n_indices} indices; numpy supports at most {n_most}",
            param_hint="SUBSCRIPTS",
        )
    letters = dict(zip(einsum.indices, ascii_letters, strict=False))
    *inputs, output = (
        "".join(letters[i] for i in term) for term in (*einsum.inputs, einsum.output)
    )
    reference = make_reference(einsum)
    arguments = reference.arguments(values)
    return Problem(
        subscripts=f"{','.join(inputs)}->{output}",
        operands=tuple(arguments[operand.name] for operand in einsum.rows[0]),
        expected=reference.results(arguments)[0],
        n_terms=reference.n_terms(values),
    )


def _make_document(
    einsum: BatchedEinsum, values: dict[str, int], outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    return {
        "einsum": str(einsum),
        "sizes": values,
        "contenders": [
            {
                "name": outcome.name,
                "version": outcome.version or None,
                "median_s": outcome.median_s if outcome.samples_s else None,
                "spread_s": outcome.spread_s if outcome.samples_s else None,
                "why_not": outcome.why_not or None,
                "note": outcome.note or None,
            }
            for outcome in outcomes
        ],
    }


def _print(
    einsum: BatchedEinsum, values: dict[str, int], outcomes: Sequence[Outcome]
) -> None:
    typer.echo(f"einsum: {einsum}")
    if values:
        typer.echo(f"sizes: {', '.join(f'{k}={n}' for k, n in values.items())}")
    timed = [outcome for outcome in outcomes if outcome.samples_s]
    ours = next((outcome for outcome in timed if outcome.name == OURS), None)
    print_table(
        ("contender",),
        ("version", "ms", "IQR", *["times ours"] * (ours is not None)),
        [
            (
                outcome.name,
                outcome.version,
                to_digits(outcome.median_s * 1e3),
                to_digits(outcome.spread_s * 1e3, 2),
                *[to_digits(outcome.median_s / ours.median_s, 3) for _ in [0] if ours],
            )
            for outcome in timed
        ],
    )
    for outcome in outcomes:
        if outcome.note:
            typer.echo(f"{outcome.name}: {outcome.note}")
        if outcome.why_not:
            typer.echo(f"{outcome.name}: {outcome.why_not}")
    if noisy := [outcome.name for outcome in timed if outcome.is_noisy]:
        say(f"noisy timings: {', '.join(noisy)}; {REMEDY}")


def _draw(title: str, outcomes: Sequence[Outcome], path: Path) -> None:
    lengths = []
    for outcome in outcomes:
        if outcome.samples_s:
            ends_s = (outcome.median_s, *outcome.quartiles_s)
            middle, low, high = (1e3 * end_s for end_s in ends_s)
            lengths.append(Bar(outcome.name, middle, low, high, outcome.name == OURS))
    try:
        draw_bars(title, "ms", lengths, path)
    except OSError as error:
        raise _refuse(f"{str(path)!r} cannot be written: {error.strerror}") from None


HIGHLIGHT, OTHERS, INK = "#0f8b6d", "#9aa5b1", "#444444"


@dataclass(frozen=True)
class Bar:
    """A bar of the chart.

    Attributes:
        low, high: ends of the error bar.
        is_ours: whether it is highlighted.
    """

    name: str
    value: float
    low: float
    high: float
    is_ours: bool = False


def draw_bars(title: str, unit: str, bars: Sequence[Bar], path: str | Path) -> None:
    """Draw a horizontal bar chart into a file, overwriting it; the first bar is on top.

    Raises:
        FeinsumError: if matplotlib is not installed.
        OSError: if the file cannot be written.
    """
    figure = build_figure(7, 1.2 + 0.4 * len(bars))
    axes = figure.subplots()
    drawn = axes.barh(
        [bar.name for bar in bars],
        [bar.value for bar in bars],
        xerr=[
            [bar.value - bar.low for bar in bars],
            [bar.high - bar.value for bar in bars],
        ],
        color=[HIGHLIGHT if bar.is_ours else OTHERS for bar in bars],
        ecolor=INK,
    )
    axes.bar_label(drawn, [f"{bar.value:.3g}" for bar in bars], padding=4, size=9)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel(unit)
    axes.set_title(title, size=10, parse_math=False, wrap=True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
