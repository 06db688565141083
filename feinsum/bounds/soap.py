"""Statements: loop nests that access arrays, as bounds see them."""

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
        name: for messages: of an operand, of a product such as ``A*B``, or ``out``.
        indices: of the accesses, each once; their order is for messages.
        entry_bytes: minimum bytes of an entry. An array at several positions of an
            einsum counts in part at each.
        total_bytes: bytes of all their entries.
        most_shared: maximum number of instances of the statement that share one array.
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
        accesses: of every step, including the result.
        extents: of every index.
        n_instances: rows of a batch, each computed over all index tuples.
        symmetry: maximum number of steps that are the same, as in ``A @ A.T``.
    """

    accesses: tuple[SoapAccess, ...]
    extents: Mapping[str, int]
    n_instances: int = 1
    symmetry: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "extents", constantdict(self.extents))

    @property
    def n_points(self) -> int:
        """The exact number of necessary steps.

        >>> statement("ij,jk->ik", {"i": 10**9, "j": 10**9, "k": 10**9}).n_points
        1000000000000000000000000000
        """
        n_tuples = self.n_instances * prod(self.extents.values())
        return -(-n_tuples // self.symmetry)

    @property
    def compulsory_bytes(self) -> Fraction:
        """All entries of all arrays, once."""
        return sum((access.total_bytes for access in self.accesses), Fraction(0))

    @property
    def step_bytes(self) -> Fraction:
        """One entry of each array."""
        return sum((access.entry_bytes for access in self.accesses), Fraction(0))


def statement(
    subscripts: str, extents: Mapping[str, int], entry_bytes: int = 1
) -> SoapStatement:
    """Build a statement over distinct arrays.

    Args:
        subscripts: in letters, such as ``ijk,ja,ka->ia``.
        extents: of every index.
        entry_bytes: of every array; 1 counts entries.

    >>> [x.indices for x in statement("ij,j->i", {"i": 2, "j": 3}).accesses]
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
