"""Programs as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from feinsum.programs import Program

ProgramFile: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--program", metavar="FILE", help="A program, as text, in place of an einsum."
    ),
]


def read_program(path: Path) -> Program:
    """The program of a file of ``--program``."""
    from feinsum.programs import program_from_text

    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(
            f"cannot read {path}: {error}", param_hint="--program"
        ) from None
    return program_from_text(text)
