"""``feinsum query``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from feinsum.cli.shared.bounds import bound_of_first, least_text
from feinsum.cli.shared.failure import NO_FACT
from feinsum.cli.shared.fractions import Fractions, fractions_of
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
    Sparse,
)
from feinsum.cli.shared.output import print_json, print_records, record_document
from feinsum.cli.shared.plans import plan_documents, print_plans
from feinsum.cli.shared.programs import ProgramFile, read_program
from feinsum.cli.shared.recommended import tried_here, tune_advice, tune_command
from feinsum.cli.shared.sparse import read_sparse_einsum
from feinsum.words import counted

if TYPE_CHECKING:
    from feinsum.bounds import Bound
    from feinsum.records import Match

EXAMPLES = """\b
Examples:
  feinsum query "xre,rij,ej->xei" --sizes x=3,r=3,e=Nel,i=20,j=20
  feinsum query "ij,j->i" --sizes i=n,j=4 --device Tesla --policy loose
  feinsum query "ijk,ja,ka->ia" --sparse T.tns --sizes a=16
  feinsum query --program attention.txt
"""

OptionalSubscripts: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="SUBSCRIPTS",
        help="The einsum, such as 'ij,j->i' or '{cell}{dof}, {dof} -> {cell}'; or its "
        "text, as printed by 'feinsum canonicalize'; omit it with --program.",
        show_default=False,
    ),
]


def query(
    subscripts: OptionalSubscripts = None,
    sizes: Sizes = None,
    operands: Operands = None,
    rows: Rows = None,
    dtype: Dtype = DEFAULT_DTYPE,
    sparse: Sparse = None,
    device: Device = None,
    database: Database = None,
    policy: Policy = None,
    effort: Effort = None,
    program: ProgramFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the facts about an einsum, as 'feinsum explain SUBSCRIPTS' does.

    Lists candidates, best first, then recorded plans for many processes. Exits with
    code 3 if the policy accepts no candidate, and says which recipe would be used
    without one. The column "roof" is the fraction of the roofline, if the limits of
    the device were measured (feinsum devices --measure).
    """
    if program is not None:
        of_einsum = (subscripts, sizes, operands, rows, sparse, device, policy, effort)
        if any(one is not None for one in of_einsum):
            raise typer.BadParameter(
                "an einsum and its options cannot be combined with a program",
                param_hint="--program",
            )
        _query_program(program, database, as_json)
        return
    if subscripts is None:
        raise typer.BadParameter(
            "give an einsum, such as 'ij,j->i', or --program", param_hint="SUBSCRIPTS"
        )
    from feinsum import retrieval
    from feinsum.canonical import canonicalize
    from feinsum.db import opened_store
    from feinsum.ir import generalize

    profile: dict[str, int] = {}
    if sparse is None:
        einsum = read_einsum(subscripts, sizes, operands, rows, dtype)
    else:
        einsum, profile = read_sparse_einsum(
            subscripts, sparse, sizes, operands, rows, dtype
        )
    with opened_store(database, has_shipped=True) as store:
        match = retrieval.query(
            einsum,
            device=device,
            database=store,
            policy=policy,
            effort=effort,
            sizes=profile,
        )
        fractions = fractions_of(match.ranking, store)
        least = bound_of_first(match, store)
        key = canonicalize(generalize(einsum)[0]).key
        plans = store.plans(key)
        tried = None if match.ranking else tried_here(store, einsum, device)
    command = tune_command(einsum, sparse, sizes, database, device, tried)
    if as_json:
        print_json(
            {
                "level": str(match.level),
                "reason": match.reason,
                "candidates": [record_document(r, fractions) for r in match.ranking],
                "predicted": [str(spec) for spec in match.recipes],
                "bound": None if least is None else least.document(),
                "key": key,
                "plans": plan_documents(plans),
                "tried": None if tried is None else tried._asdict(),
                "tune": None if match.ranking else command,
            }
        )
    else:
        _print(match, fractions, least)
        if not match.ranking:
            typer.echo(f"key: {key}")
            typer.echo(f"{tune_advice(tried)}:\n  {command}")
        if plans:
            typer.echo("plans:")
            print_plans(plans)
    if not match.ranking:
        raise typer.Exit(NO_FACT)


def _query_program(path: Path, database: str | None, as_json: bool) -> None:
    from feinsum.db import opened_store
    from feinsum.programs import program_key

    key = program_key(read_program(path))
    with opened_store(database, has_shipped=True) as store:
        plans = store.plans(key)
    if as_json:
        print_json({"key": key, "plans": plan_documents(plans)})
    elif plans:
        print_plans(plans)
    else:
        typer.echo(f"no plan is recorded\nkey: {key}")
    if not plans:
        raise typer.Exit(NO_FACT)


def _print(match: Match, fractions: Fractions, least: Bound | None) -> None:
    typer.echo(f"match: {match.level} ({match.reason})")
    if match.recipes:
        typer.echo(f"used without a fact: {match.recipes[0]}")
    if match.ranking:
        best = {record.recipe: record for record in reversed(match.ranking)}
        shown = [record for record in match.ranking if best[record.recipe] is record]
        print_records(shown, fractions)
        if n := len(match.ranking) - len(shown):
            typer.echo(f"and {counted(n, 'more record')} of these recipes; see --json")
        if least is not None:
            typer.echo(least_text(least, match.ranking[0].measurement.median_s))
