"""Statements, the loop nests for which bounds are computed.

The matrix product ``ij,jk->ik`` is one statement, with an iteration for each (i, j, k)
and three accesses: A0 with the indices i and j, A1 with j and k, out with i and k.

Source: Kwasniewski et al. 2021 (SOAP).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from constantdict import constantdict


@dataclass(frozen=True)
class SoapAccess:
    """The arrays at one position of a statement.

    Attributes:
        name: name for messages: that of an operand, a product such as ``A*B``, or
            ``out``.
        indices: indices of the accesses, each once; their order is for messages.
        entry_bytes: fewest bytes of an entry. The bytes of an array at several
            positions of an einsum are divided among them.
        total_bytes: bytes of all entries of these arrays.
        most_shared: largest number of instances of the statement that share one array.
    """

    name: str
    indices: tuple[str, ...]
    entry_bytes: Fraction
    total_bytes: Fraction
    most_shared: int = 1


@dataclass(frozen=True)
class SoapStatement:
    """One multiply-add, or a product of several factors, for every index tuple.

    Attributes:
        accesses: the accesses of every step, including the result.
        extents: the extent of every index.
        n_instances: number of rows of a batch, each computed over all index tuples.
        symmetry: largest number of equal steps, as in ``A @ A.T``.
    """

    accesses: tuple[SoapAccess, ...]
    extents: Mapping[str, int]
    n_instances: int = 1
    symmetry: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "extents", constantdict(self.extents))

    @property
    def n_points(self) -> int:
        """The number of necessary steps.

        >>> make_statement("ij,jk->ik", {"i": 10**9, "j": 10**9, "k": 10**9}).n_points
        1000000000000000000000000000
        """
        n_tuples = self.n_instances * prod(self.extents.values())
        return -(-n_tuples // self.symmetry)

    @property
    def compulsory_bytes(self) -> Fraction:
        """Bytes of all entries of all arrays, each once."""
        return sum((access.total_bytes for access in self.accesses), Fraction(0))

    @property
    def step_bytes(self) -> Fraction:
        """Bytes of one entry of each array."""
        return sum((access.entry_bytes for access in self.accesses), Fraction(0))


def make_statement(
    subscripts: str, extents: Mapping[str, int], entry_bytes: int = 1
) -> SoapStatement:
    """Build a statement over distinct arrays.

    Args:
        subscripts: subscripts in letters, such as ``ijk,ja,ka->ia``.
        extents: the extent of every index.
        entry_bytes: bytes of an entry of every array; 1 counts entries.

    >>> [x.indices for x in make_statement("ij,j->i", {"i": 2, "j": 3}).accesses]
    [('i', 'j'), ('j',), ('i',)]
    """
    inputs, _, output = subscripts.partition("->")
    terms = [*inputs.split(","), output]
    names = [*(f"A{k}" for k in range(len(terms) - 1)), "out"]
    weight = Fraction(entry_bytes)
    return SoapStatement(
        tuple(
            SoapAccess(
                name,
                tuple(dict.fromkeys(term)),
                weight,
                weight * prod(extents[i] for i in set(term)),
            )
            for name, term in zip(names, terms, strict=True)
        ),
        {index: extents[index] for index in dict.fromkeys("".join(terms))},
    )
