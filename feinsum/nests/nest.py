"""A loop nest: a network, a path, the orders of its terms; its loops, buffers and text.

In a fully fused nest, terms share the loops of the common prefix of their orders. For
``ijk,ja,ka->ia`` with the terms T*C and (T*C)*B::

    order of T*C       i j k a          for i
    order of (T*C)*B   i j a              for j
                                            for k, a:  X[a] += T[i,j,k]*C[k,a]
                                            for a:     out[i,a] += X[a]*B[j,a]

A tree is traversed from its root, so the indices of a sparse operand are in the order
of its levels. There are two rules for that. ``relative`` is the paper's: the sparse
indices of a term are in level order. ``prefix`` is stronger: an index of a level comes
after those of all levels above, so a term that lacks one of these has no valid order.

Source: Kanakagiri and Solomonik 2024 (SpTTN), definitions 4.2 to 4.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

from feinsum.errors import InvalidEinsumError
from feinsum.nests.networks import (
    FactorProduct,
    Network,
    Path,
    build_path,
    find_consumers,
)
from feinsum.words import format_count


class Buffer(NamedTuple):
    """The array that holds the result of a term until another term reads it.

    Attributes:
        producer: number of the term that fills it.
        consumer: number of the term that reads it.
        indices: its axes, in the order of the producer's loops: the indices of the
            result, except for those of loops around both terms.
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

    >>> from feinsum.nests.networks import parse_network, build_path
    >>> ttmc = parse_network("ijk,jr,ks->irs")
    >>> path = build_path(ttmc, [(0, 2), (3, 1)])
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
                f"{format_count(len(self.orders), 'order')} for "
                f"{format_count(len(self.path), 'term')}"
            )
        for term, order in zip(self.path, self.orders, strict=True):
            if sorted(order) != sorted(term.indices):
                _refuse(f"the order {order} of a term with {sorted(term.indices)}")
            # the indices of a tree are known only below the nodes of the levels above
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
        """The buffers of all terms but the last, in the order of the terms."""
        buffers = []
        for producer, consumer in enumerate(find_consumers(self.path)):
            if consumer is not None:
                result_indices = self.path[producer].result.indices
                # each iteration of a loop around both terms fills and reads the buffer
                # again, so it needs no axis for that loop
                around = _find_common_loops(self.forest, producer, consumer)
                order = self.orders[producer]
                indices = tuple(
                    i for i in order if i in result_indices and i not in around
                )
                buffers.append(Buffer(producer, consumer, indices))
        return tuple(buffers)

    def __str__(self) -> str:
        return "\n".join(_format_lines(self, self.forest, ""))


def build_unfactorized(network: Network) -> Nest:
    """Build the nest that multiplies all operands in one loop over all indices.

    Its buffers are scalars, and it factors nothing out, like the default of sparse
    compilers. If fibers are short, nothing is lost.

    >>> from feinsum.nests.networks import parse_network
    >>> print(build_unfactorized(parse_network("ijk,ja,ka->ia")))
    for i
      for j
        for k
          for a
            X0[] += T0[i,j,k] * T1[j,a]
            out[i,a] += X0[] * T2[k,a]
    """
    # the sparse operand comes first, so the outermost loops traverse its tree
    n, first = len(network.inputs), network.sparse or 0
    dense_operands = [k for k in range(n) if k != first]
    pairs = [
        (first if k == 0 else n + k - 1, operand)
        for k, operand in enumerate(dense_operands)
    ]
    path = build_path(network, pairs, late=True)
    order = list(network.levels or network.inputs[first])
    orders = []
    for operand in dense_operands:
        order += [i for i in network.inputs[operand] if i not in order]
        orders.append(tuple(order))
    return Nest(network, path, tuple(orders))


def _find_common_loops(forest: Forest, first: int, second: int) -> frozenset[str]:
    """Return the indices of the loops around both terms."""
    for node in forest:
        if isinstance(node, NestLoop) and {first, second} <= {*list_terms(node)}:
            return _find_common_loops(node.body, first, second) | {node.index}
    return frozenset()


def list_terms(node: Node) -> tuple[int, ...]:
    """Return the numbers of the terms within a loop, in order; of a term, itself."""
    if isinstance(node, int):
        return (node,)
    return tuple(term for inner in node.body for term in list_terms(inner))


def _format_lines(nest: Nest, forest: Forest, indent: str) -> list[str]:
    lines: list[str] = []
    for node in forest:
        if isinstance(node, NestLoop):
            lines += [
                f"{indent}for {node.index}",
                *_format_lines(nest, node.body, indent + "  "),
            ]
        else:
            lines.append(indent + _format_statement(nest, node))
    return lines


def _format_statement(nest: Nest, number: int) -> str:
    buffers = {buffer.producer: buffer for buffer in nest.buffers}
    producers = {nest.path[p].result.inputs: p for p in buffers}

    def text(inputs: frozenset[int]) -> str:
        if inputs in producers:
            producer = producers[inputs]
            return f"X{producer}[{','.join(buffers[producer].indices)}]"
        (position,) = inputs
        return f"T{position}[{','.join(nest.network.inputs[position])}]"

    term: FactorProduct = nest.path[number]
    target = (
        text(term.result.inputs)
        if number in buffers
        else f"out[{','.join(nest.network.output)}]"
    )
    return f"{target} += {text(term.left.inputs)} * {text(term.right.inputs)}"


