"""Subscripts as people write them, to index lists and back.

``"xre,rij,ej->xei"``: as for :func:`numpy.einsum`, every letter is an index; the output
may be implicit, spaces mean nothing, and an ellipsis stands for further axes. Any other
character that is not part of the notation is an index, too, as in the networks of
opt_einsum and cotengra. A name of several characters is written in braces:
``"{cell}{dof},{dof}m->{cell}m"``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, count
from typing import TypeAlias

from feinsum.errors import InvalidEinsumError
from feinsum.words import format_count

IndexList: TypeAlias = tuple[str, ...]
"""The indices of a term, in the order of its axes."""
_NO_NAME = re.compile(r"[\s{},.|]|->")

ELLIPSIS = "..."
IGNORED = " \t\n\r"
"""Other white space is a name: opt_einsum's 8052nd symbol is a typographic space."""

_TOKEN = re.compile(r"\{(?P<name>[^{}]*)\}|(?P<ellipsis>\.\.\.)|(?P<letter>.)", re.S)
_NOTATION = frozenset("{}.->")


def is_index_name(name: object) -> bool:
    """Return whether an index can have this name in the text of an einsum."""
    return isinstance(name, str) and bool(name) and not _NO_NAME.search(name)


def parse_subscripts(
    subscripts: str, ranks: Sequence[int] | None = None
) -> tuple[tuple[IndexList, ...], IndexList]:
    """Return the index list of each term and of the output.

    Args:
        subscripts: as for :func:`numpy.einsum`, with longer names in braces.
        ranks: number of axes of each operand; needed for an ellipsis.

    Raises:
        InvalidEinsumError: with the rule ``subscripts``; with the rule ``rank`` if the
            terms fit the operands only as words separated by spaces.

    >>> parse_subscripts("ij,jk")
    ((('i', 'j'), ('j', 'k')), ('i', 'k'))
    >>> parse_subscripts("{cell}{dof}, {dof} -> {cell}")
    ((('cell', 'dof'), ('dof',)), ('cell',))
    >>> parse_subscripts("...i,i", ranks=(3, 1))
    ((('_0', '_1', 'i'), ('i',)), ('_0', '_1'))
    """
    output_text = _split_arrow(subscripts)[1]
    terms = _parse_terms(subscripts, ranks)
    fill = _name_ellipsis_indices(subscripts, terms, ranks)
    inputs = tuple(
        _expand(term, fill, None if ranks is None else ranks[p])
        for p, term in enumerate(terms)
    )
    # numpy's rule: the indices that occur once, sorted
    if output_text is None:
        return inputs, _infer_output(inputs, fill)
    output = _parse_names(subscripts, output_text)
    if fill and ELLIPSIS not in output:
        raise _refuse(subscripts, "has an ellipsis in a term but none in the output")
    return inputs, _expand(output, fill, None)


def write_subscripts(
    inputs: Iterable[Iterable[str]], output: Iterable[str] | None = None
) -> str:
    """Write index lists as text, with names of several letters in braces.

    Inverse of :func:`feinsum.ir.parse_subscripts`.

    >>> write_subscripts(["ij", "j"], "i")
    'ij,j->i'
    >>> write_subscripts([["cell", "i"], ["i"]], ["cell"])
    '{cell}i, i -> {cell}'
    """
    terms = ["".join(map(_format_name, term)) for term in inputs]
    result = None if output is None else "".join(map(_format_name, output))
    is_compact = "{" not in f"{''.join(terms)}{result}"
    comma, arrow = (",", "->") if is_compact else (", ", " -> ")
    return (
        comma.join(terms) if result is None else f"{comma.join(terms)}{arrow}{result}"
    )


def _format_name(name: str) -> str:
    is_letter = len(name) == 1 and name not in "-> \t\n\r"
    return name if is_letter or name == "..." else f"{{{name}}}"


def list_ellipsis_indices(subscripts: str, ranks: Sequence[int]) -> IndexList:
    """Return the names that :func:`parse_subscripts` gives to the axes of an ellipsis.

    >>> list_ellipsis_indices("...i,i", ranks=(3, 1))
    ('_0', '_1')
    """
    return _name_ellipsis_indices(subscripts, _parse_terms(subscripts, ranks), ranks)


def convert_words(text: str) -> str:
    """Return the subscripts of terms whose names are separated by spaces.

    >>> convert_words("cell dof, dof -> cell")
    '{cell}{dof}, {dof} -> {cell}'
    """
    terms, arrow, output = text.partition("->")
    lists = [
        term.replace(ELLIPSIS, f" {ELLIPSIS} ").split() for term in terms.split(",")
    ]
    names = output.replace(ELLIPSIS, f" {ELLIPSIS} ").split()
    return write_subscripts(lists, names if arrow else None)


