"""Subscripts in either notation, matched with the shapes of a call.

``A, [0, 1], B, [1, 2]`` and ``"ij,jk", A, B`` are one call. Matching finds the extent
of every index, and drops the axes that are broadcast. With shapes (2, 3) and (1, 4)::

    "ij,jk"    i=2  j=3  k=4    terms ij, k: the second operand does not depend on j
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Any

import numpy as np

from feinsum.errors import InvalidEinsumError, InvalidTypeError
from feinsum.subscripts import IndexList, parse_subscripts, write_subscripts
from feinsum.words import format_count

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Terms:
    """The index lists of a call after broadcasting.

    An axis of extent 1 whose index is longer elsewhere is dropped: the operand
    does not depend on that index.

    Attributes:
        inputs: indices of each operand, without those dropped.
        output: indices of the result.
        extents: extent of every index.
    """

    inputs: tuple[IndexList, ...]
    output: IndexList
    extents: Mapping[str, int]


def read_terms(subscripts: str, shapes: Sequence[Shape]) -> Terms:
    """Parse subscripts and match them with shapes.

    Raises:
        InvalidEinsumError: with the rule ``subscripts``, ``rank``,
            ``extent-clash``, ``unbound-output-index`` or
            ``repeated-output-index``; operands are counted from 0.

    >>> read_terms("ij,jk", [(2, 3), (1, 4)]).inputs
    (('i', 'j'), ('k',))
    """
    ranks = tuple(map(len, shapes))
    try:
        inputs, output = _parse_cached(str(subscripts), ranks)
    except InvalidEinsumError:
        # prefer an error that names the shape
        _check_ranks(parse_subscripts(subscripts, ranks)[0], shapes)
        raise
    extents = _find_extents(inputs, shapes)
    inputs_kept = tuple(
        tuple(i for i, n in zip(term, shape, strict=True) if n == extents[i])
        for term, shape in zip(inputs, shapes, strict=True)
    )
    return Terms(inputs_kept, output, extents)


@lru_cache(4096)
def _parse_cached(
    subscripts: str, ranks: tuple[int, ...]
) -> tuple[tuple[IndexList, ...], IndexList]:
    """Parse subscripts, and check them against ranks.

    Raises:
        InvalidEinsumError: if they do not fit.
    """
    inputs, output = parse_subscripts(subscripts, ranks)
    if ranks != tuple(map(len, inputs)):
        raise InvalidEinsumError(
            "the ranks of terms and operands differ", rules=("rank",)
        )
    _check_output(inputs, output)
    return inputs, output


def _check_ranks(inputs: Sequence[IndexList], shapes: Sequence[Shape]) -> None:
    for position, (term, shape) in enumerate(zip(inputs, shapes, strict=True)):
        if len(term) != len(shape):
            text = " ".join(term) or "(empty)"
            raise InvalidEinsumError(
                f"operand {position} has {format_count(len(shape), 'axis')}, "
                f"shape {shape}; its term "
                f"{text!r} has {format_count(len(term), 'index')}",
                rules=("rank",),
            )


def _check_output(inputs: Sequence[IndexList], output: IndexList) -> None:
    bound = {index for term in inputs for index in term}
    for axis, index in enumerate(output):
        if index not in bound:
            raise InvalidEinsumError(
                f"output index {index!r} occurs in no term; they have "
                f"{', '.join(sorted(bound))}",
                rules=("unbound-output-index",),
            )
        if index in output[:axis]:
            raise InvalidEinsumError(
                f"output index {index!r} is repeated", rules=("repeated-output-index",)
            )


def _find_extents(
    inputs: Sequence[IndexList], shapes: Sequence[Shape]
) -> dict[str, int]:
    """Return the extent of every index; an axis of extent 1 is broadcast to another."""
    extents: dict[str, int] = {}
    for position, (term, shape) in enumerate(zip(inputs, shapes, strict=True)):
        for axis, (index, extent) in enumerate(zip(term, shape, strict=True)):
            other, twin = extents.setdefault(index, extent), shape[term.index(index)]
            if other == extent == twin:
                continue
            # the axes of a diagonal, within one operand, are never broadcast
            if twin != extent or 1 not in (other, extent):
                raise _make_clash_error(inputs, shapes, position, axis)
            extents[index] = extent if other == 1 else other
    return extents


def _make_clash_error(
    inputs: Sequence[IndexList], shapes: Sequence[Shape], position: int, axis: int
) -> InvalidEinsumError:
    """Return the error of an axis that clashes with an earlier one of its index."""
    index, extent = inputs[position][axis], shapes[position][axis]
    other, operand, n = next(
        (other, k, n)
        for k, (term, shape) in enumerate(zip(inputs, shapes, strict=True))
        for n, other in enumerate(shape)
        if term[n] == index and other != extent
        if k == position or 1 not in (other, extent)
    )
    return InvalidEinsumError(
        f"index {index!r} has extent {other} on axis {n} of operand {operand} and "
        f"extent {extent} on axis {axis} of operand {position}",
        rules=("extent-clash",),
    )


def write_in_letters(text: str, ranks: Sequence[int]) -> str:
    """Write subscripts for numpy or opt_einsum, which have no names in braces."""
    terms, output = parse_subscripts(text, ranks)
    names = dict.fromkeys(index for term in terms for index in term)
    if "..." in text or "{" not in text:
        return text
    from feinsum.contraction.paths import get_index_letter  # loads opt_einsum

    letter = {name: get_index_letter(k) for k, name in enumerate(names)}
    texts = ["".join(letter[name] for name in term) for term in (*terms, output)]
    return f"{','.join(texts[:-1])}->{texts[-1]}"


LETTERS = ascii_uppercase + ascii_lowercase
"""In the order in which implicit outputs are sorted."""


def as_subscripts(arguments: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """Return the subscripts and operands of a call in either notation.

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
        raise _make_refusal("there are no arguments")
    if isinstance(arguments[0], str):
        return arguments[0], tuple(arguments[1:])
    # numpy allows bytes, too
    if isinstance(arguments[0], bytes):
        return arguments[0].decode(), tuple(arguments[1:])
    operands, lists = arguments[0:-1:2], arguments[1::2]
    has_output = len(arguments) % 2 == 1
    if has_output:
        lists = [*lists, arguments[-1]]
    terms = [_parse_indices(term) for term in lists]
    names = _name_indices(
        {index for term in terms for index in term if index is not ...}
    )
    named = [["..." if i is ... else names[i] for i in term] for term in terms]
    output = named.pop() if has_output else None
    return write_subscripts(named, output), tuple(operands)