def _refuse(message: str) -> None:
    raise InvalidEinsumError(f"invalid loop nest: {message}", rules=("nest",))


@dataclass(frozen=True)
class NestLoop:
    """A loop and its body, in order of execution."""

    index: str
    body: tuple[Node, ...]


Node: TypeAlias = "NestLoop | int"
"""A loop, or the number of a term whose loops are all around it."""

Forest: TypeAlias = tuple[Node, ...]


def fuse(orders: Orders) -> Forest:
    """Build the fully fused forest of these orders, one level of loops at a time.

    >>> fuse((("i", "j", "k"), ("i", "j")))
    (NestLoop(index='i',
              body=(NestLoop(index='j', body=(NestLoop(index='k', body=(0,)), 1)),)),)
    """
    return _peel(orders, range(len(orders)), 0)


def _peel(orders: Orders, terms: Sequence[int], depth: int) -> Forest:
    nodes: list[Node] = []
    position = 0
    while position < len(terms):
        heads = [orders[t][depth : depth + 1] for t in terms[position:]]
        if not heads[0]:
            nodes.append(terms[position])
            position += 1
            continue
        n_terms = next(
            (k for k, head in enumerate(heads) if head != heads[0]), len(heads)
        )
        body = _peel(orders, terms[position : position + n_terms], depth + 1)
        nodes.append(NestLoop(heads[0][0], body))
        position += n_terms
    return tuple(nodes)


Order: TypeAlias = tuple[str, ...]
"""The loops of one term, from the outermost."""

Orders: TypeAlias = tuple[Order, ...]
"""The loops of each term of a path."""

Rule: TypeAlias = Literal["any", "relative", "prefix"]


def is_allowed(
    network: Network,
    rule: Rule,
    term: FactorProduct,
    ancestors: frozenset[str],
    index: str,
) -> bool:
    """Return whether a term may have a loop over an index inside these loops."""
    return list_needed_loops(network, rule, term, index) <= ancestors


def list_needed_loops(
    network: Network, rule: Rule, term: FactorProduct, index: str
) -> frozenset[str]:
    """Return the loops that must be around a term's loop over an index."""
    level = network.level_of.get(index)
    if rule == "any" or level is None:
        return frozenset()
    above = frozenset(network.levels[:level])
    return above & term.indices if rule == "relative" else above


def format_nest(nest: Nest) -> str:
    """Format a nest: the pairs of its path, then the orders of its terms.

    Operands are numbered by position, and the result of term t is n + t, for n
    operands. The orders imply whether only the last term sums.

    >>> from feinsum.nests import parse_network
    >>> mttkrp = parse_network("ijk,ja,ka->ia")
    >>> format_nest(parse_nest(mttkrp, "0 2, 3 1 | i j k a, i j a"))
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


def parse_nest(network: Network, text: str) -> Nest:
    """Invert :func:`format_nest`.

    Raises:
        InvalidEinsumError: with the rule ``nest``, if the text is no nest of the
            network.
    """
    pairs, separator, orders = text.partition("|")
    if not separator:
        raise _make_text_error(text, "expected 'pairs | orders', such as '0 1 | i j'")
    parsed = [_parse_pair(text, words) for words in pairs.split(",")]
    _require_path(text, parsed, len(network.inputs))
    named = tuple(tuple(order.split()) for order in orders.split(","))
    # the text does not say if all terms sum or only the last one: the orders tell
    path = build_path(network, parsed)
    if [sorted(order) for order in named] != [sorted(t.indices) for t in path]:
        path = build_path(network, parsed, late=True)
    return Nest(network, path, named)


def translate_text(
    text: str, indices: Mapping[str, str], positions: Sequence[int]
) -> str:
    """Rename the indices and renumber the operands in the text of a nest.

    Args:
        text: text of a nest.
        indices: new names of indices, by old names.
        positions: new position of each operand, by old position.

    >>> translate_text("0 1 | a b", {"a": "i", "b": "j"}, (1, 0))
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


def _parse_pair(text: str, words: str) -> tuple[int, int]:
    numbers = words.split()
    is_pair = len(numbers) == 2 and all(re.fullmatch("[0-9]{1,3}", n) for n in numbers)
    if not is_pair:
        raise _make_text_error(text, f"{words.strip()!r} is not a pair of numbers")
    return int(numbers[0]), int(numbers[1])


def _require_path(text: str, pairs: list[tuple[int, int]], n: int) -> None:
    """Check that every operand and all results but the last are used exactly once."""
    if len(pairs) != n - 1:
        raise _make_text_error(
            text, f"{len(pairs)} pairs; {format_count(n, 'operand')} need {n - 1}"
        )
    unused = set(range(n))
    for result, (first, second) in enumerate(pairs, n):
        if first == second or not {first, second} <= unused:
            raise _make_text_error(text, f"{first} {second} is out of range")
        unused = unused - {first, second} | {result}


def _make_text_error(text: str, reason: str) -> InvalidEinsumError:
    return InvalidEinsumError(f"nest text {text!r}: {reason}", rules=("nest",))
