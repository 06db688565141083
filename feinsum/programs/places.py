"""Identifying equal indices of different statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from feinsum.ir.statement import Statement

Place: TypeAlias = tuple[str, str]
"""An index of a statement, which is named by its result."""


def same_places(statements: Sequence[Statement]) -> Mapping[Place, Place]:
    """For each index of each statement, the representative of all equal indices.

    Different statements use different names for the axes of one result.

    >>> first = Statement("E", "ij", ("ij",), ("X",), "exp(x0)")
    >>> second = Statement("S", "p", ("pq",), ("E",))
    >>> same = same_places([first, second])
    >>> same["S", "p"] == same["E", "i"], same["S", "q"] == same["E", "i"]
    (True, False)
    """
    parent: dict[Place, Place] = {
        (one.result, index): (one.result, index)
        for one in statements
        for index in one.indices
    }
    makers = {one.result: one for one in statements}

    def root(place: Place) -> Place:
        while parent[place] != place:
            place = parent[place]
        return place

    for one in statements:
        for name, term in zip(one.operands, one.inputs, strict=True):
            if name in makers:
                for made, read in zip(makers[name].output, term, strict=True):
                    parent[root((one.result, read))] = root((name, made))
    return {place: root(place) for place in parent}
