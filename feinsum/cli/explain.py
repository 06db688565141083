"""``feinsum explain``, and its alias for einsums ``feinsum query``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from feinsum.cli.shared.failure import NO_FACT, is_bad_usage
from feinsum.cli.shared.help import HelpAll
from feinsum.cli.shared.notation import read_program
from feinsum.cli.shared.options import (
    AsJson,
    CommandLookup,
    EinsumOptions,
    ProgramFile,
    Sparse,
    expand_groups,
)
from feinsum.cli.shared.output import print_document
from feinsum.cli.shared.recommended import (
    find_tried_recipes,
    make_unchanged_advice,
    tune_advice,
    tune_command,
)
from feinsum.cli.shared.records import (
    Fractions,
    bound_of_first,
    bound_text,
    compute_fractions,
    plan_documents,
    print_plans,
    print_records,
    record_document,
)
from feinsum.cli.shared.user_file import is_file, read_translation_unit
from feinsum.errors import NotAnEinsumError
from feinsum.words import format_count

if TYPE_CHECKING:
    import loopy as lp

    from feinsum.bounds import Bound
    from feinsum.calling import EinsumCall
    from feinsum.ir import BatchedEinsum
    from feinsum.records import Match, PlanRecord, TransformSpec
    from feinsum.retrieval import NestSelection

EXAMPLES = """\b
Examples:
  feinsum explain "xre,rij,ej->xei" --sizes x=3,r=3,e=Nel,i=20,j=20
  feinsum explain "ijk,ja,ka->ia" --sparse T.tns --sizes a=16
  feinsum explain --program attention.txt
  feinsum explain wave.py
  feinsum explain wave.py --effort recorded
  feinsum explain wave.py:gradient --instructions "id:grad*" --json
"""

QUERY_EXAMPLES = """\b
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


@expand_groups
def explain(
    target: Target = None,
    *,
    arrays: EinsumOptions,
    sparse: Sparse = None,
    kernel_name: KernelName = None,
    instructions: Instructions = None,
    lookup: CommandLookup,
    program: ProgramFile = None,
    as_json: AsJson = False,
    help_all: HelpAll = False,
) -> None:
    """Explain the recipes of an einsum, or of a kernel.

    For an einsum: candidates on record, best first, then recorded plans for many
    processes. If there is none as it is written, and all sizes are numbers, adjacent
    axes are merged, as calls of arrays do. Exits with code 3 if the policy accepts no
    candidate, and says which recipe would be used without one. The column "roof" is the
    fraction of the roofline, if the limits of the device were measured.

    For a kernel: what feinsum.retrieve would do. Exits with code 3 if it would
    return the kernel unchanged.
    """
    if target is None or not is_file(target):
        of_kernel = {"--kernel-name": kernel_name, "--instructions": instructions}
        _refuse_options("a kernel", of_kernel)
        _query(target, arrays, sparse, lookup, program, as_json)
        return
    # options of the other kind would be ignored silently
    of_einsum = {"--sparse": sparse, "--program": program}
    _refuse_options("an einsum", arrays.list_given() | of_einsum)
    text, document = _explain(
        read_translation_unit(target),
        kernel_name=kernel_name,
        instructions=instructions,
        **lookup.as_arguments(),
    )
    print_document(document, as_json, lambda: typer.echo(text))
    if not document["applied"]:
        raise typer.Exit(NO_FACT)


@expand_groups
def query(
    subscripts: OptionalSubscripts = None,
    *,
    arrays: EinsumOptions,
    sparse: Sparse = None,
    lookup: CommandLookup,
    program: ProgramFile = None,
    as_json: AsJson = False,
) -> None:
    """Print the facts about an einsum, as 'feinsum explain SUBSCRIPTS' does.

    Lists candidates, best first, then recorded plans for many processes. Exits with
    code 3 if the policy accepts no candidate, and says which recipe would be used
    without one. The column "roof" is the fraction of the roofline, if the limits of
    the device were measured (feinsum devices --measure).
    """
    _query(subscripts, arrays, sparse, lookup, program, as_json)


def _refuse_options(kind: str, options: Mapping[str, object]) -> None:
    """Refuse options that belong to the other kind of target."""
    for name, value in options.items():
        if value is not None:
            raise typer.BadParameter(f"this is an option of {kind}", param_hint=name)


