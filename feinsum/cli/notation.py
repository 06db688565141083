"""Einsums as they are written on the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from string import ascii_uppercase
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum, Extent, IndexList, Operand

__all__ = ["read_einsum", "read_values"]

MOST_DIGITS = 1000
"""Python reads no longer integers by default than of 4300 digits."""


def read_einsum(
    subscripts: str,
    sizes: Sequence[str] | None,
    operands: str | None = None,
    rows: str | None = None,
    dtype: str = "float64",
) -> BatchedEinsum:
    """The batched einsum that the options of a command describe.

    Raises:
        InvalidEinsumError: if they describe none.
        typer.BadParameter: naming the option that cannot be read.

    >>> print(read_einsum("ij,j->i", ["i=n,j=4"], operands="M,x"))
    ij,j->i of (M x) with M[n,4]:<f8, x[4]:<f8
    """
    from feinsum.ir import BatchedEinsum, array

    extents = _extents(sizes or ())
    inputs, output = _read_subscripts(subscripts, extents)
    _check_indices([*(i for term in inputs for i in term), *output], extents)

    def operand(name: str, term: IndexList) -> Operand:
        return array(name, tuple(extents[i] for i in term), dtype)

    table = [
        tuple(map(operand, names, inputs))
        for names in _names(len(inputs), operands, rows)
    ]
    return BatchedEinsum(output, inputs, tuple(table))


def read_values(sizes: Sequence[str], option: str) -> dict[str, int]:
    """Values of size parameters: ``["Nel=100", "n=3,m=4"]``."""
    values = {}
    for name, text in _pairs(sizes, option):
        if not _is_number(text):
            raise typer.BadParameter(f"{name}={text} is no integer", param_hint=option)
        values[name] = int(text)
    return values


def _extents(sizes: Sequence[str]) -> dict[str, Extent]:
    return {index: _extent(index, text) for index, text in _pairs(sizes, "--sizes")}


def _extent(index: str, text: str) -> Extent:
    from feinsum.ir import SizeParam

    if _is_number(text):
        return int(text)
    if text.isidentifier():
        return SizeParam(text)
    raise typer.BadParameter(
        f"{index}={text}: expected a positive integer or a name", param_hint="--sizes"
    )


def _is_number(text: str) -> bool:
    """Whether a text is digits of ASCII, and not too many for Python to read."""
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


def _pairs(texts: Sequence[str], option: str) -> Iterator[tuple[str, str]]:
    """The pairs of ``name=value,name=value``; no name twice."""
    seen = set()
    for item in (item for text in texts for item in text.split(",") if item.strip()):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not (name and equals and value):
            raise typer.BadParameter(
                f"{item.strip()!r} is not of the form name=value", param_hint=option
            )
        if name in seen:
            raise typer.BadParameter(f"{name!r} is given twice", param_hint=option)
        seen.add(name)
        yield name, value


def _read_subscripts(
    subscripts: str, extents: dict[str, Extent]
) -> tuple[tuple[IndexList, ...], IndexList]:
    """The index lists; as words where a size is that of a word."""
    from feinsum.ir import parse_subscripts

    if all(len(index) == 1 for index in extents):
        return parse_subscripts(subscripts)
    terms = subscripts.partition("->")[0].split(",")
    return parse_subscripts(subscripts, [len(term.split()) for term in terms])


def _check_indices(indices: Sequence[str], extents: dict[str, Extent]) -> None:
    missing = [index for index in dict.fromkeys(indices) if index not in extents]
    if missing:
        raise typer.BadParameter(
            f"no size is given for {_listed(missing)}; add {missing[0]}=20, or "
            f"{missing[0]}=N for a size known only at run time",
            param_hint="--sizes",
        )
    unknown = [index for index in extents if index not in indices]
    if unknown:
        raise typer.BadParameter(
            f"the subscripts have no {_listed(unknown)}", param_hint="--sizes"
        )


def _listed(indices: Sequence[str]) -> str:
    noun = "index" if len(indices) == 1 else "indices"
    return f"{noun} {', '.join(map(repr, indices))}"


def _names(n: int, operands: str | None, rows: str | None) -> list[list[str]]:
    """The names of the operands of each row."""
    if operands is not None and rows is not None:
        raise typer.BadParameter("give --operands or --rows", param_hint="--rows")
    if operands is None and rows is None:
        letters = (c + (str(k) if k else "") for k in count() for c in ascii_uppercase)
        return [[name for name, _ in zip(letters, range(n), strict=False)]]
    table = [
        [name.strip() for name in row.split(",")]
        for row in (rows or operands or "").split(";")
    ]
    for names in table:
        if len(names) != n:
            raise typer.BadParameter(
                f"{','.join(names)!r} names {len(names)} operands, the subscripts "
                f"have {n} terms",
                param_hint="--operands" if rows is None else "--rows",
            )
    return table
