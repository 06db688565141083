"""Two einsums beside each other: the bijection, or the first difference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from feinsum.cli.canonicalize.workload import (
    Workload,
    print_names,
    print_pairs,
    relabeling_document,
)
from feinsum.cli.shared.failure import DIFFERENT
from feinsum.cli.shared.output import print_json

if TYPE_CHECKING:
    from feinsum.canonical import Difference, Relabeling

ONLY_THE_FORMS = "only the canonical forms differ; all simple invariants agree"


def compare(a: Workload, b: Workload, *, as_json: bool) -> None:
    """Print the bijection from ``a`` to ``b``, or why there is none.

    Raises:
        typer.Exit: with :data:`DIFFERENT` if there is none.
    """
    from feinsum.canonical import first_difference, isomorphism

    bijection = isomorphism(a.general, b.general)
    difference = None
    if bijection is None:
        difference = first_difference(a.general, b.general)
    if as_json:
        print_json(_document(a, b, bijection, difference))
    else:
        a.print("A")
        b.print("B")
        _print(a, bijection, difference)
    if bijection is None:
        raise typer.Exit(DIFFERENT)


def _document(
    a: Workload,
    b: Workload,
    bijection: Relabeling | None,
    difference: Difference | None,
) -> dict[str, Any]:
    return {
        "is_same": bijection is not None,
        "a": a.document() | {"key": a.form.key},
        "b": b.document() | {"key": b.form.key},
        "bijection": bijection and relabeling_document(bijection),
        "difference": difference and vars(difference),
    }


def _print(
    a: Workload, bijection: Relabeling | None, difference: Difference | None
) -> None:
    if bijection is None:
        typer.echo("same workload: no")
        typer.echo(f"difference: {difference or ONLY_THE_FORMS}")
        return
    typer.echo("same workload: yes")
    print_names(bijection)
    _print_orders(bijection)
    typer.echo(f"key: {a.form.key}")


def _print_orders(bijection: Relabeling) -> None:
    """Where every row of A is in B, and every operand of a row."""
    new_row = {old: new for new, old in enumerate(bijection.rows)}
    print_pairs("rows", sorted(new_row.items()))
    for old, new in sorted(new_row.items()):
        places = {p: q for q, p in enumerate(bijection.positions[new])}
        print_pairs(f"operands of row {old}", sorted(places.items()))
