"""``feinsum canonicalize``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feinsum.cli.canonicalize.comparison import compare
from feinsum.cli.canonicalize.workload import Workload, print_names, relabeling_document
from feinsum.cli.shared.notation import DEFAULT_DTYPE, read_einsums
from feinsum.cli.shared.options import AsJson, Dtype, Operands, Rows, Sizes, Subscripts
from feinsum.cli.shared.output import print_json

if TYPE_CHECKING:
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


def canonicalize(
    subscripts: Subscripts,
    other: Other = None,
    sizes: Sizes = None,
    operands: Operands = None,
    rows: Rows = None,
    dtype: Dtype = DEFAULT_DTYPE,
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
    einsums = read_einsums(texts, sizes, operands, rows, dtype)
    workloads = [Workload.of(einsum) for einsum in einsums]
    if len(workloads) == 1:
        _canonicalize(workloads[0], graph, as_json)
    elif graph is None:
        compare(*workloads, as_json=as_json)
    else:
        raise _refuse("two einsums were given, but it draws one; omit the other")


def _canonicalize(workload: Workload, graph: Path | None, as_json: bool) -> None:
    form = workload.form
    if graph is not None:
        _draw(workload.general, graph)
    if as_json:
        document = {
            "canonical": form.text,
            "relabeling": relabeling_document(form.relabeling),
            "key": form.key,
            "graph": None if graph is None else str(graph),
        }
        print_json(workload.document() | document)
        return
    workload.print("einsum")
    typer.echo(f"canonical: {form.text}")
    print_names(form.relabeling)
    typer.echo(f"rows: {', '.join(map(str, form.relabeling.rows))}")
    typer.echo(f"key: {form.key}")
    if graph is not None:
        typer.echo(f"graph: {graph}")


def _draw(einsum: BatchedEinsum, path: Path) -> None:
    from feinsum.drawing import SUFFIXES, draw

    if path.suffix.lower() not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise _refuse(f"{str(path)!r} must end in one of {known}")
    if not path.parent.is_dir():
        raise _refuse(f"{str(path)!r}: there is no folder {str(path.parent)!r}")
    try:
        draw(einsum, path)
    except OSError as error:
        raise _refuse(f"{str(path)!r} cannot be written: {error.strerror}") from None


def _refuse(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--graph")
