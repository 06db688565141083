"""``feinsum bound``."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from feinsum.cli.shared.notation import check_parameters, read_values
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    Device,
    EinsumOptions,
    SizeValues,
    Subscripts,
    expand_groups,
)
from feinsum.cli.shared.output import print_document

EXAMPLES = """\b
Examples:
  feinsum bound "ij,jk->ik" --sizes i=2000,j=2000,k=2000
  feinsum bound "ijk,ja,ka->ia" --sizes i=n,j=88,k=88,a=24 --size n=9000
  feinsum bound "ij,jk,kl->il" --sizes i=9,j=99,k=999,l=9 --memory 80000
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
    subscripts: Subscripts,
    arrays: EinsumOptions,
    size: SizeValues = None,
    memory: FastMemory = None,
    device: Device = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Print lower bounds on the cost of an einsum.

    For each memory level: its size and bandwidth, the bytes that must cross it, their
    time, and a tile that attains the bound. A dash means not measured; run
    'feinsum devices --measure'.
    """
    from feinsum.bounds import MemoryLevel
    from feinsum.retrieval import bound as bound_of
    from feinsum.tuning import default_sizes

    einsum = arrays.read(subscripts)
    values = read_values(size or (), "--size")
    check_parameters(values, [einsum])
    levels = None
    if memory is not None:
        # the model of the papers on lower bounds: one fast memory before an unlimited
        # one
        levels = [MemoryLevel("fast", memory), MemoryLevel("slow", None)]
    lower = bound_of(
        einsum,
        default_sizes(einsum, values),
        levels=levels,
        device=device,
        database=database,
    )
    print_document(lower.document(), as_json, lambda: typer.echo(str(lower)))
