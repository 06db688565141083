"""``feinsum explain``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from feinsum.cli.shared.bounds import bound_of_first, least_text
from feinsum.cli.shared.failure import NO_FACT, is_bad_usage
from feinsum.cli.shared.fractions import fractions_of
from feinsum.cli.shared.options import AsJson, Database, Device, Effort, Policy
from feinsum.cli.shared.output import print_json, record_document
from feinsum.cli.shared.recommended import unchanged_advice
from feinsum.cli.shared.user_file import read_translation_unit
from feinsum.errors import NotAnEinsumError
from feinsum.records import Level

if TYPE_CHECKING:
    import loopy as lp

    from feinsum.records import FactSource
    from feinsum.retrieval import NestSelection, Retrieval

__all__ = ["EXAMPLES", "explain"]

EXAMPLES = """\b
Examples:
  feinsum explain wave.py
  feinsum explain wave.py --effort recorded
  feinsum explain wave.py:gradient --instructions "id:grad*" --json
"""


File: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py[:NAME]",
        help="A Python file, and the name of a Loopy translation unit in it, or of a "
        "function without arguments that returns one. Default: build. The file is "
        "run, up to the last assignment to a unit.",
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
    file: File,
    kernel_name: KernelName = None,
    instructions: Instructions = None,
    device: Device = None,
    database: Database = None,
    policy: Policy = None,
    effort: Effort = None,
    as_json: AsJson = False,
) -> None:
    """Explain the einsums of a kernel and their recipes.

    Shows what feinsum.retrieve would do. Exits with code 3 if it would return
    the kernel unchanged.
    """
    t_unit = read_translation_unit(file)
    text, document = _explain(
        t_unit,
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
        if one.applied is None and one.known.level == Level.MISS
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


def _marks(found: NestSelection, store: FactSource) -> list[str]:
    least = bound_of_first(found.match, store)
    if least is None:
        return []
    first = found.match.ranking[0].measurement
    return [
        f"bounds of {least.einsum} as it was measured:",
        least_text(least, first.median_s),
    ]


def _nest_document(found: NestSelection, store: FactSource) -> dict[str, Any]:
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
        "measured_here": sorted(found.own),
        "seen_here": [
            {"spec": str(spec), "judgement": words} for spec, words in found.seen
        ],
        "applied": None if found.applied is None else str(found.applied),
        "trusted": found.judgement or None,
    }


def _refusal(instructions: tuple[str, ...], rule: str, reason: str) -> dict[str, Any]:
    return {"instructions": list(instructions), "rule": rule, "reason": reason}
