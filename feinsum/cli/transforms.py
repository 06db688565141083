"""``feinsum transforms``: the transforms of this release, or those that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from feinsum.cli.shared.options import AsJson, EinsumOptions, expand_groups
from feinsum.cli.shared.output import print_document, print_table

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


@expand_groups
def transforms(
    subscripts: Annotated[
        str | None,
        typer.Argument(
            metavar="SUBSCRIPTS", help="List only transforms that fit this einsum."
        ),
    ] = None,
    *,
    arrays: EinsumOptions,
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
        _show_figures(arrays.read(subscripts), architecture, as_json)
        return
    if subscripts is None:
        from feinsum.transforms import REGISTRY

        documents = [_make_document(REGISTRY[key]) for key in sorted(REGISTRY)]
    else:
        documents = _list_fitting(arrays.read(subscripts))

    def print_text() -> None:
        if documents:
            _print(documents)
        elif subscripts is None:
            typer.echo("no transform")
        else:
            typer.echo("no transform fits this einsum")

    print_document({"transforms": documents}, as_json, print_text)


def _show_figures(einsum: BatchedEinsum, architecture: str, as_json: bool) -> None:
    """Show the resources of a multiprocessor that the kernel of each recipe takes."""
    from feinsum.measure.gpu_figures import get_start_figures

    recipes = get_start_figures(einsum, architecture)
    rows = [
        (
            str(recipe.n_items),
            str(recipe.figures.registers),
            str(recipe.figures.spill_bytes),
            str(recipe.shared_bytes),
            f"{recipe.occupancy:.0%}",
            str(recipe.spec),
        )
        for recipe in recipes
    ]
    headings = "items", "registers", "spilled", "shared", "occupancy"
    print_document(
        {"recipes": [recipe.to_document() for recipe in recipes]},
        as_json,
        lambda: print_table((), headings, rows, last="recipe"),
    )


def _list_fitting(einsum: BatchedEinsum) -> list[dict[str, Any]]:
    from feinsum.canonical import canonicalize
    from feinsum.ir import Workload, generalize
    from feinsum.transforms import (
        ALL_DEVICES,
        find_applicable_transforms,
        list_configurations,
    )

    general, literal = generalize(einsum)
    form = canonicalize(general)
    # transforms see the canonical names
    renamed = form.relabeling.size_params
    sizes = {renamed[name]: n for name, n in literal.items()}
    workload = Workload(form.einsum, sizes)
    fitting = {
        t.name: t
        for kind in ALL_DEVICES
        for t in find_applicable_transforms(workload, kind)
    }
    return [
        {
            **_make_document(t),
            "configurations": sum(1 for _ in list_configurations(t, workload)),
        }
        for _, t in sorted(fitting.items())
    ]


def _make_document(transform: Transform) -> dict[str, Any]:
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
