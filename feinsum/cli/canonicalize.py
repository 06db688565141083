"""``feinsum canonicalize``: the canonical form of an einsum, or two compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feinsum.cli.shared.failure import DIFFERENT
from feinsum.cli.shared.notation import read_einsums
from feinsum.cli.shared.options import (
    AsJson,
    EinsumOptions,
    Subscripts,
    expand_groups,
)
from feinsum.cli.shared.output import check_output_file, check_writing, print_document

if TYPE_CHECKING:
    from feinsum.canonical import CanonicalForm, InvariantDifference, Relabeling
    from feinsum.ir import BatchedEinsum

EXAMPLES = """\b
Examples:
  feinsum canonicalize "xre,rij,ej->xei" --sizes x=3,r=3,e=Nel,i=20,j=20
  feinsum canonicalize "{cell}{dof}, {dof} -> {cell}" --sizes cell=N,dof=4
  feinsum canonicalize "ij,j->i" --sizes i=9,j=4 --rows "M,x;M,y"
  feinsum canonicalize "i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x"

\b
Draw the induced graph:
  feinsum canonicalize "ij,j->i" --sizes i=n,j=4 --graph graph.svg

\b
Are two einsums one workload?
  feinsum canonicalize "ij,j->i" "q,pq->p" --sizes i=n,j=4,p=m,q=4
  feinsum canonicalize "ij,j->i" "i j, j -> i | A[N,5]:<f8 x[5]:<f8 | A x" \\
      --sizes i=n,j=4
"""

Graph = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Draw the induced graph to FILE.svg, .png, .pdf or .dot, overwriting "
        "an existing file; all but .dot need matplotlib.",
    ),
]

Other = Annotated[
    str | None,
    typer.Argument(
        metavar="OTHER",
        help="Another einsum to compare with the first.",
        show_default=False,
    ),
]

ONLY_THE_FORMS = "only the canonical forms differ; all simple invariants agree"


@dataclass(frozen=True)
class CommandEinsum:
    """An einsum of the command line, and the general form in which it is looked up.

    Attributes:
        general: with size parameters for its long extents.
        literal: the extent behind each of these parameters.
    """

    einsum: BatchedEinsum
    general: BatchedEinsum
    literal: Mapping[str, int]

    @classmethod
    def of(cls, einsum: BatchedEinsum) -> CommandEinsum:
        from feinsum.ir import generalize

        return cls(einsum, *generalize(einsum))

    @cached_property
    def form(self) -> CanonicalForm:
        from feinsum.canonical import canonicalize

        return canonicalize(self.general)

    def document(self) -> dict[str, Any]:
        return {"einsum": str(self.einsum), "generalized": dict(self.literal)}

    def print(self, name: str) -> None:
        typer.echo(f"{name}: {self.einsum}")
        for param, extent in self.literal.items():
            typer.echo(f"generalized: extent {extent} is the size parameter {param}")


@expand_groups
def canonicalize(
    subscripts: Subscripts,
    arrays: EinsumOptions,
    other: Other = None,
    graph: Graph = None,
    as_json: AsJson = False,
) -> None:
    """Print the canonical form of an einsum, or compare two.

    Einsums that differ only in names and in the order of operands and rows have
    one canonical form. A literal extent of 500 or more of a free index counts
    as a size known only at run time, as it does in look-ups.

    With two einsums, A and B, print the bijection between them, or the first
    property in which they differ and exit with code 1. The options apply to
    both; --sizes covers the indices of both.
    """
    texts = [subscripts] if other is None else [subscripts, other]
    workloads = [CommandEinsum.of(einsum) for einsum in read_einsums(texts, arrays)]
    if len(workloads) == 1:
        _canonicalize(workloads[0], graph, as_json)
    elif graph is None:
        _compare(*workloads, as_json=as_json)
    else:
        raise typer.BadParameter(
            "two einsums were given, but it draws one; omit the other",
            param_hint="--graph",
        )


def _canonicalize(workload: CommandEinsum, graph: Path | None, as_json: bool) -> None:
    form = workload.form
    if graph is not None:
        from feinsum.drawing import SUFFIXES, draw

        check_output_file(graph, SUFFIXES, "--graph")
        with check_writing(graph, "--graph"):
            draw(workload.general, graph)
    document = workload.document() | {
        "canonical": form.text,
        "relabeling": vars(form.relabeling),
        "key": form.key,
        "graph": None if graph is None else str(graph),
    }

    def print_text() -> None:
        workload.print("einsum")
        typer.echo(f"canonical: {form.text}")
        _print_names(form.relabeling)
        typer.echo(f"rows: {', '.join(map(str, form.relabeling.rows))}")
        typer.echo(f"key: {form.key}")
        if graph is not None:
            typer.echo(f"graph: {graph}")

    print_document(document, as_json, print_text)


def _compare(a: CommandEinsum, b: CommandEinsum, *, as_json: bool) -> None:
    """Print the bijection from ``a`` to ``b``, or why there is none.

    Raises:
        typer.Exit: with :data:`DIFFERENT` if there is none.
    """
    from feinsum.canonical import first_difference, isomorphism

    bijection = isomorphism(a.general, b.general)
    difference: InvariantDifference | None = None
    if bijection is None:
        # compare invariants only after the forms differ: equal invariants prove nothing
        difference = first_difference(a.general, b.general)
    document = {
        "is_same": bijection is not None,
        "a": a.document() | {"key": a.form.key},
        "b": b.document() | {"key": b.form.key},
        "bijection": bijection and vars(bijection),
        "difference": difference and vars(difference),
    }

    def print_text() -> None:
        a.print("A")
        b.print("B")
        if bijection is None:
            typer.echo("same workload: no")
            typer.echo(f"difference: {difference or ONLY_THE_FORMS}")
        else:
            typer.echo("same workload: yes")
            _print_names(bijection)
            _print_orders(bijection)
            typer.echo(f"key: {a.form.key}")

    print_document(document, as_json, print_text)
    if bijection is None:
        raise typer.Exit(DIFFERENT)


def _print_names(relabeling: Relabeling) -> None:
    for title in ("indices", "operands", "size_params"):
        _print_pairs(title, getattr(relabeling, title).items())


def _print_orders(bijection: Relabeling) -> None:
    """Print the positions in B of the rows of A, and of the operands of each row."""
    new_row = {row_of_a: row_of_b for row_of_b, row_of_a in enumerate(bijection.rows)}
    _print_pairs("rows", sorted(new_row.items()))
    for row_of_a, row_of_b in sorted(new_row.items()):
        # the inverse permutation leads from A to B
        positions = {p: q for q, p in enumerate(bijection.positions[row_of_b])}
        _print_pairs(f"operands of row {row_of_a}", sorted(positions.items()))


def _print_pairs(title: str, pairs: Iterable[tuple[object, object]]) -> None:
    """Print a renaming on one line."""
    renaming = ", ".join(f"{name} -> {renamed}" for name, renamed in pairs)
    typer.echo(f"{title}: {renaming or '(none)'}")
