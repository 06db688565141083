"""``feinsum plan``."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from feinsum.cli.shared.notation import DEFAULT_DTYPE, read_einsum, read_values
from feinsum.cli.shared.options import AsJson, Dtype, Operands, Sizes
from feinsum.cli.shared.output import print_json
from feinsum.cli.shared.programs import ProgramFile, read_program
from feinsum.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feinsum.distributed import Levels, Plan, ProgramPlan
    from feinsum.records import PlanRecord

EXAMPLES = """\b
Examples:
  feinsum plan "ij,jk->ik" --sizes i=4096,j=4096,k=4096 --processes 64
  feinsum plan "ij,jk->ik" --sizes i=n,j=n,k=n --size n=512 --processes 8
  feinsum plan --program attention.txt --processes 8 --save plan.json
"""

PICTURES = (".png", ".svg", ".pdf")

Processes: TypeAlias = Annotated[
    int, typer.Option("--processes", metavar="P", min=1, help="Number of processes.")
]

Values: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="NAME=N", help="Value of a size parameter."),
]

Memory: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="BYTES", help="Memory limit per process, such as 8GB."
    ),
]

MostWork: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--most-work",
        metavar="RATIO",
        help="Maximum work of a process relative to the average; 1 is balanced.",
    ),
]

RanksPerHost: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--ranks-per-host",
        metavar="N[,N]",
        help="Ranks on each host, and in smaller units: move little between them.",
    ),
]

Save: TypeAlias = Annotated[
    Path | None,
    typer.Option("--save", metavar="FILE", help="Write the plan to a JSON document."),
]


OptionalSubscripts: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="SUBSCRIPTS",
        help="The einsum, such as 'ij,jk->ik'; omit it with --program.",
        show_default=False,
    ),
]

Picture: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--picture",
        metavar="FILE",
        help="Draw the blocks of each step, or the graph of a program, as PNG, SVG or "
        "PDF; needs matplotlib.",
    ),
]


Record: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--record",
        metavar="DATABASE",
        help="Run the plan here once, rank by rank, on random operands; record its "
        "traffic and verified blocks in this database (path or URL).",
    ),
]


Measured: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="DATABASE",
        help="Among the best plans, choose the fastest recorded there for MPI ranks "
        "on this machine. Default: choose by counts alone.",
    ),
]


def plan(
    processes: Processes,
    subscripts: OptionalSubscripts = None,
    sizes: Sizes = None,
    operands: Operands = None,
    dtype: Dtype = DEFAULT_DTYPE,
    size: Values = None,
    memory: Memory = None,
    most_work: MostWork = None,
    ranks_per_host: RanksPerHost = None,
    save: Save = None,
    picture: Picture = None,
    program: ProgramFile = None,
    record: Record = None,
    database: Measured = None,
    as_json: AsJson = False,
) -> None:
    """Plan an einsum or a program on many processes.

    The plan moves the fewest elements between processes. For each group of the
    contraction path, prints which machine axis partitions which index, where operands
    start and the result ends, and what moves.
    """
    values = read_values(size or (), "--size")
    if program is not None:
        of_einsums = (sizes, operands, subscripts, most_work, database)
        if any(one is not None for one in of_einsums):
            raise typer.BadParameter(
                "an einsum, its --sizes and --operands, --most-work and --database "
                "cannot be combined with a program",
                param_hint="--program",
            )
        _plan_program(
            program,
            values,
            processes,
            memory,
            ranks_per_host,
            save,
            picture,
            record,
            as_json,
        )
        return
    if subscripts is None:
        raise typer.BadParameter("give an einsum, or --program")
    from feinsum.distributed import plan as plan_of

    levels = _levels(ranks_per_host)
    einsum = read_einsum(subscripts, sizes, operands, None, dtype)
    made = plan_of(
        einsum,
        values,
        processes=processes,
        memory=memory,
        most_work=inf if most_work is None else most_work,
        database=database,
        ranks_per_host=levels,
    )
    if save is not None:
        _write(save, made)
    if picture is not None:
        _draw(picture, made)
    recorded = None if record is None else _record(made, record)
    if as_json:
        told = _told(recorded) | _passing(made, levels)
        print_json(_document(made) | told)
        return
    typer.echo(str(made))
    _show_passing(made, levels)
    if recorded is not None:
        typer.echo(f"recorded {recorded.id[:12]}: {recorded}")


def _plan_program(
    path: Path,
    values: Mapping[str, int],
    processes: int,
    memory: str | None,
    ranks_per_host: str | None,
    save: Path | None,
    picture: Path | None,
    record: str | None,
    as_json: bool,
) -> None:
    from feinsum.distributed import plan_program

    levels = _levels(ranks_per_host)
    made = plan_program(
        read_program(path),
        processes,
        sizes=values,
        memory=memory,
        ranks_per_host=levels,
    )
    if save is not None:
        _write(save, made)
    if picture is not None:
        _draw_graph(picture, made)
    recorded = None if record is None else _record(made, record)
    if as_json:
        told = _told(recorded) | _passing(made.plan, levels)
        print_json(_document_of_program(made) | told)
        return
    typer.echo(str(made))
    _show_passing(made.plan, levels)
    if recorded is not None:
        typer.echo(f"recorded {recorded.id[:12]}: {recorded}")


def _told(recorded: PlanRecord | None) -> dict[str, str]:
    return {} if recorded is None else {"recorded": recorded.id}


def _levels(text: str | None) -> Levels | None:
    """Ranks on each host, and in each smaller unit."""
    from feinsum.distributed import Levels

    if text is None:
        return None
    try:
        return Levels.parse(text, "--ranks-per-host")
    except PlanError as error:
        if error.rules != ("notation",):
            raise
        raise typer.BadParameter(str(error)) from None


def _passing(made: Plan, levels: Levels | None) -> dict[str, int | tuple[int, ...]]:
    """Elements that pass at every level, and between hosts and within them."""
    from feinsum.distributed import moved_by_level

    if levels is None:
        return {}
    found = moved_by_level(made, levels.units)
    between, *within = found
    told = {"between_hosts": between, "within_hosts": sum(within)}
    return told | {"by_level": found}


def _show_passing(made: Plan, levels: Levels | None) -> None:
    from feinsum.distributed.display import levels_text

    if levels is not None and not made.units:
        typer.echo(levels_text(made, levels.units))


def _record(made: Plan | ProgramPlan, location: str) -> PlanRecord:
    """Record a run of the plan on random operands."""
    from feinsum.db import opened_documents
    from feinsum.distributed.recorded import random_arrays, record_run

    with opened_documents(location, may_create=True) as store:
        store.check_writable()
        return record_run(made, random_arrays(made), store)


def _document_of_program(made: ProgramPlan) -> dict[str, Any]:
    import json

    from feinsum.programs import program_key

    return {
        "plan": json.loads(made.to_json()),
        "id": made.id,
        "key": program_key(made.program),
        "counts": made.counts.document(),
        "peak_bytes": made.plan.peak_bytes,
    }


def _draw_graph(path: Path, made: ProgramPlan) -> None:
    from feinsum.distributed import draw_program

    _check_picture(path)
    try:
        draw_program(made, path)
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write {path}: {error.strerror}", param_hint="--picture"
        ) from None


def _check_picture(path: Path) -> None:
    if path.suffix not in PICTURES:
        raise typer.BadParameter(
            f"{path} ends in {path.suffix!r}; expected {', '.join(PICTURES)}",
            param_hint="--picture",
        )


def _write(path: Path, made: Plan | ProgramPlan) -> None:
    try:
        path.write_text(made.to_json() + "\n")
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write {path}: {error.strerror}", param_hint="--save"
        ) from None


def _draw(path: Path, made: Plan) -> None:
    from feinsum.distributed import rows_of
    from feinsum.distributed.display import MAX_DRAWN
    from feinsum.drawing import draw_blocks

    _check_picture(path)
    if made.processes > MAX_DRAWN:
        raise typer.BadParameter(
            f"a plan for {made.processes} processes cannot be drawn; expected at most "
            f"{MAX_DRAWN}",
            param_hint="--picture",
        )
    try:
        draw_blocks(rows_of(made), path)
    except OSError as error:
        raise typer.BadParameter(
            f"cannot write {path}: {error.strerror}", param_hint="--picture"
        ) from None


def _document(made: Plan) -> dict[str, Any]:
    import json

    return {
        "plan": json.loads(made.to_json()),
        "id": made.id,
        "counts": made.counts.document(),
        "peak_bytes": made.peak_bytes,
        "leaves": [{"key": leaf.key, "text": leaf.text} for leaf in made.leaves],
    }
