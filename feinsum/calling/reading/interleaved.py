"""Operands alternating with index lists, as accepted by numpy and opt_einsum."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np

from feinsum.errors import InvalidEinsumError, InvalidTypeError
from feinsum.subscripts import write_subscripts

LETTERS = ascii_uppercase + ascii_lowercase
"""In the order in which implicit outputs are sorted."""


def as_subscripts(arguments: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Subscripts and operands of a call in either form.

    Args:
        arguments: subscripts and operands; or operands alternating with index lists,
            optionally followed by a list for the result. An index is a number, or
            anything hashable that can be sorted with the others.

    Raises:
        InvalidEinsumError: with the rule ``subscripts``; an InvalidTypeError for
            what is no list of indices.

    >>> as_subscripts(("ij,j", 1, 2))
    ('ij,j', (1, 2))
    >>> as_subscripts((1, [0, 7], 2, [7], [0]))
    ('AB,B->A', (1, 2))
    """
    if not arguments:
        raise _refused("there are no arguments")
    if isinstance(arguments[0], str):
        return arguments[0], tuple(arguments[1:])
    if isinstance(arguments[0], bytes):
        return arguments[0].decode(), tuple(arguments[1:])
    operands, lists = arguments[0:-1:2], arguments[1::2]
    has_output = len(arguments) % 2 == 1
    if has_output:
        lists = [*lists, arguments[-1]]
    terms = [_indices(term) for term in lists]
    names = _names({index for term in terms for index in term if index is not ...})
    named = [["..." if i is ... else names[i] for i in term] for term in terms]
    output = named.pop() if has_output else None
    return write_subscripts(named, output), tuple(operands)


def _indices(term: Any) -> tuple[Hashable, ...]:
    if isinstance(term, np.ndarray) and term.ndim == 1:
        term = term.tolist()
    if isinstance(term, Sequence) and not isinstance(term, str | bytes):
        try:
            return tuple(index for index in term if hash(index) is not None)
        except TypeError:
            pass
    raise _refused(f"{term!r:.60} is not a list of indices", InvalidTypeError)


def _names(indices: set[Hashable]) -> dict[Hashable, str]:
    """A letter for every index, or a longer name where these do not do."""
    try:
        ordered: list[Hashable] = sorted(indices)  # type: ignore[type-var]
    except TypeError:
        raise _refused(
            "indices of several kinds cannot be sorted; use integers"
        ) from None
    if len(ordered) <= len(LETTERS):
        return dict(zip(ordered, LETTERS, strict=False))
    digits = len(str(len(ordered)))
    return {index: f"i{k:0{digits}}" for k, index in enumerate(ordered)}


def _refused(
    why: str, kind: type[InvalidEinsumError] = InvalidEinsumError
) -> InvalidEinsumError:
    return kind(
        f"{why}; expected subscripts such as 'ij,jk->ik' first, or operands "
        "alternating with index lists: A, [0, 1], B, [1, 2], [0, 2]",
        rules=("subscripts",),
    )