def _parse_terms(subscripts: str, ranks: Sequence[int] | None) -> list[IndexList]:
    """Return the names in each term."""
    texts = _split_arrow(subscripts)[0].split(",")
    if ranks is not None and len(ranks) != len(texts):
        raise _refuse(
            subscripts,
            f"has {format_count(len(texts), 'term')} but "
            f"{format_count(len(ranks), 'operand')} "
            f"{'was' if len(ranks) == 1 else 'were'} given",
        )
    terms = [_parse_names(subscripts, text) for text in texts]
    if ranks is not None and not all(map(_has_rank, terms, ranks)):
        _refuse_words(subscripts, terms, ranks)
    return terms


def _has_rank(term: Sequence[str], rank: int) -> bool:
    return len(term) == rank or (ELLIPSIS in term and len(term) - 1 <= rank)


def _refuse_words(
    subscripts: str, terms: Sequence[IndexList], ranks: Sequence[int]
) -> None:
    """Refuse letters that do not fit where words, which were read once, would."""
    texts = subscripts.partition("->")[0].split(",")
    words = [text.replace(ELLIPSIS, f" {ELLIPSIS} ").split() for text in texts]
    # it is no text of words, either: the general message says more
    if "{" in subscripts or not all(map(_has_rank, words, ranks)):
        return
    wrong = next(p for p, term in enumerate(terms) if not _has_rank(term, ranks[p]))
    n = sum(name != ELLIPSIS for name in terms[wrong])
    raise InvalidEinsumError(
        f"subscripts {subscripts!r:.200}: every letter is an index, so the term of "
        f"operand {wrong} has {n}, and the operand has "
        f"{format_count(ranks[wrong], 'axis')}; a name of several letters is written "
        f"in braces: {convert_words(subscripts)!r:.200}",
        rules=("rank",),
    )


def _split_arrow(subscripts: str) -> tuple[str, str | None]:
    if not isinstance(subscripts, str):
        raise InvalidEinsumError(
            f"subscripts must be text such as 'ij,jk->ik', not {subscripts!r}",
            rules=("subscripts",),
        )
    match subscripts.split("->"):
        case [terms]:
            return terms, None
        case [terms, output] if "," not in output:
            return terms, output
        case [_, _]:
            raise _refuse(subscripts, "has a comma after '->'; give one output term")
    raise _refuse(subscripts, "has more than one '->'")


def _parse_names(subscripts: str, text: str) -> IndexList:
    """Return the names of a term, and its ellipsis."""
    names = []
    for token in _TOKEN.finditer(text):
        name = token["name"]
        if name is None:
            name = token[0]
            if name in IGNORED:
                continue
            _check_letter(subscripts, name)
        elif not is_index_name(name):
            raise _refuse(subscripts, f"has {token[0]!r}; expected one name in braces")
        names.append(name)
    if names.count(ELLIPSIS) > 1:
        raise _refuse(subscripts, f"has more than one ellipsis in the term {text!r}")
    return tuple(names)


def _check_letter(subscripts: str, letter: str) -> None:
    if letter not in _NOTATION:
        return
    hint = "; an arrow is written '->'" if letter in "->" else ""
    raise _refuse(subscripts, f"has {letter!r}, which is not an index name{hint}")


def _name_ellipsis_indices(
    subscripts: str, terms: Sequence[IndexList], ranks: Sequence[int] | None
) -> IndexList:
    """Return new names for the longest ellipsis; shorter ones take its last names."""
    if not any(ELLIPSIS in term for term in terms):
        return ()
    if ranks is None:
        raise _refuse(subscripts, "has an ellipsis; the operands' ranks are needed")
    lengths = []
    for p, (term, rank) in enumerate(zip(terms, ranks, strict=True)):
        if ELLIPSIS in term:
            lengths.append(rank - (len(term) - 1))
            if lengths[-1] < 0:
                raise _refuse(
                    subscripts,
                    f"names {format_count(len(term) - 1, 'axis')} of operand "
                    f"{p}, which has {rank}",
                )
    used = set(chain.from_iterable(terms))
    # names that the caller has not used
    fresh = (name for k in count() if (name := f"_{k}") not in used)
    return tuple(next(fresh) for _ in range(max(lengths)))


def _expand(term: IndexList, fill: IndexList, rank: int | None) -> IndexList:
    if ELLIPSIS not in term:
        return term
    position = term.index(ELLIPSIS)
    length = len(fill) if rank is None else rank - (len(term) - 1)
    # aligned from the last axis, as numpy broadcasts
    return (*term[:position], *fill[len(fill) - length :], *term[position + 1 :])


def _infer_output(inputs: Sequence[IndexList], fill: IndexList) -> IndexList:
    """Return the ellipsis, then the names that occur once, sorted (as numpy does)."""
    counts = Counter(name for term in inputs for name in term)
    once = sorted(name for name, n in counts.items() if n == 1 and name not in fill)
    return (*fill, *once)


def _refuse(subscripts: str, problem: str) -> InvalidEinsumError:
    return InvalidEinsumError(
        f"subscripts {subscripts!r}: the text {problem}", rules=("subscripts",)
    )
