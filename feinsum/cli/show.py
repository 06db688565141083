"""``feinsum show``: loops and code of a recipe, or the steps of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from feinsum.cli.shared.options import (
    AsJson,
    CommandLookup,
    EinsumOptions,
    expand_groups,
)
from feinsum.cli.shared.output import check_reading, print_document
from feinsum.cli.shared.recommended import end_without_recipe
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


class _Kernel(NamedTuple):
    """A kernel: its loop nest, and the code that is generated from it."""

    loops: str
    code: str


@expand_groups
def show(
    subscripts: EinsumOrPlan,
    arrays: EinsumOptions,
    recipe: Recipe = None,
    *,
    lookup: CommandLookup,
    rank: Rank = None,
    as_json: AsJson = False,
) -> None:
    """Show loop nest and code, without and with a recipe; or a plan.

    Shows code for the device, and exits with code 3 if there is no recipe. For a
    plan, shows the blocks of every process and the steps of one.
    """
    # no einsum ends in a dot and letters
    if subscripts.endswith(".json"):
        _show_plan(Path(subscripts), rank or 0, as_json)
        return
    if rank is not None:
        raise typer.BadParameter("only plans have ranks", param_hint="--rank")
    from feinsum.measure import open_device

    einsum = arrays.read(subscripts)
    spec = None if recipe is None else _read_recipe(recipe)
    opened = open_device(lookup.device)
    if spec is None:
        before, after, applied = _look_up(einsum, lookup)
    else:
        before, after, applied = _apply(einsum, spec)
    kernels = {"before": _generate(before, opened)}
    if applied is not None:
        kernels["after"] = _generate(after, opened)
    document = {
        "recipe": applied,
        **{f"loops_{when}": kernel.loops for when, kernel in kernels.items()},
        **{f"code_{when}": kernel.code for when, kernel in kernels.items()},
    }

    def print_text() -> None:
        typer.echo(f"recipe: {applied or 'none'}")
        for when, kernel in kernels.items():
            typer.echo(f"\n== loop nest {when} ==\n\n{kernel.loops}")
        for when, kernel in kernels.items():
            typer.echo(f"\n== code {when} ==\n\n{kernel.code}")

    print_document(document, as_json, print_text)
    if applied is None:
        end_without_recipe(einsum, lookup.database, lookup.device)


def _show_plan(path: Path, rank: int, as_json: bool) -> None:
    from feinsum.distributed.display import format_blocks, format_steps
    from feinsum.distributed.facts import get_inner_plan, read_plan

    with check_reading(path):
        plan = get_inner_plan(read_plan(path.read_bytes()))
    blocks, steps = format_blocks(plan), format_steps(plan, rank)
    document = {
        "plan": str(plan),
        "blocks": blocks.splitlines(),
        "steps": steps.splitlines(),
    }
    text = (
        f"{plan}\n\n== blocks ==\n\n{blocks}\n\n== steps of rank {rank} ==\n\n{steps}"
    )
    print_document(document, as_json, lambda: typer.echo(text))


def _read_recipe(text: str) -> TransformSpec:
    from feinsum.records import TransformSpec

    try:
        return TransformSpec.parse(text)
    except InvalidRecordError as error:
        raise typer.BadParameter(str(error), param_hint="--recipe") from None


def _look_up(
    einsum: BatchedEinsum, lookup: CommandLookup
) -> tuple[lp.TranslationUnit, lp.TranslationUnit, str | None]:
    """Return the untransformed kernel, the retrieved kernel, and its recipe."""
    from feinsum.codegen import generate_loopy
    from feinsum.retrieval import look_up

    plain = generate_loopy(einsum)
    retrieved = look_up(plain, **lookup.as_arguments())
    return plain, retrieved.t_unit, ", ".join(map(str, retrieved.applied)) or None


def _apply(
    einsum: BatchedEinsum, spec: TransformSpec
) -> tuple[lp.TranslationUnit, lp.TranslationUnit, str]:
    """Return the canonical einsum's kernel, the transformed one, and the recipe."""
    from feinsum.canonical import canonicalize
    from feinsum.ir import generalize
    from feinsum.measure import make_reference
    from feinsum.transforms import apply_spec

    canonical = canonicalize(generalize(einsum)[0]).einsum
    plain, nest = make_reference(canonical).kernel()
    return plain, apply_spec(spec, plain, nest), str(spec)


def _generate(t_unit: lp.TranslationUnit, opened: OpenDevice) -> _Kernel:
    import loopy as lp

    from feinsum.measure import compile_kernel
    from feinsum.targets.quiet import quiet

    built = compile_kernel(t_unit, opened).t_unit
    with quiet(Warning):  # compilation has already warned
        code = lp.generate_code_v2(built).device_code()
    return _Kernel(_format_loops(t_unit), code.strip())


def _format_loops(t_unit: lp.TranslationUnit) -> str:
    """Return the instructions in their loops, as Loopy prints them."""
    import loopy as lp

    kernel = lp.expand_subst(t_unit).default_entrypoint
    # colors of a terminal would get into files and JSON
    plain = kernel.copy(options=kernel.options.copy(allow_terminal_colors=False))
    text = str(plain.stringify(what={"instructions"}))
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(
        line for line in lines if line.strip("-") and line != "INSTRUCTIONS:"
    )
