"""``feinsum transforms``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from feinsum.cli.shared.notation import DEFAULT_DTYPE, read_einsum
from feinsum.cli.shared.options import AsJson, Dtype, Operands, Rows, Sizes
from feinsum.cli.shared.output import print_json, print_table

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum
    from feinsum.transforms import Transform

EXAMPLES = """\b
Examples:
  feinsum transforms
  feinsum transforms "xre,rij,ej->xei" --sizes x=3,r=3,e=Nel,i=20,j=20
  feinsum transforms "ij,jk->ik" --sizes i=n,j=64,k=64 --architecture sm_90
"""

Architecture: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Show registers, spills, shared memory and occupancy on a GPU, such as "
        "sm_90.",
    ),
]


def transforms(
    subscripts: Annotated[
        str | None,
        typer.Argument(
            metavar="SUBSCRIPTS", help="List only transforms that fit this einsum."
        ),
    ] = None,
    sizes: Sizes = None,
    operands: Operands = None,
    rows: Rows = None,
    dtype: Dtype = DEFAULT_DTYPE,
    architecture: Architecture = None,
    as_json: AsJson = False,
) -> None:
    """List the transforms, or those that fit an einsum.

    With an einsum, also count the configurations of each. With an architecture,
    show the resource use of GPU recipes.
    """
    if architecture is not None:
        if subscripts is None:
            raise typer.BadParameter("give an einsum", param_hint="--architecture")
        einsum = read_einsum(subscripts, sizes, operands, rows, dtype)
        _show_figures(einsum, architecture, as_json)
        return
    if subscripts is None:
        documents = _all()
    else:
        documents = _fitting(read_einsum(subscripts, sizes, operands, rows, dtype))
    if as_json:
        print_json({"transforms": documents})
    elif documents:
        _print(documents)
    else:
        typer.echo("no transform" + ("" if subscripts is None else " fits this einsum"))


def _show_figures(einsum: BatchedEinsum, architecture: str, as_json: bool) -> None:
    """Show the resources of a multiprocessor that kernels take, by recipe."""
    from feinsum.measure.gpu_figures import figures_of_starts

    found = figures_of_starts(einsum, architecture)
    if as_json:
        print_json({"recipes": [one.to_document() for one in found]})
        return
    print_table(
        (),
        ("items", "registers", "spilled", "shared", "occupancy"),
        [
            (
                str(one.n_items),
                str(one.figures.registers),
                str(one.figures.spill_bytes),
                str(one.shared_bytes),
                f"{one.occupancy:.0%}",
                str(one.spec),
            )
            for one in found
        ],
        last="recipe",
    )


def _all() -> list[dict[str, Any]]:
    from feinsum.transforms import REGISTRY

    return [_document(REGISTRY[key]) for key in sorted(REGISTRY)]


def _fitting(einsum: BatchedEinsum) -> list[dict[str, Any]]:
    from feinsum.canonical import canonicalize
    from feinsum.ir import Workload, generalize
    from feinsum.transforms import (
        ALL_DEVICES,
        applicable_transforms,
        configurations,
    )

    general, literal = generalize(einsum)
    form = canonicalize(general)
    renamed = form.relabeling.size_params
    sizes = {renamed[name]: n for name, n in literal.items()}
    workload = Workload(form.einsum, sizes)
    fitting = {
        t.name: t for kind in ALL_DEVICES for t in applicable_transforms(workload, kind)
    }
    return [
        {
            **_document(t),
            "configurations": sum(1 for _ in configurations(t, workload)),
        }
        for _, t in sorted(fitting.items())
    ]


def _document(transform: Transform) -> dict[str, Any]:
    return {
        "name": transform.name,
        "version": transform.version,
        "summary": transform.summary,
    }


def _print(documents: list[dict[str, Any]]) -> None:
    numbers = [name for name in ("configurations",) if name in documents[0]]
    print_table(
        ("transform", "summary"),
        numbers,
        [
            (
                f"{document['name']}@{document['version']}",
                document["summary"],
                *(str(document[name]) for name in numbers),
            )
            for document in documents
        ],
    )
