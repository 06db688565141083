"""``feinsum export-c``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from feinsum.cli.shared.failure import say
from feinsum.cli.shared.options import (
    AsJson,
    Database,
    Device,
    Effort,
    EinsumOptions,
    Policy,
    Subscripts,
    expand_groups,
)
from feinsum.cli.shared.output import check_output_file, check_writing, print_json
from feinsum.cli.shared.recommended import end_without_recipe

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


@expand_groups
def export_c(
    subscripts: Subscripts,
    arrays: EinsumOptions,
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
    einsum = arrays.read(subscripts)
    code = c_source(
        einsum,
        name=name,
        device=device,
        database=database,
        policy=policy,
        effort=effort,
    )
    if output is not None:
        for path, text in zip(output, (code.source, code.header), strict=True):
            with check_writing(path, "--output"):
                path.write_text(text)
    if as_json:
        document = {
            "signature": code.signature,
            "recipe": code.recipe or None,
            "level": code.level,
        }
        texts = {"source": code.source, "header": code.header}
        files = {"files": list(map(str, output or ()))}
        print_json(document | (files if output else texts))
    elif output is None:
        typer.echo(code.source)
    else:
        typer.echo(f"{code.signature};")
        say(f"wrote {output[0]} and {output[1]}; recipe: {code.recipe or 'none'}")
    # the file is written in any case; scripts see the exit code
    if not code.recipe:
        end_without_recipe(einsum, database, device)


def _check_files(source: Path, header: Path) -> None:
    """Refuse files that cannot be written, before anything is looked up."""
    if source.resolve() == header.resolve():
        raise typer.BadParameter(
            f"{str(source)!r} is given twice", param_hint="--output"
        )
    check_output_file(source, [".c"], "--output")
    check_output_file(header, [".h"], "--output")
