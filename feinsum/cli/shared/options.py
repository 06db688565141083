"""The options that commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer


def _unless_blank(text: str | None) -> str | None:
    """None for a text without a character, as in ``--database ""``."""
    return text if text and text.strip() else None


Effort: TypeAlias = Annotated[
    Literal["recorded", "estimate", "measure", "patient", "exhaustive"] | None,
    typer.Option(
        help="For an einsum without a record: do nothing, predict, or measure. "
        "Default: FEINSUM_EFFORT, else estimate.",
    ),
]
AsJson: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of text.")
]

Database: TypeAlias = Annotated[
    str | None,
    typer.Option(
        callback=_unless_blank,
        metavar="PATH|URL",
        help="Database of facts. Default: FEINSUM_DATABASE, else the user's own.",
    ),
]

Device: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|ID",
        help="Part of a device's name, or the start of its id. Default: "
        "FEINSUM_DEVICE, else the first of 'feinsum devices'.",
    ),
]

Dtype: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="Numpy dtype of every operand.")
]

Operands: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="Names of the operands, such as J,D,u; one name is one array. "
        "Default: A,B,C...",
    ),
]

Policy: TypeAlias = Annotated[
    Literal["strict", "default", "loose"] | None,
    typer.Option(
        help="Worst acceptable match: this device and driver (strict), its "
        "architecture, any device (loose). Default: FEINSUM_POLICY, else default."
    ),
]

Rows: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="ROWS",
        help="Operands of a batch, row by row, such as 'J,D,u;J,D,v'.",
    ),
]

SizeValues: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        metavar="NAME=N",
        help="Value of a size parameter, such as Nel=100000. Default: chosen so that "
        "all arrays together take 64 MB.",
    ),
]

Sizes: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="INDEX=N,...",
        help="Extent of every index, such as i=20,e=Nel; a name is a size known "
        "only at run time.",
    ),
]

Sparse: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.tns",
        help="File of the first operand, a sparse tensor, with its extents and "
        "profile. Dense indices without a size have 32 values.",
    ),
]

Subscripts: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="SUBSCRIPTS",
        help="The einsum, such as 'ij,j->i' or '{cell}{dof}, {dof} -> {cell}'; or its "
        "text, as printed by 'feinsum canonicalize'.",
        show_default=False,
    ),
]

_TARGET = "SUBSCRIPTS|FILE.py[:NAME]"

Target: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar=_TARGET,
        help="An einsum, or a Python file with a function (by default build) that "
        "returns a Loopy translation unit.",
        show_default=False,
    ),
]

Targets: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar=_TARGET,
        help="Einsums, or Python files with a function (by default build) that "
        "returns a Loopy translation unit. Default: both suites.",
        show_default=False,
    ),
]

Trials: TypeAlias = Annotated[
    bool, typer.Option("--with-trials", help="Include trials, which are not facts.")
]

WithImplausible: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--with-implausible",
        help="Include implausible documents, to copy a database as it is.",
    ),
]

WithoutRetractions: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--without-retractions",
        help="Leave out retractions.",
    ),
]

Write: TypeAlias = Annotated[
    bool,
    typer.Option("--write", help="Apply the changes; otherwise nothing is written."),
]
