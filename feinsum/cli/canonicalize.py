"""``feinsum canonicalize``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from feinsum.cli.notation import read_einsum
from feinsum.cli.options import AsJson, Dtype, Operands, Rows, Sizes, Subscripts
from feinsum.cli.output import print_json

if TYPE_CHECKING:
    from feinsum.canonical import CanonicalForm, Relabeling

__all__ = ["EXAMPLES", "canonicalize"]

EXAMPLES = """\b
Examples:
  feinsum canonicalize "xre,rij,ej->xei" --sizes x=3,r=3,e=Nel,i=20,j=20
  feinsum canonicalize "cell dof, dof -> cell" --sizes cell=N,dof=4
  feinsum canonicalize "ij,j->i" --sizes i=9,j=4 --rows "M,x;M,y"
"""


def canonicalize(
    subscripts: Subscripts,
    sizes: Sizes = None,
    operands: Operands = None,
    rows: Rows = None,
    dtype: Dtype = "float64",
    as_json: AsJson = False,
) -> None:
    """Print the canonical form and the key of an einsum.

    Einsums that differ only in names and in the order of operands and rows have
    one canonical form. A literal extent of 500 or more of a free index counts
    as a size known only at run time, as it does in look-ups.
    """
    from feinsum.canonical import canonicalize as canonical_form
    from feinsum.ir import generalize

    einsum = read_einsum(subscripts, sizes, operands, rows, dtype)
    general, literal = generalize(einsum)
    form = canonical_form(general)
    if as_json:
        print_json(
            {
                "einsum": str(einsum),
                "generalized": dict(literal),
                "canonical": form.text,
                "relabeling": _names(form.relabeling) | _orders(form.relabeling),
                "key": form.key,
            }
        )
        return
    typer.echo(f"einsum: {einsum}")
    for param, extent in literal.items():
        typer.echo(f"generalized: extent {extent} is the size parameter {param}")
    _print(form)


def _print(form: CanonicalForm) -> None:
    typer.echo(f"canonical: {form.text}")
    for what, names in _names(form.relabeling).items():
        renaming = ", ".join(f"{old} -> {new}" for old, new in names.items())
        typer.echo(f"{what}: {renaming or '(none)'}")
    typer.echo(f"rows: {', '.join(map(str, form.relabeling.rows))}")
    typer.echo(f"key: {form.key}")


def _names(relabeling: Relabeling) -> dict[str, Any]:
    return {
        "indices": dict(relabeling.indices),
        "operands": dict(relabeling.operands),
        "size_params": dict(relabeling.size_params),
    }


def _orders(relabeling: Relabeling) -> dict[str, Any]:
    return {"rows": relabeling.rows, "positions": relabeling.positions}
