"""A finding: one thing that was looked at, and what to do if it is not well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "State", "note", "ok", "problem"]

State = Literal["ok", "note", "problem"]
"""Well; worth knowing; something does not work."""


@dataclass(frozen=True)
class Finding:
    """One finding of the doctor.

    Attributes:
        check: a short name of what was looked at.
        text: what was seen.
        advice: what to do; empty if it is well.
    """

    check: str
    state: State
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """It is well."""
    return Finding(check, "ok", text)


def note(check: str, text: str, advice: str) -> Finding:
    """It works, but not everybody wants it so."""
    return Finding(check, "note", text, advice)


def problem(check: str, text: str, advice: str) -> Finding:
    """It does not work."""
    return Finding(check, "problem", text, advice)
