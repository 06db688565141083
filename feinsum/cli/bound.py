"""``feinsum bound``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from feinsum.cli.shared.notation import DEFAULT_DTYPE, read_einsum, read_values
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    Device,
    Dtype,
    Operands,
    Rows,
    Sizes,
    SizeValues,
    Subscripts,
)
from feinsum.cli.shared.output import print_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from feinsum.ir import BatchedEinsum

EXAMPLES = """\b
Examples:
  feinsum bound "ij,jk->ik" --sizes i=2000,j=2000,k=2000
  feinsum bound "ijk,ja,ka->ia" --sizes i=n,j=88,k=88,a=24 --size n=9000
  feinsum bound "ij,jk,kl->il" --sizes i=9,j=99,k=999,l=9 --memory 80000
"""

Fast: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--memory",
        metavar="BYTES",
        min=0,
        help="Bound the traffic of a single fast memory of this size, instead of the "
        "levels of a device.",
    ),
]


def bound(
    subscripts: Subscripts,
    sizes: Sizes = None,
    operands: Operands = None,
    rows: Rows = None,
    dtype: Dtype = DEFAULT_DTYPE,
    size: SizeValues = None,
    memory: Fast = None,
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

    einsum = read_einsum(subscripts, sizes, operands, rows, dtype)
    values = _values(einsum, read_values(size or (), "--size"))
    levels = None
    if memory is not None:
        levels = [MemoryLevel("fast", memory), MemoryLevel("slow", None)]
    found = bound_of(einsum, values, levels=levels, device=device, database=database)
    if as_json:
        print_json(found.document())
    else:
        typer.echo(str(found))


def _values(einsum: BatchedEinsum, given: Mapping[str, int]) -> dict[str, int]:
    """Sizes of all parameters; those that are not given get the default."""
    from feinsum.tuning import default_sizes

    known = {x.name for x in einsum.size_params}
    if unknown := sorted(set(given) - known):
        raise typer.BadParameter(
            f"no size parameter is named {', '.join(unknown)}; there are "
            f"{', '.join(sorted(known)) or 'none'}",
            param_hint="--size",
        )
    return default_sizes(einsum, given)