def _query(
    subscripts: str | None,
    arrays: EinsumOptions,
    sparse: Path | None,
    lookup: CommandLookup,
    program: Path | None,
    as_json: bool,
) -> None:
    """Print the facts about an einsum, or the plans of a program."""
    if program is not None:
        options = lookup.device, lookup.policy, lookup.effort, sparse, subscripts
        # a dtype is harmless: a program declares its own
        has_options = arrays.list_given().keys() - {"--dtype"}
        if has_options or any(option is not None for option in options):
            raise typer.BadParameter(
                "an einsum and its options cannot be combined with a program",
                param_hint="--program",
            )
        _query_program(program, lookup.database, as_json)
    elif subscripts is None:
        raise typer.BadParameter(
            "give an einsum, such as 'ij,j->i', or --program", param_hint="SUBSCRIPTS"
        )
    else:
        _query_einsum(subscripts, arrays, sparse, lookup, as_json)


def _query_einsum(
    subscripts: str,
    arrays: EinsumOptions,
    sparse: Path | None,
    lookup: CommandLookup,
    as_json: bool,
) -> None:
    from feinsum import retrieval
    from feinsum.canonical import canonicalize
    from feinsum.db import opened_store
    from feinsum.ir import generalize

    einsum, profile = arrays.read_with_profile(subscripts, sparse)
    device, database = lookup.device, lookup.database
    key = canonicalize(generalize(einsum)[0]).key
    with opened_store(database, has_shipped=True) as store:
        plans = store.plans(key)
        options = lookup.as_arguments() | {"database": store}
        match = retrieval.query(einsum, sizes=profile, **options)
        # calls look it up as it is written, too, and then with merged axes
        call = None if match.ranking else _find_merged(einsum, key, device)
        if call is not None:
            einsum = call.einsum
            key = canonicalize(einsum).key
            match = retrieval.query(einsum, sizes=call.sizes, **options)
        fractions = compute_fractions(match.ranking, store)
        bound = bound_of_first(match, store)
        # look for trials only if advice needs them: this opens the device
        tried = None if match.ranking else find_tried_recipes(store, einsum, device)
        predicted, refusal = _find_usable(einsum, match, options)
    command = tune_command(einsum, sparse, arrays.sizes, database, device, tried)
    document = {
        "level": str(match.level),
        "reason": match.reason,
        "candidates": [record_document(r, fractions) for r in match.ranking],
        "predicted": list(map(str, predicted)),
        "bound": bound and bound.document(),
        "key": key,
        "plans": plan_documents(plans),
        "tried": tried and tried._asdict(),
        "tune": None if match.ranking else command,
    }

    def print_text() -> None:
        if call is not None:
            typer.echo(f"merged, as calls are: {einsum}")
        typer.echo(f"match: {match.level} ({match.reason})")
        if match.recipes:
            used = predicted[0] if predicted else f"none; {refusal}"
            typer.echo(f"used without a fact: {used}")
        if match.ranking:
            _print_candidates(match, fractions, bound)
        else:
            typer.echo(f"key: {key}\n{tune_advice(tried)}:\n  {command}")
        if plans:
            typer.echo("plans:")
            print_plans(plans)

    print_document(document, as_json, print_text)
    if not match.ranking:
        raise typer.Exit(NO_FACT)


def _find_merged(
    einsum: BatchedEinsum, key: str, device: str | None
) -> EinsumCall | None:
    """Return the einsum that a call of such arrays looks up; None if it is the same."""
    from feinsum.calling.structure import find_call_of
    from feinsum.canonical import canonicalize
    from feinsum.measure import open_device

    call = find_call_of(einsum) if open_device(device).reads_in_place else None
    is_other = call is not None and canonicalize(call.einsum).key != key
    return call if is_other else None


def _find_usable(
    einsum: BatchedEinsum, match: Match, options: Mapping[str, Any]
) -> tuple[Sequence[TransformSpec], str]:
    """Return the recipes that would be used without a fact, and why the first is not.

    Earlier trials on this machine may have shown that the predicted ones are no faster.
    """
    from feinsum.retrieval.lookup import recall_selection

    if not match.recipes:
        return (), ""
    try:
        selection = recall_selection(einsum, **options)
    except Exception:  # noqa: BLE001  # of Loopy, too; all are unverified then
        selection = None
    if selection is None or not selection.failures:
        return match.recipes, ""
    left = [candidate.recipe.spec for candidate in selection.candidates]
    first, reason = selection.failures[0]
    usable = [spec for spec in left if spec in match.recipes] or left
    return usable, f"{first}: {reason}"


