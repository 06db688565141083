"""Contraction paths: the order in which pairs of tensors are multiplied.

Source: Kanakagiri and Solomonik 2024 (SpTTN), sections 4.1.1 and 4.2.1, definition 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from feinsum.nests.network import Network
from feinsum.paths import postorders as all_postorders

__all__ = [
    "Path",
    "Tensor",
    "Term",
    "consumers",
    "path_from_pairs",
    "postorders",
]


@dataclass(frozen=True)
class Tensor:
    """An operand, or the product of several.

    Attributes:
        inputs: positions of its operands.
        indices: its indices.
    """

    inputs: frozenset[int]
    indices: frozenset[str]


@dataclass(frozen=True)
class Term:
    """A product of two tensors, summed over the indices that nothing else has."""

    left: Tensor
    right: Tensor
    result: Tensor

    @cached_property
    def indices(self) -> frozenset[str]:
        """The indices of the term's loops."""
        return self.left.indices | self.right.indices

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return (self.left, self.right, self.result)


Path: TypeAlias = tuple[Term, ...]
"""Terms in the order of computation; the last one computes the result."""


def consumers(path: Path) -> tuple[int | None, ...]:
    """The term that reads the result of each term; None for results of the path.

    >>> from feinsum.nests.network import network
    >>> consumers(path_from_pairs(network("ij,jk,kl->il"), [(0, 1), (3, 2)]))
    (1, None)
    """
    taken = {t.inputs: k for k, term in enumerate(path) for t in term.tensors[:2]}
    return tuple(taken.get(term.result.inputs) for term in path)


def postorders(network: Network) -> Iterator[Path]:
    """Every path that is a depth-first postorder of a binary tree of the operands.

    >>> from feinsum.nests.network import network
    >>> len(list(postorders(network("ijk,ja,ka->ia"))))
    3
    """
    made = _Maker(network)
    for order in all_postorders(len(network.inputs)):
        yield tuple(made.term(left, right) for left, right in order)


def path_from_pairs(
    network: Network, pairs: list[tuple[int, int]], *, late: bool = False
) -> Path:
    """The path given by pairs: operands by position, the result of term t as n + t.

    Args:
        network: the network to compute.
        pairs: one for each term.
        late: whether only the last term sums. Then all terms can be in one loop over
            all indices: the unfactorized nest.

    >>> from feinsum.nests.network import network
    >>> path = path_from_pairs(network("ijk,ja,ka->ia"), [(0, 2), (3, 1)])
    >>> sorted(path[0].result.indices)
    ['a', 'i', 'j']
    """
    made = _Maker(network, late=late)
    tensors = [made.tensor(frozenset({k})) for k in range(len(network.inputs))]
    path = []
    for left, right in pairs:
        path.append(made.term(tensors[left].inputs, tensors[right].inputs))
        tensors.append(path[-1].result)
    return tuple(path)


class _Maker:
    """The tensors and terms of a network, each created once."""

    def __init__(self, network: Network, *, late: bool = False) -> None:
        self._network = network
        self._late = late
        self._tensors: dict[frozenset[int], Tensor] = {}
        self._terms: dict[tuple[frozenset[int], frozenset[int]], Term] = {}

    def tensor(self, inputs: frozenset[int]) -> Tensor:
        if inputs not in self._tensors:
            self._tensors[inputs] = Tensor(inputs, self._indices(inputs))
        return self._tensors[inputs]

    def _indices(self, inputs: frozenset[int]) -> frozenset[str]:
        """The indices of the operands that another operand, or the output, needs."""
        terms = enumerate(self._network.inputs)
        inside, outside = set[str](), set(self._network.output)
        for position, term in terms:
            (inside if position in inputs else outside).update(term)
        is_last = len(inputs) == len(self._network.inputs)
        if len(inputs) == 1 or (self._late and not is_last):
            return frozenset(inside)
        return frozenset(inside & outside)

    def term(self, left: frozenset[int], right: frozenset[int]) -> Term:
        if (left, right) not in self._terms:
            tensors = map(self.tensor, (left, right, left | right))
            self._terms[left, right] = Term(*tensors)
        return self._terms[left, right]
