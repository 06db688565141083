"""Options that several commands share, each declared once, and groups of them.

A command that looks an einsum up has eight options in common with others. It declares
them as two parameters, whose fields Typer gets one by one::

    @app.command()
    @expand_groups                       # feinsum bound "ij,j->i" --sizes i=n,j=4
    def bound(subscripts: Subscripts, einsum: EinsumOptions, lookup: LookupOptions): ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeAlias,
    get_type_hints,
)

import typer

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum

DEFAULT_DTYPE = "float64"


def _drop_blank(text: str | None) -> str | None:
    """Return a text, or None if it is blank, as in ``--database ""``."""
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
        callback=_drop_blank,
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

OptionalSubscripts: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="SUBSCRIPTS",
        help="The einsum, such as 'ij,jk->ik'; omit it with --program.",
        show_default=False,
    ),
]

ProgramFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--program", metavar="FILE", help="A program, as text, in place of an einsum."
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

Targets: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SUBSCRIPTS|FILE.py[:NAME]",
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


@dataclass(frozen=True)
class EinsumOptions:
    """Options that describe the arrays of subscripts."""

    sizes: Sizes = None
    operands: Operands = None
    rows: Rows = None
    dtype: Dtype = DEFAULT_DTYPE

    def read(self, subscripts: str) -> BatchedEinsum:
        """Read the einsum given by subscripts, or by a whole canonical text.

        Raises:
            InvalidEinsumError: if they describe none.
            typer.BadParameter: naming the option that cannot be read.
        """
        from feinsum.cli.shared.notation import read_einsums

        return read_einsums([subscripts], self)[0]

    def read_with_profile(
        self, subscripts: str, sparse: Path | None
    ) -> tuple[BatchedEinsum, dict[str, int]]:
        """Read an einsum, and the profile of its sparse operand if it has one."""
        from feinsum.cli.shared.notation import read_sparse_einsum

        if sparse is None:
            return self.read(subscripts), {}
        return read_sparse_einsum(subscripts, sparse, self)

    def list_given(self) -> dict[str, object]:
        """Return the options given on the command line, by their names there."""
        values = {
            f"--{field.name}": getattr(self, field.name) for field in fields(self)
        }
        defaults = {f"--{field.name}": field.default for field in fields(self)}
        return {name: x for name, x in values.items() if x != defaults[name]}


@dataclass(frozen=True)
class CommandLookup:
    """Options of a look-up: the device, where to look, and what is acceptable."""

    device: Device = None
    database: Database = None
    policy: Policy = None
    effort: Effort = None

    def as_arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of a look-up in :mod:`feinsum.retrieval`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Declare the fields of a command's groups of options as options of the command.

    Typer reads signatures, and passes every option by its name.
    """
    parameters: list[Parameter] = []
    groups: dict[str, type] = {}
    # evaluated here: Typer cannot see the names of the module of a group
    for parameter in signature(command, eval_str=True).parameters.values():
        group = parameter.annotation
        if not (isinstance(group, type) and is_dataclass(group)):
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = group
        hints = get_type_hints(group, include_extras=True)
        parameters += [
            Parameter(
                field.name,
                Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in fields(group)
        ]

    @wraps(command)
    def expanded(**options: Any) -> None:
        for name, group in groups.items():
            names = [field.name for field in fields(group)]
            # a command gets its groups under the names that it declares
            options[name] = group(**{field: options.pop(field) for field in names})
        command(**options)

    # Typer reads both
    expanded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {p.name: p.annotation for p in parameters}
    return expanded
