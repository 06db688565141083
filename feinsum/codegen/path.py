"""Contraction paths: in which order to multiply more than two operands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import opt_einsum

from feinsum.errors import InvalidEinsumError
from feinsum.ir import BatchedEinsum, SizeParam

__all__ = ["ContractionPath", "check_path", "contraction_path"]

ContractionPath: TypeAlias = tuple[tuple[int, ...], ...]
"""Positions to contract at each step; the result is appended at the end."""

TYPICAL_LONG_EXTENT = 10_000
"""What a size parameter counts as when the cost of a path is estimated."""


def contraction_path(
    einsum: BatchedEinsum, sizes: Mapping[str, int] | None = None
) -> ContractionPath:
    """The order with the fewest operations, found by opt_einsum.

    Args:
        einsum: the computation; its rows share the path.
        sizes: values of size parameters; missing ones count as long.

    >>> from feinsum.ir import array, einsum
    >>> J, D = array("J", (3, 3, "Nel")), array("D", (3, 20, 20))
    >>> e = einsum("xre,rij,ej->xei", J, D, array("u", ("Nel", 20)))
    >>> contraction_path(e)
    ((1, 2), (0, 1))
    """
    number = {index: opt_einsum.get_symbol(k) for k, index in enumerate(einsum.indices)}
    known = dict(sizes or {})
    shapes = [
        tuple(
            known.get(x.name, TYPICAL_LONG_EXTENT) if isinstance(x, SizeParam) else x
            for x in (einsum.extents[index] for index in term)
        )
        for term in einsum.inputs
    ]
    terms = ",".join("".join(number[i] for i in term) for term in einsum.inputs)
    output = "".join(number[i] for i in einsum.output)
    optimize = "optimal" if einsum.n_operands <= 6 else "greedy"
    path, _ = opt_einsum.contract_path(
        f"{terms}->{output}", *shapes, shapes=True, optimize=optimize
    )
    return tuple(tuple(step) for step in path)


def check_path(einsum: BatchedEinsum, path: ContractionPath) -> None:
    """Refuse a path that does not end with one array.

    Raises:
        InvalidEinsumError: with the rule ``path``.
    """
    left = einsum.n_operands
    for step in path:
        if (
            not step
            or len(set(step)) != len(step)
            or not all(0 <= p < left for p in step)
        ):
            raise InvalidEinsumError(
                f"contraction path {path}: step {step} does not name distinct "
                f"positions among the {left} arrays left",
                rules=("path",),
            )
        left += 1 - len(step)
    if left != 1:
        raise InvalidEinsumError(
            f"contraction path {path} leaves {left} arrays; it must leave one",
            rules=("path",),
        )
