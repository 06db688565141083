"""``feinsum plan``."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from feinsum.cli.shared.notation import DEFAULT_DTYPE, read_einsum, read_values
from feinsum.cli.shared.options import AsJson, Dtype, Operands, Sizes, Subscripts
from feinsum.cli.shared.output import print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feinsum.plans import Plan

__all__ = ["EXAMPLES", "plan"]

EXAMPLES = """\b
Examples:
  feinsum plan "ij,jk->ik" --sizes i=4096,j=4096,k=4096 --processes 64
  feinsum plan "ij,jk->ik" --sizes i=n,j=n,k=n --size n=512 --processes 8
"""

PICTURES = (".png", ".svg", ".pdf")

Processes: TypeAlias = Annotated[
    int, typer.Option("--processes", metavar="P", min=1, help="Number of them.")
]

Values: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="NAME=N", help="Value of a size parameter."),
]

Memory: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="BYTES", help="That each process may hold, such as 8GB."
    ),
]

MostWork: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--most-work",
        metavar="RATIO",
        help="Maximum work of a process over the average; 1 is even.",
    ),
]

Compare: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--compare", help="Compare with named schedules and Deinsum's heuristic."
    ),
]

Save: TypeAlias = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Write the plan as a document."),
]


Picture: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--picture", metavar="FILE", help="Draw the blocks of all steps; PNG, SVG, PDF."
    ),
]


def plan(
    subscripts: Subscripts,
    processes: Processes,
    sizes: Sizes = None,
    operands: Operands = None,
    dtype: Dtype = DEFAULT_DTYPE,
    size: Values = None,
    memory: Memory = None,
    most_work: MostWork = None,
    compare: Compare = False,
    save: Save = None,
    picture: Picture = None,
    as_json: AsJson = False,
) -> None:
    """Print which process computes what of an einsum.

    The plan moves the fewest elements between processes.

    Of every group of the contraction path: which axis of the machine cuts which
    index, where operands start, where the result ends, and what is moved.
    """
    from feinsum.plans import named_plans
    from feinsum.plans import plan as plan_of

    einsum = read_einsum(subscripts, sizes, operands, None, dtype)
    values = read_values(size or (), "--size")
    made = plan_of(
        einsum,
        values,
        processes=processes,
        memory=memory,
        most_work=inf if most_work is None else most_work,
    )
    others: dict[str, Plan] = {}
    if compare or as_json:
        others = named_plans(einsum, values, processes=processes, path=made.path)
    if save is not None:
        _write(save, made)
    if picture is not None:
        _draw(picture, made)
    if as_json:
        print_json(_document(made, others))
        return
    typer.echo(str(made))
    if compare:
        typer.echo(_comparison(made, others))


def _write(path: Path, made: Plan) -> None:
    try:
        path.write_text(made.to_json() + "\n")
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write {path}: {error.strerror}", param_hint="--save"
        ) from None


def _draw(path: Path, made: Plan) -> None:
    from feinsum.drawing import draw_blocks
    from feinsum.plans import rows_of
    from feinsum.plans.picture import MOST_DRAWN

    if path.suffix not in PICTURES:
        raise typer.BadParameter(
            f"{path} ends in {path.suffix!r}; expected {', '.join(PICTURES)}",
            param_hint="--picture",
        )
    if made.processes > MOST_DRAWN:
        raise typer.BadParameter(
            f"blocks of {made.processes} processes cannot be told apart; "
            f"{MOST_DRAWN} can",
            param_hint="--picture",
        )
    try:
        draw_blocks(rows_of(made), path)
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write {path}: {error.strerror}", param_hint="--picture"
        ) from None


def _document(made: Plan, others: Mapping[str, Plan]) -> dict[str, Any]:
    import json

    return {
        "plan": json.loads(made.to_json()),
        "id": made.id,
        "counts": made.counts.document(),
        "peak_bytes": made.peak_bytes,
        "leaves": [{"key": leaf.key, "text": leaf.text} for leaf in made.leaves],
        "runners_up": {name: one.counts.document() for name, one in others.items()},
    }


def _comparison(made: Plan, others: Mapping[str, Plan]) -> str:
    lines = [
        f"{'schedule':<12}{'moved':>18}{'ratio':>8}{'bytes held':>18}{'at work':>9}"
    ]
    for name, one in {"planned": made, **others}.items():
        moved = made.counts.moved
        ratio = f"{one.counts.moved / moved:.2f}" if moved else "-"
        lines.append(
            f"{name:<12}{one.counts.moved:>18,}{ratio:>8}{one.peak_bytes:>18,}"
            f"{one.counts.busy:>9}"
        )
    return "\n".join(lines)
