"""A loop nest: a network, a path, the orders of its terms; and its buffers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from feinsum.errors import InvalidEinsumError
from feinsum.nests.forest import Forest, Loop, fuse
from feinsum.nests.network import Network
from feinsum.nests.orders import Order, Orders, is_allowed
from feinsum.nests.paths import Path, Term, consumers, path_from_pairs
from feinsum.words import counted

__all__ = ["Buffer", "Nest", "unfactorized"]


class Buffer(NamedTuple):
    """Storage for the result of a term until another term reads it.

    Attributes:
        producer: number of the term that fills it.
        consumer: number of the term that reads it.
        indices: its axes, in the order of the producer's loops: the indices that both
            terms have, except for loops around both.
    """

    producer: int
    consumer: int
    indices: Order


@dataclass(frozen=True)
class Nest:
    """A fully fused loop nest that computes a network.

    Raises:
        InvalidEinsumError: with the rule ``nest``, if an order does not match its term,
            or does not keep the level order of the sparse operand.

    Source: Kanakagiri and Solomonik 2024 (SpTTN), section 3.2, equation 7 (buffers).

    >>> from feinsum.nests.network import network
    >>> from feinsum.nests.paths import path_from_pairs
    >>> ttmc = network("ijk,jr,ks->irs")
    >>> path = path_from_pairs(ttmc, [(0, 2), (3, 1)])
    >>> nest = Nest(ttmc, path, (("i", "j", "k", "s"), ("i", "j", "s", "r")))
    >>> nest.buffers
    (Buffer(producer=0, consumer=1, indices=('s',)),)
    >>> print(nest)
    for i
      for j
        for k
          for s
            X0[s] += T0[i,j,k] * T2[k,s]
        for s
          for r
            out[i,r,s] += X0[s] * T1[j,r]
    """

    network: Network
    path: Path
    orders: Orders

    def __post_init__(self) -> None:
        if len(self.orders) != len(self.path):
            _refuse(
                f"{counted(len(self.orders), 'order')} for "
                f"{counted(len(self.path), 'term')}"
            )
        for term, order in zip(self.path, self.orders, strict=True):
            if sorted(order) != sorted(term.indices):
                _refuse(f"the order {order} of a term with {sorted(term.indices)}")
            for k, index in enumerate(order):
                around = frozenset(order[:k])
                if not is_allowed(self.network, "relative", term, around, index):
                    _refuse(
                        f"the order {order} has {index!r} ahead of a level above; the "
                        f"levels are {self.network.levels}"
                    )

    @cached_property
    def forest(self) -> Forest:
        return fuse(self.orders)

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """Those of all terms but the last, in the order of the terms."""
        found = []
        for producer, consumer in enumerate(consumers(self.path)):
            if consumer is not None:
                kept = self.path[producer].result.indices
                around = _common(self.forest, producer, consumer)
                order = self.orders[producer]
                indices = tuple(i for i in order if i in kept and i not in around)
                found.append(Buffer(producer, consumer, indices))
        return tuple(found)

    def __str__(self) -> str:
        return "\n".join(_lines(self, self.forest, ""))


def unfactorized(network: Network) -> Nest:
    """The nest that multiplies all operands in one loop over all indices.

    Its buffers are scalars, and it factors nothing out, as sparse compilers do by
    default. With short fibers it loses nothing.

    >>> from feinsum.nests.network import network
    >>> print(unfactorized(network("ijk,ja,ka->ia")))
    for i
      for j
        for k
          for a
            X0[] += T0[i,j,k] * T1[j,a]
            out[i,a] += X0[] * T2[k,a]
    """
    n, first = len(network.inputs), network.sparse or 0
    others = [k for k in range(n) if k != first]
    pairs = [(first if k == 0 else n + k - 1, o) for k, o in enumerate(others)]
    path = path_from_pairs(network, pairs, late=True)
    order = list(network.levels or network.inputs[first])
    orders = []
    for other in others:
        order += [i for i in network.inputs[other] if i not in order]
        orders.append(tuple(order))
    return Nest(network, path, tuple(orders))


def _common(forest: Forest, first: int, second: int) -> frozenset[str]:
    """The indices of the loops around both terms."""
    for node in forest:
        if isinstance(node, Loop) and {first, second} <= _terms(node):
            return _common(node.body, first, second) | {node.index}
    return frozenset()


def _terms(node: Loop | int) -> frozenset[int]:
    if isinstance(node, int):
        return frozenset({node})
    return frozenset().union(*map(_terms, node.body))


def _lines(nest: Nest, forest: Forest, indent: str) -> list[str]:
    lines: list[str] = []
    for node in forest:
        if isinstance(node, Loop):
            lines += [
                f"{indent}for {node.index}",
                *_lines(nest, node.body, indent + "  "),
            ]
        else:
            lines.append(indent + _statement(nest, node))
    return lines


def _statement(nest: Nest, number: int) -> str:
    kept = {buffer.producer: buffer for buffer in nest.buffers}
    places = {nest.path[p].result.inputs: p for p in kept}

    def text(inputs: frozenset[int]) -> str:
        if inputs in places:
            producer = places[inputs]
            return f"X{producer}[{','.join(kept[producer].indices)}]"
        (position,) = inputs
        return f"T{position}[{','.join(nest.network.inputs[position])}]"

    term: Term = nest.path[number]
    target = (
        text(term.result.inputs)
        if number in kept
        else f"out[{','.join(nest.network.output)}]"
    )
    return f"{target} += {text(term.left.inputs)} * {text(term.right.inputs)}"


def _refuse(message: str) -> None:
    raise InvalidEinsumError(f"invalid loop nest: {message}", rules=("nest",))
