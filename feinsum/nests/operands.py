"""The sizes of operands: extents, and the profile of the tree among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from feinsum.errors import InvalidEinsumError
from feinsum.nests.networks import Network, Sizes
from feinsum.sparse import CSF
from feinsum.words import counted, type_in_words


def sizes_of(network: Network, operands: Sequence[npt.NDArray[Any] | CSF]) -> Sizes:
    """The extents of operands, and the profile of the tree among them.

    Raises:
        InvalidEinsumError: with the rule ``shape``.
    """
    if len(operands) != len(network.inputs):
        _refuse(
            f"{counted(len(operands), 'operand')} for "
            f"{counted(len(network.inputs), 'term')}"
        )
    extents: dict[str, int] = {}
    nodes: tuple[int, ...] = ()
    for position, (operand, term) in enumerate(
        zip(operands, network.inputs, strict=True)
    ):
        if isinstance(operand, CSF) != (position == network.sparse):
            _refuse(f"operand {position} is {type_in_words(operand)}; the sparse "
                    f"operand is number {network.sparse}")  # fmt: skip
        if len(operand.shape) != len(term):
            _refuse(
                f"operand {position} has "
                f"{counted(len(operand.shape), 'axis')}, its term {term}"
            )
        for index, extent in zip(term, operand.shape, strict=True):
            if extents.setdefault(index, extent) != extent:
                _refuse(
                    f"index {index!r} has extent {extent} on operand {position} and "
                    f"extent {extents[index]} before"
                )
        if isinstance(operand, CSF):
            levels = tuple(term[axis] for axis in operand.axes)
            if levels != network.levels:
                _refuse(f"the levels of the tree hold {levels}, not {network.levels}")
            nodes = operand.profile
    return Sizes(extents, nodes)


def _refuse(message: str) -> None:
    raise InvalidEinsumError(
        f"the operands do not match the subscripts: {message}", rules=("shape",)
    )
