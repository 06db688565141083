"""Parsing programs from the text that ``str(program)`` writes."""

from __future__ import annotations

import re

import numpy as np

from feinsum.errors import FeinsumError, ProgramError
from feinsum.ir.operand import Operand, SizeParam, stored
from feinsum.ir.program import Program
from feinsum.ir.statement import Statement
from feinsum.subscripts import IndexList

ARRAY = re.compile(r"(?P<name>\w+)\[(?P<shape>[\w, ]*)\]:(?P<dtype>\S+)")
STATEMENT = re.compile(
    r"(?P<result>\w+)\[(?P<output>[\w, ]*)\] *= *"
    r"(?P<function>[\w(].*?) +:(?: +(?P<operands>.+))?"
)
ACCESS = re.compile(r"(\w+)\[([\w, ]*)\]")
OUTPUTS = re.compile(r"-> *(?P<names>.*)")
MAX_BYTES = 1 << 20


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
    # texts come from strangers, by way of the service
    if len(text) > MAX_BYTES:
        raise ProgramError(
            f"the text of the program has {len(text)} characters; at most {MAX_BYTES} "
            "are read"
        )
    inputs: list[Operand] = []
    statements: list[Statement] = []
    outputs: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if not (content := line.partition("#")[0].strip()):
            continue
        if match := ARRAY.fullmatch(content):
            inputs.append(_operand(match, number))
        elif match := STATEMENT.fullmatch(content):
            statements.append(_statement(match))
        elif match := OUTPUTS.fullmatch(content):
            outputs = _names(match["names"])
        else:
            raise ProgramError(
                f"line {number} of the program is {content!r:.200}; expected an array "
                "such as X[3,4]:<f8, a statement such as M[i] = max x0 : X[i,j], or "
                "outputs such as -> M"
            )
    return Program(tuple(inputs), tuple(statements), outputs)


def _operand(match: re.Match[str], number: int) -> Operand:
    storage, dtype = stored(match["dtype"])
    shape = tuple(
        int(extent) if extent.isdecimal() else SizeParam(extent)
        for extent in _names(match["shape"])
    )
    try:
        return Operand(match["name"], shape, np.dtype(dtype), storage)
    except (FeinsumError, TypeError) as error:
        raise ProgramError(f"line {number} of the program: {error}") from None


def _statement(match: re.Match[str]) -> Statement:
    accesses = ACCESS.findall(match["operands"] or "")
    reduction, body = _parts(match["function"])
    return Statement(
        match["result"],
        _names(match["output"]),
        tuple(_names(term) for _, term in accesses),
        tuple(name for name, _ in accesses),
        body,
        "sum" if reduction == "map" else reduction,
    )


def _parts(text: str) -> tuple[str, str]:
    """Reduction and body: the one is a word, or stands in brackets.

    >>> _parts("sum x0*x1"), _parts("((a + b) * 1.0) exp(x0)")
    (('sum', 'x0*x1'), ('(a + b) * 1.0', 'exp(x0)'))
    """
    # a reduction that is an expression stands in brackets
    if not text.startswith("("):
        reduction, _, body = text.partition(" ")
        return reduction, body.strip()
    depth = 0
    for end, letter in enumerate(text, 1):
        depth += (letter == "(") - (letter == ")")
        if not depth:
            return text[1 : end - 1], text[end:].strip()
    return text, ""


def _names(text: str) -> IndexList:
    return tuple(name.strip() for name in text.split(",") if name.strip())
