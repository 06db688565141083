"""Violations of rules found by a checker, each with a code and a message."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from feinsum.errors import InvalidEinsumError

__all__ = ["Violation", "raise_if_any"]


class Violation(NamedTuple):
    """A broken rule: its stable code and what was given and expected."""

    rule: str
    message: str


def raise_if_any(broken: Iterable[Violation]) -> None:
    """Raise one :class:`InvalidEinsumError` that names every broken rule."""
    found = tuple(broken)
    if found:
        text = "; ".join(f"[{v.rule}] {v.message}" for v in found)
        rules = tuple(dict.fromkeys(v.rule for v in found))
        raise InvalidEinsumError(f"ill-formed einsum: {text}", rules=rules)
