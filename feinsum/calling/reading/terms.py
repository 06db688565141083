"""Subscripts matched with the shapes of a call: extents and broadcasting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from feinsum.errors import InvalidEinsumError
from feinsum.subscripts import IndexList, parse_subscripts
from feinsum.words import counted

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Terms:
    """The index lists of a call after broadcasting.

    An axis of extent 1 whose index is longer elsewhere is dropped: the operand
    does not depend on that index.

    Attributes:
        inputs: for each operand its indices without those dropped.
        output: indices of the result.
        extents: of every index.
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
        inputs, output = _parsed(str(subscripts), ranks)
    except InvalidEinsumError:
        _check_ranks(parse_subscripts(subscripts, ranks)[0], shapes)  # names the shape
        raise
    extents = _quick_extents(inputs, shapes) or _extents(inputs, shapes)
    kept = tuple(
        tuple(i for i, n in zip(term, shape, strict=True) if n == extents[i])
        for term, shape in zip(inputs, shapes, strict=True)
    )
    return Terms(kept, output, extents)


@lru_cache(4096)
def _parsed(
    subscripts: str, ranks: tuple[int, ...]
) -> tuple[tuple[IndexList, ...], IndexList]:
    """The terms and the output of subscripts that fit these ranks.

    Raises:
        InvalidEinsumError: if they do not.
    """
    inputs, output = parse_subscripts(subscripts, ranks)
    if ranks != tuple(map(len, inputs)):
        raise InvalidEinsumError(
            "the ranks of terms and operands differ", rules=("rank",)
        )
    _check_output(inputs, output)
    return inputs, output


def _quick_extents(
    inputs: Sequence[IndexList], shapes: Sequence[Shape]
) -> dict[str, int] | None:
    """The extents where no axis is broadcast; None where some are, or clash."""
    extents: dict[str, int] = {}
    for term, shape in zip(inputs, shapes, strict=True):
        for index, extent in zip(term, shape, strict=True):
            if extents.setdefault(index, extent) != extent:
                return None
    return extents


def _check_ranks(inputs: Sequence[IndexList], shapes: Sequence[Shape]) -> None:
    for position, (term, shape) in enumerate(zip(inputs, shapes, strict=True)):
        if len(term) != len(shape):
            text = " ".join(term) or "(empty)"
            raise InvalidEinsumError(
                f"operand {position} has {counted(len(shape), 'axis')}, "
                f"shape {shape}; its term "
                f"{text!r} has {counted(len(term), 'index')}",
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


def _extents(inputs: Sequence[IndexList], shapes: Sequence[Shape]) -> dict[str, int]:
    """The extent of every index: the one that is not 1, if there is one."""
    longest: dict[str, _Axis] = {}
    here: dict[tuple[str, int], _Axis] = {}
    for found in _axes(inputs, shapes):
        # on a diagonal nothing is broadcast
        twin = here.setdefault((found.index, found.position), found)
        known = longest.setdefault(found.index, found)
        for other, may_be_one in ((twin, False), (known, True)):
            is_broadcast = may_be_one and 1 in (other.extent, found.extent)
            if other.extent != found.extent and not is_broadcast:
                raise InvalidEinsumError(
                    f"index {found.index!r} has {other} and {found}",
                    rules=("extent-clash",),
                )
        if known.extent == 1:
            longest[found.index] = found
    return {index: axis.extent for index, axis in longest.items()}


@dataclass(frozen=True)
class _Axis:
    index: str
    extent: int
    position: int
    axis: int

    def __str__(self) -> str:
        return f"extent {self.extent} on axis {self.axis} of operand {self.position}"


def _axes(inputs: Sequence[IndexList], shapes: Sequence[Shape]) -> Iterator[_Axis]:
    for position, (term, shape) in enumerate(zip(inputs, shapes, strict=True)):
        for axis, (index, extent) in enumerate(zip(term, shape, strict=True)):
            yield _Axis(index, extent, position, axis)


def in_letters(text: str, ranks: Sequence[int]) -> str:
    """Subscripts for numpy or opt_einsum, which know no names of several letters."""
    terms, output = parse_subscripts(text, ranks)
    names = dict.fromkeys(index for term in terms for index in term)
    if "..." in text or "{" not in text:
        return text
    from feinsum.paths import index_letter  # loads opt_einsum

    letter = {name: index_letter(k) for k, name in enumerate(names)}
    texts = ["".join(letter[name] for name in term) for term in (*terms, output)]
    return f"{','.join(texts[:-1])}->{texts[-1]}"
