"""``feinsum export-c``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from feinsum.cli.shared.failure import NO_FACT, say
from feinsum.cli.shared.notation import DEFAULT_DTYPE, read_einsum
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    Device,
    Dtype,
    Effort,
    Operands,
    Policy,
    Rows,
    Sizes,
    Subscripts,
)
from feinsum.cli.shared.output import print_json
from feinsum.cli.shared.recommended import unchanged_advice

if TYPE_CHECKING:
    from feinsum.integrations import CSource

EXAMPLES = """\b
Examples:
  feinsum export-c "xre,rij,ej->xei" --sizes x=3,r=3,e=Nel,i=10,j=10
  feinsum export-c "ij,jk->ik" --sizes i=m,j=64,k=64 --name product \\
      --output product.c product.h
"""

Name: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", help="Name of the function.")
]
Output: TypeAlias = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE.c FILE.h",
        help="Write the source and its header to these files, overwriting existing "
        "ones. Default: print the source.",
    ),
]


def export_c(
    subscripts: Subscripts,
    sizes: Sizes = None,
    operands: Operands = None,
    rows: Rows = None,
    dtype: Dtype = DEFAULT_DTYPE,
    name: Name = "feinsum_kernel",
    output: Output = None,
    effort: Effort = None,
    policy: Policy = None,
    device: Device = None,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """Write the best recipe of an einsum as a C function.

    The file needs only the C library, and uses OpenMP threads if compiled with
    OpenMP. Its comment says how to compile it, and how well the recipe fits this
    machine. For another machine, name a device like its own. Without a recipe, the
    function has the untransformed loops, and the exit code is 3.
    """
    from feinsum.integrations import c_source

    if output is not None:
        _check_files(*output)
    einsum = read_einsum(subscripts, sizes, operands, rows, dtype)
    made = c_source(
        einsum,
        name=name,
        device=device,
        database=database,
        policy=policy,
        effort=effort,
    )
    if output is not None:
        _write(made, *output)
    if as_json:
        print_json(_document(made, output))
    elif output is None:
        typer.echo(made.source)
    else:
        typer.echo(f"{made.signature};")
        say(f"wrote {output[0]} and {output[1]}; recipe: {made.recipe or 'none'}")
    if not made.recipe:
        words, command = unchanged_advice(einsum, database, device)
        say(f"no recipe was applied; {words}: {command}")
        raise typer.Exit(NO_FACT)


def _check_files(source: Path, header: Path) -> None:
    """Refuse files that cannot be written, before anything is looked up."""
    if source.resolve() == header.resolve():
        raise _refuse(f"{str(source)!r} is given twice")
    for path, suffix in ((source, ".c"), (header, ".h")):
        if path.suffix != suffix:
            raise _refuse(f"{str(path)!r} must end in {suffix}")
        if not path.parent.is_dir():
            raise _refuse(f"{str(path)!r}: there is no folder {str(path.parent)!r}")


def _write(made: CSource, source: Path, header: Path) -> None:
    for path, text in ((source, made.source), (header, made.header)):
        try:
            path.write_text(text)
        except OSError as error:
            raise _refuse(
                f"{str(path)!r} cannot be written: {error.strerror}"
            ) from None


def _document(made: CSource, output: tuple[Path, Path] | None) -> dict[str, object]:
    document: dict[str, object] = {
        "signature": made.signature,
        "recipe": made.recipe or None,
        "level": made.level,
    }
    if output is None:
        return document | {"source": made.source, "header": made.header}
    return document | {"files": list(map(str, output))}


def _refuse(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--output")
