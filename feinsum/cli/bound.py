"""``feinsum bound``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from feinsum.cli.shared.notation import check_parameters, read_program, read_values
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    Device,
    EinsumOptions,
    OptionalSubscripts,
    ProgramFile,
    SizeValues,
    expand_groups,
)
from feinsum.cli.shared.output import print_document

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum
    from feinsum.programs import Program

EXAMPLES = """\b
Examples:
  feinsum bound "ij,jk->ik" --sizes i=2000,j=2000,k=2000
  feinsum bound "ijk,ja,ka->ia" --sizes i=n,j=88,k=88,a=24 --size n=9000
  feinsum bound "ij,jk,kl->il" --sizes i=9,j=99,k=999,l=9 --memory 80000
  feinsum bound --program bicg.txt --size m=4000,n=4000 --memory 80000
"""

FastMemory: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--memory",
        metavar="BYTES",
        min=0,
        help="Bound the traffic of a single fast memory of this size, instead of the "
        "levels of a device.",
    ),
]


@expand_groups
def bound(
    arrays: EinsumOptions,
    subscripts: OptionalSubscripts = None,
    size: SizeValues = None,
    memory: FastMemory = None,
    program: ProgramFile = None,
    device: Device = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Print lower bounds on the cost of an einsum, or of a program as written.

    For each memory level: its size and bandwidth, the bytes that must cross it, their
    time, and a tile that attains the bound. A dash means not measured; run
    'feinsum devices --measure'.
    """
    from feinsum.bounds import MemoryLevel
    from feinsum.retrieval import bound as bound_of
    from feinsum.tuning import choose_default_sizes

    values = read_values(size or (), "--size")
    einsum: BatchedEinsum | Program
    if program is not None:
        options = [*arrays.list_given(), *([subscripts] if subscripts else [])]
        if options:
            raise typer.BadParameter(
                f"{options[0]} cannot be combined with a program",
                param_hint="--program",
            )
        einsum, sizes = read_program(program), values
    elif subscripts is not None:
        einsum = arrays.read(subscripts)
        sizes = choose_default_sizes(einsum, values)
    else:
        raise typer.BadParameter("give an einsum, or --program")
    check_parameters(values, [einsum])
    levels = None
    if memory is not None:
        # the model of the papers on lower bounds: one fast memory before an unlimited
        # one
        levels = [MemoryLevel("fast", memory), MemoryLevel("slow", None)]
    lower = bound_of(
        einsum,
        sizes,
        levels=levels,
        device=device,
        database=database,
    )
    print_document(lower.document(), as_json, lambda: typer.echo(str(lower)))
