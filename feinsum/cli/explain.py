"""``feinsum explain``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from feinsum.cli.query import query
from feinsum.cli.shared.bounds import bound_of_first, least_text
from feinsum.cli.shared.failure import NO_FACT, is_bad_usage
from feinsum.cli.shared.fractions import fractions_of
from feinsum.cli.shared.notation import DEFAULT_DTYPE
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
from feinsum.cli.shared.output import print_json, record_document
from feinsum.cli.shared.programs import ProgramFile
from feinsum.cli.shared.recommended import unchanged_advice
from feinsum.cli.shared.user_file import is_file, read_translation_unit
from feinsum.errors import NotAnEinsumError
from feinsum.records import Level

if TYPE_CHECKING:
    import loopy as lp

    from feinsum.records import Store
    from feinsum.retrieval import NestSelection, Retrieval

EXAMPLES = """\b
Examples:
  feinsum explain "xre,rij,ej->xei" --sizes x=3,r=3,e=Nel,i=20,j=20
  feinsum explain "ijk,ja,ka->ia" --sparse T.tns --sizes a=16
  feinsum explain --program attention.txt
  feinsum explain wave.py
  feinsum explain wave.py --effort recorded
  feinsum explain wave.py:gradient --instructions "id:grad*" --json
"""


Target: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="SUBSCRIPTS|FILE.py[:NAME]",
        help="An einsum, such as 'ij,j->i', or its full text. Or a Python file, and "
        "the name of a Loopy translation unit in it, or of a function without "
        "arguments that returns one. Default: build. The file is run, up to the last "
        "assignment to a unit. Omit it with --program.",
        show_default=False,
    ),
]
KernelName: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Kernel of the unit, if it has several."),
]
Instructions: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="MATCH", help="Loopy match expression that selects instructions."
    ),
]


def explain(
    target: Target = None,
    sizes: Sizes = None,
    operands: Operands = None,
    rows: Rows = None,
    dtype: Dtype = DEFAULT_DTYPE,
    sparse: Sparse = None,
    kernel_name: KernelName = None,
    instructions: Instructions = None,
    device: Device = None,
    database: Database = None,
    policy: Policy = None,
    effort: Effort = None,
    program: ProgramFile = None,
    as_json: AsJson = False,
) -> None:
    """Explain the recipes of an einsum, or of a kernel.

    For an einsum: candidates on record, best first, then recorded plans for many
    processes. Exits with code 3 if the policy accepts no candidate, and says which
    recipe would be used without one. The column "roof" is the fraction of the
    roofline, if the limits of the device were measured.

    For a kernel: what feinsum.retrieve would do. Exits with code 3 if it would
    return the kernel unchanged.
    """
    of_kernel = {"--kernel-name": kernel_name, "--instructions": instructions}
    if target is None or not is_file(target):
        _refuse_options("a kernel", of_kernel)
        query(target, sizes, operands, rows, dtype, sparse, device, database, policy,
              effort, program, as_json)  # fmt: skip
        return
    of_einsum = {
        "--sizes": sizes,
        "--operands": operands,
        "--rows": rows,
        "--dtype": None if dtype == DEFAULT_DTYPE else dtype,
        "--sparse": sparse,
        "--program": program,
    }
    _refuse_options("an einsum", of_einsum)
    text, document = _explain(
        read_translation_unit(target),
        kernel_name=kernel_name,
        instructions=instructions,
        device=device,
        database=database,
        policy=policy,
        effort=effort,
    )
    if as_json:
        print_json(document)
    else:
        typer.echo(text)
    if not document["applied"]:
        raise typer.Exit(NO_FACT)


def _refuse_options(what: str, given: Mapping[str, object]) -> None:
    """Refuse options that belong to the other kind of target."""
    for name, value in given.items():
        if value is not None:
            raise typer.BadParameter(f"this is an option of {what}", param_hint=name)


def _explain(t_unit: lp.TranslationUnit, **options: Any) -> tuple[str, dict[str, Any]]:
    """The explanation as text and as data."""
    from feinsum import retrieval

    try:
        found = retrieval.look_up(t_unit, **options)
    except NotAnEinsumError as error:
        if is_bad_usage(error):
            raise
        refusal = _refusal(error.instructions, error.rule, str(error))
        document = {"nests": [], "refused": [refusal], "applied": []}
        return retrieval.explain(t_unit, **options), document
    document, marks = _document(found, options["database"])
    advice = _advice(found, options["database"], options["device"])
    for nest, one in zip(document["nests"], advice, strict=True):
        nest["tune"] = one and one[1]
    told = [f"{words}:\n  {command}" for words, command in filter(None, advice)]
    return "\n".join([str(found), *marks, *told]), document


def _advice(
    found: Retrieval, database: str | None, device: str | None
) -> list[tuple[str, str] | None]:
    """For every nest how to tune it, if nothing fast is on record."""
    return [
        unchanged_advice(one.nest.einsum, database, device)
        if one.applied is None and one.best_match.level == Level.MISS
        else None
        for one in found.nests
    ]


def _document(
    found: Retrieval, database: str | None
) -> tuple[dict[str, Any], list[str]]:
    """Everything as data, and a line on what the einsum of each fact costs at least."""
    from feinsum.db import looked_up_store

    with looked_up_store(database) as store:
        nests = [_nest_document(nest, store) for nest in found.nests]
        marks = [mark for nest in found.nests for mark in _marks(nest, store)]
    document = {
        "nests": nests,
        "refused": [
            _refusal(nest.instructions, nest.rule, nest.reason)
            for nest in found.raised.refused
        ],
        "applied": [str(spec) for spec in found.applied],
        "policy": found.policy,
        "layers": [asdict(layer) for layer in found.layers],
    }
    return document, marks


def _marks(found: NestSelection, store: Store) -> list[str]:
    least = bound_of_first(found.match, store)
    if least is None:
        return []
    first = found.match.ranking[0].measurement
    return [
        f"bounds of {least.einsum} as it was measured:",
        least_text(least, first.median_s),
    ]


def _nest_document(found: NestSelection, store: Store) -> dict[str, Any]:
    nest, match = found.nest, found.match
    fractions = fractions_of(match.ranking, store)
    least = bound_of_first(match, store)
    return {
        "einsum": str(nest.einsum),
        "instructions": list(nest.instructions),
        "canonical": nest.form.text,
        "key": nest.key,
        "level": str(match.level),
        "reason": match.reason,
        "distance": match.distance,
        "candidates": [record_document(record, fractions) for record in match.ranking],
        "passed_over": [
            {"spec": str(spec), "reason": why} for spec, why in found.failures
        ],
        "bound": None if least is None else least.document(),
        "measured_here": sorted(found.own_ids),
        "seen_here": [
            {"spec": str(spec), "judgement": words} for spec, words in found.seen
        ],
        "applied": None if found.applied is None else str(found.applied),
        "trusted": found.judgement or None,
    }


def _refusal(instructions: tuple[str, ...], rule: str, reason: str) -> dict[str, Any]:
    return {"instructions": list(instructions), "rule": rule, "reason": reason}