def _print_candidates(match: Match, fractions: Fractions, bound: Bound | None) -> None:
    # one row for each recipe, with its best record
    best = {record.recipe: record for record in reversed(match.ranking)}
    shown = [record for record in match.ranking if best[record.recipe] is record]
    print_records(shown, fractions)
    if n := len(match.ranking) - len(shown):
        typer.echo(f"and {format_count(n, 'more record')} of these recipes; see --json")
    if bound is not None:
        typer.echo(bound_text(bound, match.ranking[0].measurement.median_s))


def _query_program(path: Path, database: str | None, as_json: bool) -> None:
    from feinsum.db import opened_store
    from feinsum.programs import program_key

    key = program_key(read_program(path))
    with opened_store(database, has_shipped=True) as store:
        plans: tuple[PlanRecord, ...] = tuple(store.plans(key))

    def print_text() -> None:
        if plans:
            print_plans(plans)
        else:
            typer.echo(f"no plan is recorded\nkey: {key}")

    print_document({"key": key, "plans": plan_documents(plans)}, as_json, print_text)
    if not plans:
        raise typer.Exit(NO_FACT)


def _explain(t_unit: lp.TranslationUnit, **options: Any) -> tuple[str, dict[str, Any]]:
    """Explain a kernel, as text and as data."""
    from feinsum import retrieval
    from feinsum.db import looked_up_store
    from feinsum.records import MatchLevel

    try:
        retrieved = retrieval.look_up(t_unit, **options)
    except NotAnEinsumError as error:
        # a missing kernel is bad usage; other failures are explained
        if is_bad_usage(error):
            raise
        refusal = _make_refusal(error.instructions, error.rule, str(error))
        text = retrieval.explain(t_unit, **options)
        return text, {"nests": [], "refused": [refusal], "applied": []}
    lines, nests = [str(retrieved)], []
    with looked_up_store(options["database"]) as store:
        for nest in retrieved.nests:
            ranking = nest.match.ranking
            bound = bound_of_first(nest.match, store)
            fractions = compute_fractions(ranking, store)
            nests.append(_make_nest_document(nest, fractions, bound))
            if bound is not None:
                lines.append(f"bounds of {bound.einsum} as it was measured:")
                lines.append(bound_text(bound, ranking[0].measurement.median_s))
    # for every nest, say how to tune it if no fast recipe is on record
    for nest, entry in zip(retrieved.nests, nests, strict=True):
        entry["tune"] = None
        if nest.applied is None and nest.best_match.level == MatchLevel.MISS:
            words, entry["tune"] = make_unchanged_advice(
                nest.nest.einsum, options["database"], options["device"]
            )
            lines.append(f"{words}:\n  {entry['tune']}")
    document = {
        "nests": nests,
        "refused": [
            _make_refusal(nest.instructions, nest.rule, nest.reason)
            for nest in retrieved.raised.refused
        ],
        "applied": [str(spec) for spec in retrieved.applied],
        "policy": retrieved.policy,
        "layers": [asdict(layer) for layer in retrieved.layers],
    }
    return "\n".join(lines), document


def _make_nest_document(
    selection: NestSelection, fractions: Fractions, bound: Bound | None
) -> dict[str, Any]:
    nest, match = selection.nest, selection.match
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
            {"spec": str(spec), "reason": reason} for spec, reason in selection.failures
        ],
        "bound": bound and bound.document(),
        "measured_here": sorted(selection.own_ids),
        "seen_here": [
            {"spec": str(spec), "judgement": words} for spec, words in selection.seen
        ],
        "applied": None if selection.applied is None else str(selection.applied),
        "trusted": selection.judgement or None,
    }


def _make_refusal(
    instructions: tuple[str, ...], rule: str, reason: str
) -> dict[str, Any]:
    return {"instructions": list(instructions), "rule": rule, "reason": reason}
