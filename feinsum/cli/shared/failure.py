"""Report failures, and define the exit codes of the program."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from traceback import format_exception
from typing import TYPE_CHECKING

import typer

from feinsum.cli.shared.output import print_json
from feinsum.errors import (
    FeinsumError,
    InvalidEinsumError,
    InvalidOptionError,
    InvalidParameterError,
    NotAnEinsumError,
    UnknownTransformError,
)

if TYPE_CHECKING:
    from feinsum.db.exchange.files import Bad

FAILED, USAGE, NO_FACT, INTERRUPTED = 1, 2, 3, 130

DIFFERENT = 1
"""Exit code if two einsums differ; a failure also prints a line on stderr."""

_BAD_USAGE = (
    InvalidEinsumError,
    InvalidOptionError,
    InvalidParameterError,
    UnknownTransformError,
)

_BAD_CALL_RULES = ("kernel", "arguments")
"""Rules of a refused kernel that say how it was named, not what it computes."""

DEBUG_VARIABLE = "FEINSUM_DEBUG"
"""Deprecated environment variable, the same as ``feinsum --debug``."""


def is_bad_usage(error: FeinsumError) -> bool:
    """Return whether the command line is at fault rather than what it started."""
    # that a kernel is no einsum is a result of the program, not bad usage
    if isinstance(error, NotAnEinsumError):
        return error.rule in _BAD_CALL_RULES
    return isinstance(error, _BAD_USAGE)


def report_bad(bad: Bad) -> None:
    """Print on stderr which entry of a file or database was skipped, and why."""
    say(f"[{bad.problem.code}] {bad}")


def report_failure(error: FeinsumError | typer.TyperException, *, is_json: bool) -> int:
    """Report an error: one line on stderr, with ``is_json`` a document on stdout.

    Returns:
        The exit code.
    """
    if isinstance(error, FeinsumError):
        code, message = error.code, _join_lines(str(error))
        status = USAGE if is_bad_usage(error) else FAILED
    else:
        code, message, status = "usage", _format_usage_message(error), error.exit_code
    _print(code, message, is_json)
    return status


def _format_usage_message(error: typer.TyperException) -> str:
    message = error.format_message().replace("Value error, ", "")
    if (options := getattr(error, "possibilities", None)) is not None:
        # not Typer's own possibilities: "--" makes any two names similar
        message = error.message
        if near := _find_similar(getattr(error, "option_name", ""), options):
            return _join_lines(f"{message}. Did you mean '{near}'?")
    context = getattr(error, "ctx", None)
    if message.startswith(("Missing ", "No such option")) and context is not None:
        message = f"{message.rstrip('.')}; see '{context.command_path} --help'"
    return _join_lines(message)


def _find_similar(option: str, options: Iterable[str]) -> str | None:
    """Return the option with the most similar name, if any is similar."""
    names = {name.lstrip("-"): name for name in options}
    # 0.7: one letter in four may be wrong
    near = get_close_matches(option.lstrip("-"), names, n=1, cutoff=0.7)
    return names[near[0]] if near else None


def report_bug(error: Exception, *, is_json: bool, has_traceback: bool) -> int:
    """Report an unforeseen error, as :func:`report_failure` does.

    Args:
        error: the error.
        is_json: whether to print a document on stdout, too.
        has_traceback: whether to print the traceback, too.

    Returns:
        The exit code.
    """
    # a traceback frightens users, but a report of a bug needs one
    if has_traceback or os.environ.get(DEBUG_VARIABLE, "").strip():
        typer.echo("".join(format_exception(error)), err=True, nl=False)
    message = _join_lines(f"{type(error).__name__}: {error}")
    _print("internal", message, is_json)
    return FAILED


@contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM, which batch systems send, as Ctrl-C in the body."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Notes(logging.Handler):
    """Prints log records, each as a line on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


@contextmanager
def report_new_files() -> Iterator[None]:
    """Say in the body which databases and copies are created: a path may be misspelt.

    They are logged where they are created, for programs that configure logs.
    """
    log, notes = logging.getLogger("feinsum.db.sql.schema"), _Notes()
    level = log.level
    log.addHandler(notes)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(notes)
        log.setLevel(level)


def say(message: str) -> None:
    """Print one line on stderr, after the name of the program."""
    typer.echo(f"feinsum: {_join_lines(message)}", err=True)


def _print(code: str, message: str, is_json: bool) -> None:
    if is_json:
        print_json({"error": {"code": code, "message": message}}, is_line=True)
    say(f"[{code}] {message}")


def _join_lines(text: str) -> str:
    return " ".join(text.split())
