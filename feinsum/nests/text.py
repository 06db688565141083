"""A nest as one line of text, for recipes and records; and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from feinsum.errors import InvalidEinsumError
from feinsum.nests.nest import Nest
from feinsum.nests.network import Network
from feinsum.nests.paths import path_from_pairs
from feinsum.words import counted

__all__ = ["nest_from_text", "nest_to_text", "translated"]


def nest_to_text(nest: Nest) -> str:
    """The pairs of a path, and the orders of its terms.

    Operands are numbered by position, and the result of term t as n + t. The orders say
    whether only the last term sums.

    >>> from feinsum.nests import network
    >>> mttkrp = network("ijk,ja,ka->ia")
    >>> nest_to_text(nest_from_text(mttkrp, "0 2, 3 1 | i j k a, i j a"))
    '0 2, 3 1 | i j k a, i j a'
    """
    n = len(nest.network.inputs)
    numbers = {frozenset({k}): k for k in range(n)}
    numbers |= {term.result.inputs: n + k for k, term in enumerate(nest.path)}
    pairs = (
        f"{numbers[term.left.inputs]} {numbers[term.right.inputs]}"
        for term in nest.path
    )
    return f"{', '.join(pairs)} | {', '.join(map(' '.join, nest.orders))}"


def nest_from_text(network: Network, text: str) -> Nest:
    """Inverse of :func:`nest_to_text`.

    Raises:
        InvalidEinsumError: with the rule ``nest``, if the text is no nest of the
            network.
    """
    pairs, separator, orders = text.partition("|")
    if not separator:
        raise _refuse(text, "expected 'pairs | orders', such as '0 1 | i j'")
    found = [_pair(text, words) for words in pairs.split(",")]
    _require_path(text, found, len(network.inputs))
    named = tuple(tuple(order.split()) for order in orders.split(","))
    path = path_from_pairs(network, found)
    if [sorted(order) for order in named] != [sorted(t.indices) for t in path]:
        path = path_from_pairs(network, found, late=True)
    return Nest(network, path, named)


def translated(text: str, indices: Mapping[str, str], positions: Sequence[int]) -> str:
    """The text of a nest in other names.

    Args:
        text: of a nest.
        indices: new names by those of the text.
        positions: for each position of an operand in the text, the new one.

    >>> translated("0 1 | a b", {"a": "i", "b": "j"}, (1, 0))
    '1 0 | i j'
    """
    pairs, _, orders = text.partition("|")
    moved = dict(enumerate(positions))
    numbers = [
        " ".join(str(moved.get(int(n), int(n))) for n in pair.split())
        for pair in pairs.split(",")
    ]
    named = [" ".join(indices[i] for i in order.split()) for order in orders.split(",")]
    return f"{', '.join(numbers)} | {', '.join(named)}"


def _pair(text: str, words: str) -> tuple[int, int]:
    numbers = words.split()
    is_pair = len(numbers) == 2 and all(re.fullmatch("[0-9]{1,3}", n) for n in numbers)
    if not is_pair:
        raise _refuse(text, f"{words.strip()!r} is not a pair of numbers")
    return int(numbers[0]), int(numbers[1])


def _require_path(text: str, pairs: list[tuple[int, int]], n: int) -> None:
    """Every operand and every result but the last is taken once, and is there."""
    if len(pairs) != n - 1:
        raise _refuse(text, f"{len(pairs)} pairs; {counted(n, 'operand')} need {n - 1}")
    left = set(range(n))
    for made, (first, second) in enumerate(pairs, n):
        if first == second or not {first, second} <= left:
            raise _refuse(text, f"{first} {second} is out of range")
        left = left - {first, second} | {made}


def _refuse(text: str, what: str) -> InvalidEinsumError:
    return InvalidEinsumError(f"nest text {text!r}: {what}", rules=("nest",))
