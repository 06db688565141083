"""One error for every broken rule of a sparse array."""

from __future__ import annotations

from typing import NoReturn

from feinsum.errors import InvalidSparseArrayError

__all__ = ["reject"]


def reject(rule: str, message: str) -> NoReturn:
    """Raise the error of a rule: what was given, what was expected, what to do."""
    raise InvalidSparseArrayError(f"[{rule}] {message}", rule=rule)
