"""How failures are reported, and the exit codes of the program."""

from __future__ import annotations

import typer

from feinsum.cli.output import print_json
from feinsum.errors import (
    FeinsumError,
    InvalidEinsumError,
    InvalidParameterError,
    UnknownTransformError,
)

__all__ = ["FAILED", "INTERRUPTED", "NO_FACT", "USAGE", "report_failure", "say"]

FAILED, USAGE, NO_FACT, INTERRUPTED = 1, 2, 3, 130

_BAD_USAGE = (InvalidEinsumError, InvalidParameterError, UnknownTransformError)


def report_failure(error: FeinsumError | typer.TyperException, *, is_json: bool) -> int:
    """Report an error: one line on stderr, with ``is_json`` a document on stdout.

    Returns:
        The exit code.
    """
    if isinstance(error, FeinsumError):
        code, message = error.code, _one_line(str(error))
        status = USAGE if isinstance(error, _BAD_USAGE) else FAILED
    else:
        code, message = "usage", _one_line(error.format_message())
        status = error.exit_code
    if is_json:
        print_json({"error": {"code": code, "message": message}}, is_line=True)
    say(f"[{code}] {message}")
    return status


def say(message: str) -> None:
    """One line on stderr, under the program's name."""
    typer.echo(f"feinsum: {message}", err=True)


def _one_line(text: str) -> str:
    return " ".join(text.split())
