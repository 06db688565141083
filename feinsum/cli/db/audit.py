"""``feinsum db audit``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from feinsum.cli.shared.failure import FAILED
from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import ID_LENGTH, print_json, print_table
from feinsum.cli.shared.progress import counting

if TYPE_CHECKING:
    from feinsum.db.exchange import Odd
    from feinsum.records import Finding, TuningRecord

EXAMPLES = """\b
Examples:
  feinsum db audit
  feinsum db audit --database team.sqlite --json
"""

N_SHOWN = 50
"""How many findings are printed."""


def audit(database: Database = None, as_json: AsJson = False) -> None:
    """List implausible documents of a database; changes nothing.

    "refused" marks documents that would be refused today, "apart" those that this
    installation cannot judge. Exits with code 1 if any are refused.
    """
    from feinsum.db import opened_documents
    from feinsum.db.exchange import audit

    with (
        opened_documents(database, is_read_only=True) as store,
        counting("reading ...") as step,
    ):
        odd = list(audit(store, judge_recipe=_judge_recipe, on_step=step))
    if as_json:
        print_json([_document(entry) for entry in odd])
    else:
        _print(odd)
    if any(entry.is_refused for entry in odd):
        raise typer.Exit(FAILED)


def _judge_recipe(record: TuningRecord) -> Iterator[Finding]:
    """Judge whether the recipe is registered, and its parameters are in the space."""
    # Imports the code generator, which is slow: only this command needs it.
    from feinsum.errors import InvalidParameterError, TransformError
    from feinsum.ir import from_text
    from feinsum.records import CODES, Finding
    from feinsum.transforms import check_spec

    # A recipe of a newer feinsum or of a plug-in is unknown here, and no lie.
    try:
        check_spec(record.spec, from_text(record.workload_text))
    except InvalidParameterError as error:
        code = "unknown-parameters"
        yield Finding(code, str(error), CODES[code])
    except TransformError as error:
        code = "unknown-transform"
        yield Finding(code, str(error), CODES[code])


def _document(odd: Odd) -> dict[str, Any]:
    findings = [
        {**vars(finding), "is_refused": finding.is_refused} for finding in odd.findings
    ]
    return {"kind": odd.kind, "id": odd.id, "findings": findings}


def _print(entries: Sequence[Odd]) -> None:
    rows = [
        (
            finding.code,
            _printable(finding.given),
            "refused" if finding.is_refused else "apart",
            odd.kind,
            odd.id[:ID_LENGTH],
        )
        for odd in entries
        for finding in odd.findings
    ]
    if rows:
        print_table(("finding", "given"), ("class", "kind", "id"), rows[:N_SHOWN])
    if len(rows) > N_SHOWN:
        typer.echo(f"and {len(rows) - N_SHOWN} more; --json has all")
    n_refused = sum(odd.is_refused for odd in entries)
    typer.echo(
        f"{n_refused} would be refused, {len(entries) - n_refused} cannot be judged "
        "here"
    )


def _printable(text: str) -> str:
    """Return a text of others without control characters, which a terminal obeys."""
    return "".join(c if c.isprintable() else "?" for c in text[:60])
