"""``feinsum plan``: an einsum or a program on many processes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from feinsum.cli.shared.help import HelpAll
from feinsum.cli.shared.notation import read_program, read_values
from feinsum.cli.shared.options import (
    DEFAULT_DTYPE,
    AsJson,
    Dtype,
    EinsumOptions,
    Operands,
    OptionalSubscripts,
    ProgramFile,
    Sizes,
    Sparse,
)
from feinsum.cli.shared.output import (
    check_output_file,
    check_reading,
    check_writing,
    print_document,
)
from feinsum.errors import PlanError

if TYPE_CHECKING:
    from feinsum.distributed import Distribution, Levels, Plan, ProgramPlan
    from feinsum.records import PlanRecord

EXAMPLES = """\b
Examples:
  feinsum plan "ij,jk->ik" --sizes i=4096,j=4096,k=4096 --processes 64
  feinsum plan "ij,jk->ik" --sizes i=n,j=n,k=n --size n=512 --processes 8
  feinsum plan "ijk,ja,ka->ia" --sparse T.tns --sizes a=16 --processes 8
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

MemoryLimit: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="BYTES", help="Memory limit per process, such as 8GB."
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


After: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--after",
        metavar="FILE",
        help="A saved plan: operands that it has, or computes, start where it leaves "
        "them.",
    ),
]


def plan(
    processes: Processes,
    subscripts: OptionalSubscripts = None,
    sizes: Sizes = None,
    operands: Operands = None,
    dtype: Dtype = DEFAULT_DTYPE,
    size: Values = None,
    sparse: Sparse = None,
    memory: MemoryLimit = None,
    ranks_per_host: RanksPerHost = None,
    after: After = None,
    save: Save = None,
    picture: Picture = None,
    program: ProgramFile = None,
    record: Record = None,
    database: Measured = None,
    as_json: AsJson = False,
    help_all: HelpAll = False,
) -> None:
    """Plan an einsum or a program on many processes.

    Finds the plan whose slowest process finishes first. For each group of the
    contraction path, prints which machine axis partitions which index, where operands
    start and the result ends, and what moves.
    """
    values = read_values(size or (), "--size")
    if picture is not None:
        # check before planning, which may take minutes
        check_output_file(picture, PICTURES, "--picture")
    levels = None if ranks_per_host is None else _parse_levels(ranks_per_host)
    limits: dict[str, Any] = {"memory": memory, "ranks_per_host": levels}
    planned: Plan | ProgramPlan
    if program is not None:
        options = sizes, operands, subscripts, database, sparse
        if any(option is not None for option in options):
            raise typer.BadParameter(
                "an einsum, its --sizes, --operands and --sparse, and --database "
                "cannot be combined with a program",
                param_hint="--program",
            )
        from feinsum.distributed import plan_program

        source = read_program(program)
        read = {x for statement in source.statements for x in statement.operands}
        starts = _read_starts(after, {x.name for x in source.inputs} & read)
        planned = plan_program(source, processes, sizes=values, starts=starts, **limits)
    elif subscripts is None:
        raise typer.BadParameter("give an einsum, or --program")
    else:
        from feinsum.distributed import plan as plan_einsum

        arrays = EinsumOptions(sizes, operands, dtype=dtype)
        einsum, profile = arrays.read_with_profile(subscripts, sparse)
        planned = plan_einsum(
            einsum,
            values,
            processes=processes,
            database=database,
            # the last level of the tree has a node for each entry
            nonzeros=[*profile.values()][-1] if profile else None,
            starts=_read_starts(after, {x.name for x in einsum.operands}),
            **limits,
        )
    if save is not None:
        with check_writing(save, "--save"):
            save.write_text(planned.to_json() + "\n")
    if picture is not None:
        _draw(picture, planned)
    run = None if record is None else _record(planned, record)
    _show(planned, levels, run, as_json)


def _parse_levels(text: str) -> Levels:
    """Parse the ranks on each host, and in each smaller unit."""
    from feinsum.distributed import Levels

    try:
        return Levels.parse(text, "--ranks-per-host")
    except PlanError as error:
        if error.rules != ("notation",):
            raise
        raise typer.BadParameter(str(error)) from None


def _read_starts(
    path: Path | None, operands: Collection[str]
) -> Mapping[str, Distribution]:
    """Return the distributions in which an earlier plan leaves some operands."""
    from feinsum.distributed.facts import get_inner_plan, read_plan

    if path is None:
        return {}
    with check_reading(path, "--after"):
        left = get_inner_plan(read_plan(path.read_bytes())).final_distributions
    return {name: left[name] for name in left if name in operands}


def _draw(path: Path, planned: Plan | ProgramPlan) -> None:
    from feinsum.distributed import Plan, draw_program, rows_of
    from feinsum.distributed.display import MAX_DRAWN
    from feinsum.drawing import draw_blocks

    # the blocks of more processes could not be distinguished in a picture
    if isinstance(planned, Plan) and planned.processes > MAX_DRAWN:
        raise typer.BadParameter(
            f"a plan for {planned.processes} processes cannot be drawn; expected at "
            f"most {MAX_DRAWN}",
            param_hint="--picture",
        )
    with check_writing(path, "--picture"):
        if isinstance(planned, Plan):
            draw_blocks(rows_of(planned), path)
        else:
            draw_program(planned, path)


def _record(planned: Plan | ProgramPlan, location: str) -> PlanRecord:
    """Record a run of the plan on random operands."""
    from feinsum.db import opened_documents
    from feinsum.distributed.recorded import make_random_arrays, record_run

    with opened_documents(location, may_create=True) as store:
        # check before the run, which may take minutes
        store.check_writable()
        return record_run(planned, make_random_arrays(planned), store)


def _show(
    planned: Plan | ProgramPlan,
    levels: Levels | None,
    run: PlanRecord | None,
    as_json: bool,
) -> None:
    from feinsum.distributed import Plan
    from feinsum.distributed.display import format_levels

    einsums = planned if isinstance(planned, Plan) else planned.plan

    def print_text() -> None:
        typer.echo(str(planned))
        # a plan with units prints its levels itself
        if levels is not None and not einsums.units:
            typer.echo(format_levels(einsums, levels.units))
        if run is not None:
            typer.echo(f"recorded {run.id[:12]}: {run}")

    document = _make_document(planned) | _count_traffic_by_level(einsums, levels)
    if run is not None:
        document["recorded"] = run.id
    print_document(document, as_json, print_text)


def _make_document(planned: Plan | ProgramPlan) -> dict[str, Any]:
    from feinsum.distributed import Plan
    from feinsum.programs import program_key

    einsums = planned if isinstance(planned, Plan) else planned.plan
    document = {
        "plan": json.loads(planned.to_json()),
        "id": planned.id,
        "counts": planned.counts.document(),
        "least_moved": einsums.least_moved,
    }
    if isinstance(planned, Plan):
        leaves = [{"key": leaf.key, "text": leaf.text} for leaf in planned.leaves]
        return document | {"peak_bytes": planned.peak_bytes, "leaves": leaves}
    key = program_key(planned.program)
    return document | {"peak_bytes": planned.plan.peak_bytes, "key": key}


def _count_traffic_by_level(planned: Plan, levels: Levels | None) -> dict[str, Any]:
    """Count elements that pass at every level, and between hosts and within them."""
    from feinsum.distributed import moved_by_level

    if levels is None:
        return {}
    by_level = moved_by_level(planned, levels.units)
    between, *within = by_level
    return {
        "between_hosts": between,
        "within_hosts": sum(within),
        "by_level": by_level,
    }
