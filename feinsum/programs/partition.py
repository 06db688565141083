"""Partitions of statements among p processes, and what they cost in EinDecomp's model.

A partition says into how many parts each index of a statement is cut. Its kernel calls
are one for each combination of parts. Costs are upper bounds, in elements moved.

Source: EinDecomp, sections 5 to 7; ``docs/programs.md`` lists the misprints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import comb, prod
from typing import TypeAlias

from constantdict import constantdict

from feinsum.errors import ProgramError
from feinsum.programs.statement import Statement

__all__ = [
    "Partition",
    "aggregation_cost",
    "join_cost",
    "n_calls",
    "n_partitions",
    "repartition_cost",
    "viable_partitions",
]

Partition: TypeAlias = constantdict[str, int]
"""Parts of each index of a statement."""

Sizes: TypeAlias = Mapping[str, int]
"""Extents of the indices of a statement."""


def n_partitions(n_indices: int, p: int) -> int:
    """How many partitions have exactly ``p`` calls, if every part is a power of two.

    Source: EinDecomp, section 8.1; the list for p = 8 in section 8.2 lacks two of them.

    >>> n_partitions(6, 1024), n_partitions(3, 8)
    (3003, 10)
    """
    exponent = _exponent(p)
    return comb(exponent + n_indices - 1, exponent)


def viable_partitions(
    statement: Statement, sizes: Sizes, p: int
) -> tuple[Partition, ...]:
    """The partitions with ``p`` calls, or as many as there can be.

    No index is cut into more parts than it has values.

    Args:
        p: a power of two.

    >>> product = Statement("C", "ik", ("ij", "jk"), ("A", "B"))
    >>> len(viable_partitions(product, {"i": 8, "j": 8, "k": 8}, 8))
    10
    >>> [dict(d) for d in viable_partitions(product, {"i": 2, "j": 1, "k": 1}, 8)]
    [{'i': 2, 'k': 1, 'j': 1}]
    """
    exponent = _exponent(p)
    choices = [
        [1 << e for e in range(exponent + 1) if 1 << e <= max(sizes[index], 1)]
        for index in statement.indices
    ]
    found = [parts for parts in product(*choices) if prod(parts) <= p]
    most = max(map(prod, found))
    return tuple(
        constantdict(zip(statement.indices, parts, strict=True))
        for parts in found
        if prod(parts) == most
    )


def n_calls(partition: Mapping[str, int]) -> int:
    """Kernel calls of a statement.

    >>> n_calls({"i": 16, "j": 2, "k": 4})
    128
    """
    return prod(partition.values())


def join_cost(statement: Statement, partition: Partition, sizes: Sizes) -> int:
    """Elements of all blocks that the calls read.

    >>> product = Statement("C", "ik", ("ij", "jk"), ("A", "B"))
    >>> sizes = {"i": 8, "j": 8, "k": 8}
    >>> join_cost(product, constantdict(i=4, j=1, k=4), sizes)
    512
    """
    blocks = sum(_block(term, partition, sizes) for term in statement.inputs)
    return n_calls(partition) * blocks


def aggregation_cost(statement: Statement, partition: Partition, sizes: Sizes) -> int:
    """Elements of partial results that are sent to where they are reduced.

    >>> product = Statement("C", "ik", ("ij", "jk"), ("A", "B"))
    >>> sizes = {"i": 8, "j": 8, "k": 8}
    >>> aggregation_cost(product, constantdict(i=2, j=2, k=4), sizes)
    64
    """
    n_partial = prod(partition[index] for index in statement.reduced_indices)
    n_results = n_calls(partition) // n_partial
    return n_results * (n_partial - 1) * _block(statement.output, partition, sizes)


def repartition_cost(
    consumer: Sequence[int], producer: Sequence[int], shape: Sequence[int]
) -> int:
    """Elements that are moved to cut an array in another way.

    Every block of the consumer is put together from what it has in common with blocks
    of the producer, each of which is cut out of such a block and sent.

    Args:
        consumer, producer: parts of each axis.

    >>> repartition_cost((2, 4), (4, 1), shape=(8, 8))
    320
    """
    if tuple(consumer) == tuple(producer):
        return 0
    sizes = list(zip(shape, consumer, producer, strict=True))
    n_consumer = prod(_part(n, c) for n, c, _ in sizes)
    n_producer = prod(_part(n, q) for n, _, q in sizes)
    n_common = prod(min(_part(n, c), _part(n, q)) for n, c, q in sizes)
    n_blocks = prod(consumer)
    joined = (n_consumer // n_common - 1) * n_blocks * (n_consumer + n_producer)
    return joined + (n_producer != n_common) * n_producer * n_blocks


def _block(term: Sequence[str], partition: Partition, sizes: Sizes) -> int:
    return prod(_part(sizes[index], partition[index]) for index in term)


def _part(extent: int, parts: int) -> int:
    """The longest part of an index."""
    return -(-extent // parts)


def _exponent(p: int) -> int:
    if p < 1 or p & (p - 1):
        raise ProgramError(
            f"a program is cut for a power of two of processes, got {p}; take "
            f"{1 << max(p - 1, 0).bit_length()}"
        )
    return p.bit_length() - 1
