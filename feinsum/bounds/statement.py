"""Statements: a nest of loops that accesses arrays, as far as a bound sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from constantdict import constantdict

__all__ = ["Access", "Statement", "statement"]


@dataclass(frozen=True)
class Access:
    """The arrays that stand at one place of a statement.

    Attributes:
        name: for people: of an operand, of a product such as ``A*B``, or ``out``.
        indices: with which they are accessed, each once; their order is for people.
        entry_bytes: what an entry counts, at the least. An array at several places of
            an einsum counts a part at each.
        total_bytes: what all entries of all of them count.
        most_shared: so many instances of the statement share one array, at most.
    """

    name: str
    indices: tuple[str, ...]
    entry_bytes: Fraction
    total_bytes: Fraction
    most_shared: int = 1


@dataclass(frozen=True)
class Statement:
    """One multiply-add, or a product of several factors, for every index tuple.

    Attributes:
        accesses: what every step needs, the result included.
        extents: of every index.
        n_instances: rows of a batch that it computes, each over all index tuples.
        symmetry: so many steps may be one and the same, as in ``A @ A.T``.
    """

    accesses: tuple[Access, ...]
    extents: Mapping[str, int]
    n_instances: int = 1
    symmetry: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "extents", constantdict(self.extents))

    @property
    def n_points(self) -> int:
        """Steps that must be done, exactly.

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
) -> Statement:
    """A statement over arrays that are all different.

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
    return Statement(
        tuple(
            Access(
                name,
                tuple(dict.fromkeys(term)),
                weight,
                weight * prod(extents[i] for i in set(term)),
            )
            for name, term in zip(names, terms, strict=True)
        ),
        {index: extents[index] for index in dict.fromkeys("".join(terms))},
    )
