"""One line of text for a batched einsum, and back.

The text is stored with every record: it is what a key is computed from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from feinsum.errors import InvalidEinsumError
from feinsum.ir.einsum import BatchedEinsum
from feinsum.ir.operand import Extent, Operand, SizeParam

MOST_DIGITS = 1000
"""Python reads no longer integers by default than of 4300 digits."""

_OPERAND = re.compile(r"([^\s\[\]]+)\[([^\s\[\]]*)\]:(csf=?(?=[<>|]))?(\S+)")


def to_text(einsum: BatchedEinsum) -> str:
    """The einsum as one line: notation, then operands, then rows.

    >>> from feinsum.ir.build import array, einsum
    >>> to_text(einsum("ij,j->i", array("A", ("N", 4)), array("x", 4)))
    'i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x'
    """
    return join_text(
        einsum.inputs,
        einsum.output,
        map(str, einsum.operands),
        ([operand.name for operand in row] for row in einsum.rows),
    )


def join_text(
    inputs: Iterable[Iterable[str]],
    output: Iterable[str],
    operands: Iterable[str],
    rows: Iterable[Iterable[str]],
) -> str:
    """The text of an einsum, its operands as :func:`operand_text` gives them."""
    terms = ", ".join(map(" ".join, inputs))
    row_text = "; ".join(map(" ".join, rows))
    return f"{terms} -> {' '.join(output)} | {' '.join(operands)} | {row_text}"


def from_text(text: str) -> BatchedEinsum:
    """Inverse of :func:`to_text`.

    Raises:
        InvalidEinsumError: if the text is not of that form.

    >>> str(from_text("i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x").output)
    "('i',)"
    """
    match text.split(" | "):
        case [notation, operand_text, row_text] if notation.count("->") == 1:
            terms, output = notation.split("->")
        case _:
            raise _refuse(text, "expected 'terms -> output | operands | rows'")
    listed = tuple(map(_operand, operand_text.split()))
    operands = {operand.name: operand for operand in listed}
    try:
        rows = tuple(
            tuple(operands[name] for name in row.split()) for row in row_text.split(";")
        )
    except KeyError as error:
        raise _refuse(text, f"row names unknown operand {error}") from None
    inputs = tuple(tuple(term.split()) for term in terms.split(","))
    einsum = BatchedEinsum(tuple(output.split()), inputs, rows)
    if einsum.operands != listed:
        raise _refuse(text, "expected every operand once, in the order of first use")
    return einsum


def _operand(text: str) -> Operand:
    match = _OPERAND.fullmatch(text)
    if match is None:
        raise _refuse(text, "expected 'name[extents]:dtype'")
    name, shape, storage, dtype = match.groups()
    try:
        numpy_dtype = np.dtype(dtype)
    except (SyntaxError, TypeError, ValueError, Warning):
        raise _refuse(text, f"{dtype!r} is not a numpy dtype") from None
    extents = tuple(_extent(x) for x in shape.split(",")) if shape else ()
    return Operand(name, extents, numpy_dtype, storage or "")


def _extent(text: str) -> Extent:
    if not text.isdecimal():
        return SizeParam(text)
    if len(text) > MOST_DIGITS:
        raise _refuse(f"{text:.20}...", f"an extent has over {MOST_DIGITS} digits")
    return int(text)


def _refuse(text: str, what: str) -> InvalidEinsumError:
    return InvalidEinsumError(f"einsum text {text!r}: {what}", rules=("text",))