def _parse_indices(term: Any) -> tuple[Hashable, ...]:
    if isinstance(term, np.ndarray) and term.ndim == 1:
        term = term.tolist()
    if isinstance(term, Sequence) and not isinstance(term, str | bytes):
        try:
            return tuple(index for index in term if hash(index) is not None)
        except TypeError:
            pass
    raise _make_refusal(f"{term!r:.60} is not a list of indices", InvalidTypeError)


def _name_indices(indices: set[Hashable]) -> dict[Hashable, str]:
    """Return a letter for every index, or longer names if there are too few letters."""
    try:
        ordered: list[Hashable] = sorted(indices)  # type: ignore[type-var]
    except TypeError:
        raise _make_refusal(
            "indices of several kinds cannot be sorted; use integers"
        ) from None
    if len(ordered) <= len(LETTERS):
        return dict(zip(ordered, LETTERS, strict=False))
    # padded, so that names sort as the indices do
    digits = len(str(len(ordered)))
    return {index: f"i{k:0{digits}}" for k, index in enumerate(ordered)}


def _make_refusal(
    why: str, kind: type[InvalidEinsumError] = InvalidEinsumError
) -> InvalidEinsumError:
    return kind(
        f"{why}; expected subscripts such as 'ij,jk->ik' first, or operands "
        "alternating with index lists: A, [0, 1], B, [1, 2], [0, 2]",
        rules=("subscripts",),
    )
