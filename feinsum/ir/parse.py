"""Subscripts as people write them, to index lists.

Understood: letters (``"xre,rij,ej->xei"``), words separated by spaces
(``"cell dof, dof mode -> cell mode"``), implicit output, ellipsis, upper case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import count

from feinsum.errors import InvalidEinsumError
from feinsum.ir.einsum import IndexList
from feinsum.words import counted

__all__ = ["ellipsis_indices", "parse_subscripts"]

ELLIPSIS = "..."


def parse_subscripts(
    subscripts: str, ranks: Sequence[int] | None = None
) -> tuple[tuple[IndexList, ...], IndexList]:
    """The index list of each term and of the output.

    A term is read as words if that gives every operand one index per axis, and
    as letters otherwise; the two readings differ only where a name has more
    than one letter. Where both will do, for want of ``ranks`` or because of an
    ellipsis, only a space next to a name longer than a letter asks for words.

    Args:
        subscripts: as for :func:`numpy.einsum`, or with words.
        ranks: number of axes of each operand; needed for an ellipsis.

    Raises:
        InvalidEinsumError: with the rule ``subscripts``.

    >>> parse_subscripts("ij,jk")
    ((('i', 'j'), ('j', 'k')), ('i', 'k'))
    >>> parse_subscripts("cell dof, dof -> cell")
    ((('cell', 'dof'), ('dof',)), ('cell',))
    >>> parse_subscripts("...i,i", ranks=(3, 1))
    ((('_0', '_1', 'i'), ('i',)), ('_0', '_1'))
    """
    output_text = _split_arrow(subscripts)[1]
    terms, as_words = _terms(subscripts, ranks)
    fill = _ellipsis_indices(subscripts, terms, ranks)
    inputs = tuple(
        _expand(term, fill, None if ranks is None else ranks[p])
        for p, term in enumerate(terms)
    )
    if output_text is None:
        return inputs, _implicit_output(inputs, fill)
    output = _tokens(subscripts, output_text, as_words)
    if fill and ELLIPSIS not in output:
        raise _refuse(subscripts, "has an ellipsis in a term but none in the output")
    if ELLIPSIS in output and not any(ELLIPSIS in term for term in terms):
        raise _refuse(subscripts, "has an ellipsis in the output but in no term")
    return inputs, _expand(output, fill, None)


def ellipsis_indices(subscripts: str, ranks: Sequence[int]) -> IndexList:
    """The names that :func:`parse_subscripts` gives to the axes of an ellipsis.

    >>> ellipsis_indices("...i,i", ranks=(3, 1))
    ('_0', '_1')
    """
    return _ellipsis_indices(subscripts, _terms(subscripts, ranks)[0], ranks)


def _terms(
    subscripts: str, ranks: Sequence[int] | None
) -> tuple[list[IndexList], bool]:
    """The names in each term, and whether they are words."""
    texts = _split_arrow(subscripts)[0].split(",")
    if ranks is not None and len(ranks) != len(texts):
        raise _refuse(
            subscripts,
            f"has {counted(len(texts), 'term')} but {counted(len(ranks), 'operand')} "
            f"{'was' if len(ranks) == 1 else 'were'} given",
        )
    as_words = _is_read_as_words(texts, ranks)
    return [_tokens(subscripts, text, as_words) for text in texts], as_words


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


def _is_read_as_words(texts: Sequence[str], ranks: Sequence[int] | None) -> bool:
    parts = [part.split() for text in texts for part in text.split(ELLIPSIS)]
    has_space = any(len(part) > 1 and _has_word(part) for part in parts)
    if ranks is None:
        return has_space
    words = [text.replace(ELLIPSIS, " ").split() for text in texts]

    def fits(terms: Sequence[Sequence[str]]) -> bool:
        return all(
            len(term) == rank or (ELLIPSIS in text and len(term) <= rank)
            for term, text, rank in zip(terms, texts, ranks, strict=True)
        )

    letters = ["".join(term) for term in words]
    return (
        any(map(_has_word, words)) and fits(words) and (has_space or not fits(letters))
    )


def _has_word(names: Sequence[str]) -> bool:
    return any(len(name) > 1 for name in names)


def _tokens(subscripts: str, text: str, as_words: bool) -> IndexList:
    parts = text.split(ELLIPSIS)
    if len(parts) > 2:
        raise _refuse(subscripts, f"has more than one ellipsis in the term {text!r}")
    lists = [part.split() if as_words else "".join(part.split()) for part in parts]
    for name in (name for part in lists for name in part):
        if not name.isidentifier():
            hint = "; an arrow is written '->'" if name in {"-", ">", "="} else ""
            raise _refuse(subscripts, f"has {name!r}, which is not an index name{hint}")
    if len(parts) == 1:
        return tuple(lists[0])
    return (*lists[0], ELLIPSIS, *lists[1])


def _ellipsis_indices(
    subscripts: str, terms: Sequence[IndexList], ranks: Sequence[int] | None
) -> IndexList:
    """Fresh names for the longest ellipsis; shorter ones take its last names."""
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
                    f"names {counted(len(term) - 1, 'axis')} of operand "
                    f"{p}, which has {rank}",
                )
    used = {name for term in terms for name in term}
    fresh = (name for k in count() if (name := f"_{k}") not in used)
    return tuple(next(fresh) for _ in range(max(lengths)))


def _expand(term: IndexList, fill: IndexList, rank: int | None) -> IndexList:
    if ELLIPSIS not in term:
        return term
    at = term.index(ELLIPSIS)
    length = len(fill) if rank is None else rank - (len(term) - 1)
    return (*term[:at], *fill[len(fill) - length :], *term[at + 1 :])


def _implicit_output(inputs: Sequence[IndexList], fill: IndexList) -> IndexList:
    """Ellipsis first, then the names that occur once, sorted (as numpy does)."""
    counts = Counter(name for term in inputs for name in term)
    once = sorted(name for name, n in counts.items() if n == 1 and name not in fill)
    return (*fill, *once)


def _refuse(subscripts: str, what: str) -> InvalidEinsumError:
    return InvalidEinsumError(
        f"subscripts {subscripts!r}: the text {what}", rules=("subscripts",)
    )
