"""``feinsum show``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

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
)
from feinsum.cli.shared.output import print_json
from feinsum.cli.shared.recommended import unchanged_advice
from feinsum.errors import InvalidRecordError

if TYPE_CHECKING:
    import loopy as lp

    from feinsum.ir import BatchedEinsum
    from feinsum.measure import OpenDevice
    from feinsum.records import TransformSpec

EXAMPLES = """\b
Examples:
  feinsum show "ij,jk->ik" --sizes i=n,j=64,k=64
  feinsum show "ij,j->i" --sizes i=n,j=4 \\
      --recipe "rowwise@1(block=64, index='a')"
  feinsum show plan.json --rank 3
"""

EinsumOrPlan: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="SUBSCRIPTS",
        help="The einsum, such as 'ij,j->i'; or a plan in a file NAME.json.",
        show_default=False,
    ),
]

Recipe: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="RECIPE",
        help="Apply this recipe, as printed by 'feinsum query', to the canonical "
        "einsum. Default: the best one that is recorded or predicted.",
    ),
]

Rank: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="R", help="Process of a plan whose steps are shown. Default: 0."
    ),
]


@dataclass(frozen=True)
class _Shown:
    """A kernel: its loop nest, and the code that is generated from it."""

    loops: str
    code: str


def show(
    subscripts: EinsumOrPlan,
    sizes: Sizes = None,
    operands: Operands = None,
    rows: Rows = None,
    dtype: Dtype = DEFAULT_DTYPE,
    recipe: Recipe = None,
    device: Device = None,
    database: Database = None,
    policy: Policy = None,
    effort: Effort = None,
    rank: Rank = None,
    as_json: AsJson = False,
) -> None:
    """Show loop nest and code, without and with a recipe; or a plan.

    Shows code for the device, and exits with code 3 if there is no recipe. For a
    plan, shows the blocks of every process and the steps of one.
    """
    if subscripts.endswith(".json"):
        _show_plan(Path(subscripts), rank or 0, as_json)
        return
    if rank is not None:
        raise typer.BadParameter("only plans have ranks", param_hint="--rank")
    from feinsum.measure import open_device

    einsum = read_einsum(subscripts, sizes, operands, rows, dtype)
    spec = None if recipe is None else _read_recipe(recipe)
    opened = open_device(device)
    if spec is None:
        options = {"database": database, "policy": policy, "effort": effort}
        before, after, applied = _looked_up(einsum, device, options)
    else:
        before, after, applied = _applied(einsum, spec)
    shown = {"before": _shown(before, opened)}
    if applied is not None:
        shown["after"] = _shown(after, opened)
    if as_json:
        print_json(
            {
                "recipe": applied,
                **{f"loops_{k}": one.loops for k, one in shown.items()},
                **{f"code_{k}": one.code for k, one in shown.items()},
            }
        )
    else:
        _print(applied, shown)
    if applied is None:
        words, command = unchanged_advice(einsum, database, device)
        say(f"no recipe was applied; {words}: {command}")
        raise typer.Exit(NO_FACT)


def _show_plan(path: Path, rank: int, as_json: bool) -> None:
    from feinsum.distributed.display import blocks_text, steps_text
    from feinsum.distributed.facts import plan_in, read_plan

    try:
        made = plan_in(read_plan(path.read_bytes()))
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from None
    steps = steps_text(made, rank)
    if as_json:
        blocks = blocks_text(made).splitlines()
        print_json({"plan": str(made), "blocks": blocks, "steps": steps.splitlines()})
        return
    typer.echo(f"{made}\n\n== blocks ==\n\n{blocks_text(made)}")
    typer.echo(f"\n== steps of rank {rank} ==\n\n{steps}")


def _read_recipe(text: str) -> TransformSpec:
    from feinsum.records import TransformSpec

    try:
        return TransformSpec.parse(text)
    except InvalidRecordError as error:
        raise typer.BadParameter(str(error), param_hint="--recipe") from None


def _looked_up(
    einsum: BatchedEinsum, device: str | None, options: dict[str, Any]
) -> tuple[lp.TranslationUnit, lp.TranslationUnit, str | None]:
    """The untransformed kernel, what retrieval makes of it, and the recipe."""
    from feinsum.codegen import generate_loopy
    from feinsum.retrieval import look_up

    plain = generate_loopy(einsum)
    found = look_up(plain, device=device, **options)
    return plain, found.t_unit, ", ".join(map(str, found.applied)) or None


def _applied(
    einsum: BatchedEinsum, spec: TransformSpec
) -> tuple[lp.TranslationUnit, lp.TranslationUnit, str]:
    """The kernel of the canonical einsum, of whose names the recipe speaks."""
    from feinsum.canonical import canonicalize
    from feinsum.ir import generalize
    from feinsum.measure import reference_of
    from feinsum.transforms import apply_spec

    canonical = canonicalize(generalize(einsum)[0]).einsum
    plain, nest = reference_of(canonical).kernel()
    return plain, apply_spec(spec, plain, nest), str(spec)


def _shown(t_unit: lp.TranslationUnit, opened: OpenDevice) -> _Shown:
    import loopy as lp

    from feinsum.measure import compile_kernel
    from feinsum.targets.quiet import quiet

    built = compile_kernel(t_unit, opened).t_unit
    with quiet(Warning):  # building them has said what there is to say
        code = lp.generate_code_v2(built).device_code()
    return _Shown(_loops(t_unit), code.strip())


def _loops(t_unit: lp.TranslationUnit) -> str:
    """The instructions in their loops, as Loopy prints them."""
    import loopy as lp

    kernel = lp.expand_subst(t_unit).default_entrypoint
    plain = kernel.copy(options=kernel.options.copy(allow_terminal_colors=False))
    text = str(plain.stringify(what={"instructions"}))
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(
        line for line in lines if line.strip("-") and line != "INSTRUCTIONS:"
    )


def _print(recipe: str | None, shown: dict[str, _Shown]) -> None:
    typer.echo(f"recipe: {recipe or 'none'}")
    for when, one in shown.items():
        typer.echo(f"\n== loop nest {when} ==\n\n{one.loops}")
    for when, one in shown.items():
        typer.echo(f"\n== code {when} ==\n\n{one.code}")
