"""Certificates: exponents that prove how many bytes a statement must move.

Cut an execution where each piece moves ``X - S`` bytes, for a memory of S bytes. A
piece accesses at most X bytes: those already in the memory and those it moves. With
exponents ``s_a`` of arrays and ``t_v`` of indices that cover every index,
``s(arrays with v) + t_v >= 1``, it can do no more steps than::

    H(X) = F * prod((s_a X / (sigma w_a)) ** s_a) * prod(N_v ** t_v),  sigma = sum(s_a)

where ``w_a`` are bytes of an entry, ``N_v`` extents, and ``F`` is 1 except for batches
of rows that share arrays, see :func:`log_factor`. So V steps take at least
``(X - S) * (V / H(X) - p)`` bytes, with p parallel memories of S bytes each. Results
are accessed, too: the first access need not read, but writes, which counts the same.

Any X and covering exponents give a valid bound, so a numerical search for good ones
cannot make it wrong.

Source: Hong and Kung 1981; Irony, Toledo and Tiskin 2004; Dinh and Demmel 2020 (extents
as exponents); Kwasniewski et al. 2021 (SOAP); Ziogas et al., *Deinsum*, section IV.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction

from constantdict import constantdict

from feinsum.bounds.statement import Statement

__all__ = ["Certificate", "covered", "log_factor", "log_largest"]

DIGITS = 40
"""More digits than any realistic number of steps has; larger ones get more."""
SLACK = Decimal("1e-25")
"""By which logarithms are rounded, far more than their errors."""


@dataclass(frozen=True)
class Certificate:
    """A bound on the traffic of a statement, with its proof.

    Attributes:
        memory_bytes: S, of the fast memory.
        n_memories: p, the number of parallel memories.
        segment_bytes: X, the bytes that a piece of the execution may access.
        exponents: ``s_a``, one for each access of the statement.
        extent_exponents: ``t_v``.
        tile: index tuples of a piece that attains the bound, as far as tiles can.
    """

    statement: Statement
    memory_bytes: int
    n_memories: int
    segment_bytes: int
    exponents: tuple[Fraction, ...]
    extent_exponents: Mapping[str, Fraction]
    tile: Mapping[str, int]

    def __post_init__(self) -> None:
        for name in ("extent_exponents", "tile"):
            object.__setattr__(self, name, constantdict(getattr(self, name)))

    @property
    def total(self) -> Fraction:
        """Sigma, the sum of the exponents of the arrays."""
        return sum(self.exponents, Fraction(0))

    def is_valid(self) -> bool:
        """Whether the exponents cover every index, and X and S are valid."""
        accesses = list(zip(self.statement.accesses, self.exponents, strict=True))
        is_covered = all(
            sum((s for a, s in accesses if v in a.indices), Fraction(0))
            + self.extent_exponents.get(v, Fraction(0))
            >= 1
            for v in self.statement.extents
        )
        is_positive = min((*self.exponents, *self.extent_exponents.values()), default=0)
        is_weighed = all(a.entry_bytes > 0 for a, s in accesses if s)
        return (
            is_covered
            and is_positive >= 0
            and is_weighed
            and 0 <= self.memory_bytes < self.segment_bytes
            and self.n_memories >= 1
        )

    @property
    def n_bytes(self) -> int:
        """The proved minimum of bytes moved, rounded down."""
        if not (self.statement.n_points and any(self.exponents)):
            return 0
        n_digits = DIGITS + self.statement.n_points.bit_length() // 3
        with localcontext(Context(prec=n_digits)):
            log_steps = Decimal(self.statement.n_points).ln() - SLACK
            log_most = log_largest(
                self.statement,
                self.exponents,
                self.extent_exponents,
                Decimal(self.segment_bytes),
            )
            n_pieces = (log_steps - log_most - SLACK).exp() - self.n_memories
            return max(int((self.segment_bytes - self.memory_bytes) * n_pieces), 0)


def log_largest(
    statement: Statement,
    exponents: tuple[Fraction, ...],
    extent_exponents: Mapping[str, Fraction],
    segment_bytes: Decimal,
) -> Decimal:
    """The logarithm of H(X), in the precision of the context."""
    total = _decimal(sum(exponents, Fraction(0)))
    found = _decimal(Fraction(1)) * log_factor(statement, exponents)
    for access, s in zip(statement.accesses, exponents, strict=True):
        if s:
            share = _decimal(s) * segment_bytes / (total * _decimal(access.entry_bytes))
            found += _decimal(s) * share.ln()
    for index, t in extent_exponents.items():
        found += _decimal(t) * Decimal(statement.extents[index]).ln()
    return found


def log_factor(statement: Statement, exponents: tuple[Fraction, ...]) -> Decimal:
    """The logarithm of F, by which instances do more than one of all their bytes.

    With ``P[r,a]`` entries that instance r accesses of array a, Hoelder's inequality
    bounds ``sum(prod(P[r,a] ** s_a))`` by ``prod(sum(P[r,a]) ** h_a)`` for parts
    ``h_a`` of the exponents that add up to 1; the rest is bounded by the largest. An
    array that m instances share is counted m times then. For instances that share one
    of their arrays and have exponents of at least 1 elsewhere, F is 1: a batch has the
    intensity of one row.
    """
    left, found = Fraction(1), Decimal(0)
    shared = sorted(
        (access.most_shared, s)
        for access, s in zip(statement.accesses, exponents, strict=True)
    )
    for most, s in shared:
        part = min(s, left)
        left -= part
        found += _decimal(part) * Decimal(most).ln()
    return found + _decimal(left) * Decimal(statement.n_instances).ln()


def covered(
    statement: Statement, exponents: tuple[Fraction, ...]
) -> dict[str, Fraction]:
    """The least exponents of extents with which every index is covered."""
    found = {}
    for v in statement.extents:
        pairs = zip(statement.accesses, exponents, strict=True)
        missing = 1 - sum((s for a, s in pairs if v in a.indices), Fraction(0))
        if missing > 0:
            found[v] = missing
    return found


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)
