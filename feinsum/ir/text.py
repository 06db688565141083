"""Einsums and programs as text, and back.

An einsum is one line, stored with every record; its key is computed from it. A program
has a line for each input and each statement, then its outputs. Both write an operand
alike::

    i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x      terms -> output | operands | rows

    A[N,4]:<f8                                   name[extents]:storage and dtype
    y[i] = sum x0*x1 : A[i,j], x[j]              reduction, body, operands
    -> y
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

import numpy as np

from feinsum.errors import InvalidEinsumError, ProgramError
from feinsum.ir.einsums import BatchedEinsum
from feinsum.ir.operand import Extent, Operand, SizeParam
from feinsum.ir.program import Program
from feinsum.ir.statement import Statement
from feinsum.subscripts import IndexList

MAX_DIGITS = 1000
"""Maximum number of digits of an extent; Python's own limit is 4300."""

MAX_BYTES = 1 << 20
"""Maximum size of a program's text, which clients of the service may send."""

_OPERAND = re.compile(r"([^\s\[\]]+)\[([^\s\[\]]*)\]:(csf=?(?=[<>|]))?(\S+)")
_STATEMENT = re.compile(
    r"(?P<result>\w+)\[(?P<output>[\w, ]*)\] *= *"
    r"(?P<function>[\w(].*?) +:(?: +(?P<operands>.+))?"
)
_ACCESS = re.compile(r"(\w+)\[([\w, ]*)\]")


def to_text(einsum: BatchedEinsum) -> str:
    """Return the einsum as one line: notation, then operands, then rows.

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
    """Return the text of an einsum; operands are texts of :func:`format_operand`."""
    terms = ", ".join(map(" ".join, inputs))
    row_text = "; ".join(map(" ".join, rows))
    return f"{terms} -> {' '.join(output)} | {' '.join(operands)} | {row_text}"


def from_text(text: str) -> BatchedEinsum:
    """Parse the text of an einsum; inverse of :func:`to_text`.

    Raises:
        InvalidEinsumError: if the text is not of that form.

    >>> str(from_text("i j, j -> i | A[N,4]:<f8 x[4]:<f8 | A x").output)
    "('i',)"
    """
    match text.split(" | "):
        case [notation, operand_texts, row_text] if notation.count("->") == 1:
            terms, output = notation.split("->")
        case _:
            _refuse(text, "expected 'terms -> output | operands | rows'")
    listed = tuple(map(_parse_operand, operand_texts.split()))
    operands = {operand.name: operand for operand in listed}
    try:
        rows = tuple(
            tuple(operands[name] for name in row.split()) for row in row_text.split(";")
        )
    except KeyError as error:
        _refuse(text, f"row names unknown operand {error}")
    inputs = tuple(tuple(term.split()) for term in terms.split(","))
    einsum = BatchedEinsum(tuple(output.split()), inputs, rows)
    # the key is computed from the text, so an einsum must have only one
    if einsum.operands != listed:
        _refuse(text, "expected every operand once, in the order of first use")
    return einsum


def program_from_text(text: str) -> Program:
    """Parse a program: one line for each input and statement, then the outputs.

    Empty lines, and text after ``#``, are ignored.

    Raises:
        ProgramError: naming the invalid line, or the broken rules.

    >>> print(program_from_text('''
    ... X[3,4]:<f8
    ... M[i] = max x0 : X[i,j]             # the largest of each row
    ... E[i,j] = map exp(x0 - x1) : X[i,j], M[i]
    ... -> E
    ... '''))
    X[3,4]:<f8
    M[i] = max x0 : X[i,j]
    E[i,j] = map exp(x0 - x1) : X[i,j], M[i]
    -> E
    """
    if len(text) > MAX_BYTES:
        raise ProgramError(
            f"the text of the program has {len(text)} characters; at most {MAX_BYTES} "
            "are read"
        )
    inputs: list[Operand] = []
    statements: list[Statement] = []
    outputs: IndexList = ()
    for number, line in enumerate(text.splitlines(), 1):
        if not (content := line.partition("#")[0].strip()):
            continue
        if content.startswith("->"):
            outputs = _split_names(content.removeprefix("->"))
        elif match := _STATEMENT.fullmatch(content):
            statements.append(_parse_statement(match))
        elif _OPERAND.fullmatch(unspaced := "".join(content.split())):
            try:
                inputs.append(_parse_operand(unspaced))
            except InvalidEinsumError as error:
                raise ProgramError(f"line {number} of the program: {error}") from None
        else:
            raise ProgramError(
                f"line {number} of the program is {content!r:.200}; expected an array "
                "such as X[3,4]:<f8, a statement such as M[i] = max x0 : X[i,j], or "
                "outputs such as -> M"
            )
    return Program(tuple(inputs), tuple(statements), outputs)


def _parse_operand(text: str) -> Operand:
    match = _OPERAND.fullmatch(text)
    if match is None:
        _refuse(text, "expected 'name[extents]:dtype'")
    name, shape, storage, dtype = match.groups()
    try:
        numpy_dtype = np.dtype(dtype)
    # numpy parses a dtype such as "(1" as Python, and warns of deprecated ones
    except (SyntaxError, TypeError, ValueError, Warning):
        _refuse(text, f"{dtype!r} is not a numpy dtype")
    extents = tuple(map(_parse_extent, shape.split(","))) if shape else ()
    return Operand(name, extents, numpy_dtype, storage or "")


def _parse_extent(text: str) -> Extent:
    if not text.isdecimal():
        return SizeParam(text)
    if len(text) > MAX_DIGITS:
        _refuse(f"{text:.20}...", f"an extent has over {MAX_DIGITS} digits")
    return int(text)


def _refuse(text: str, problem: str) -> NoReturn:
    message = f"einsum text {text!r}: {problem}"
    raise InvalidEinsumError(message, rules=("text",)) from None


def _parse_statement(match: re.Match[str]) -> Statement:
    accesses = _ACCESS.findall(match["operands"] or "")
    reduction, body = _split_function(match["function"])
    return Statement(
        match["result"],
        _split_names(match["output"]),
        tuple(_split_names(term) for _, term in accesses),
        tuple(name for name, _ in accesses),
        body,
        "sum" if reduction == "map" else reduction,
    )


def _split_function(text: str) -> tuple[str, str]:
    """Split a text into reduction and body.

    The reduction is a word, or stands in brackets.

    >>> _split_function("sum x0*x1"), _split_function("((a + b) * 1.0) exp(x0)")
    (('sum', 'x0*x1'), ('(a + b) * 1.0', 'exp(x0)'))
    """
    if not text.startswith("("):
        reduction, _, body = text.partition(" ")
        return reduction, body.strip()
    depth = 0
    for end, letter in enumerate(text, 1):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[1 : end - 1], text[end:].strip()
    return text, ""


def _split_names(text: str) -> IndexList:
    return tuple(name.strip() for name in text.split(",") if name.strip())
