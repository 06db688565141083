"""A contraction of a program as a call, with a recorded or predicted recipe."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import numpy as np

from feinsum.errors import DeviceUnavailableError
from feinsum.ir.evaluate import evaluate_statement
from feinsum.ir.statement import Statement

logger = logging.getLogger(__name__)

Array = np.ndarray[Any, np.dtype[Any]]

MOST_LETTERS = len(ascii_letters)


def contracted(one: Statement, operands: Sequence[Array]) -> Array:
    """The result of a contraction.

    numpy computes it for dtypes that are neither real nor complex, and if there is no
    device, for example without a compiler.

    >>> product = Statement("C", "ik", ("ij", "jk"), ("A", "B"), "2*x0*x1")
    >>> contracted(product, [np.eye(2), np.eye(2)]).tolist()
    [[2.0, 0.0], [0.0, 2.0]]
    """
    from feinsum.calling import call_einsum  # plans are read without it

    is_called = len(one.indices) <= MOST_LETTERS and all(
        array.dtype.kind in "fc" and array.size for array in operands
    )
    if not is_called:
        return evaluate_statement(one, operands)
    letters = dict(zip(one.indices, ascii_letters, strict=False))
    terms = ",".join("".join(letters[i] for i in term) for term in one.inputs)
    output = "".join(letters[i] for i in one.output)
    try:
        found = np.asarray(call_einsum(f"{terms}->{output}", *operands))
    except DeviceUnavailableError as error:
        logger.info("computing %s with numpy: %s", one.result, error)
        return evaluate_statement(one, operands)
    if one.factor != 1:
        found *= one.factor  # it is ours: a contraction is no view
    return found
