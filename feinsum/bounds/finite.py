"""Certificates: exponents that prove how many bytes a statement must move.

For the product of two double matrices of 1000 with a memory of 1 MiB, a certificate has
the exponents 1/2, 1/2, 1/2 and a segment X of 2.9 MB, and proves 42 MB. Its proof is
exact arithmetic (:attr:`Certificate.n_bytes`), however it was found. The search is
numerical, and runs for many statements and memories at once::

    prices of a byte  ->  best tiles and exponents  ->  best segment X  ->  fractions
    (first pass: a coarse range; second pass: around the best)             exact bound

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from math import exp, floor, log
from typing import TypeAlias

import numpy as np
from constantdict import constantdict

from feinsum.bounds.asymptotic import Array, best_tiles
from feinsum.bounds.soap import SoapStatement

N_PRICES = 16
"""Points of the first pass, from the smallest memory to all bytes of a statement."""

SPREAD = np.linspace(-0.4, 0.4, 3)
"""Points of the second pass, around the best of the first."""

SQUARES = np.linspace(0, 1, 34)[1:-1] ** 2
"""Segments of the first pass: from the memory to where nothing is proved."""

NEARBY = np.linspace(-0.8, 0.8, 33)
"""Segments of the second pass: logarithms around the best of the first."""

CLOSE, HUGE = 0.1, 700.0

SIMPLE, FINE = 48, 10**6
"""Denominators of exponents: small where that is close."""

NEAR = 1e-4

Classes: TypeAlias = tuple[tuple[str, ...], ...]
"""Indices that are in the same arrays behave as one."""


@dataclass(frozen=True)
class FastMemory:
    """A fast memory of S bytes, and the number of its parallel copies."""

    n_bytes: int
    n_memories: int = 1


def certify(statement: SoapStatement, memory: FastMemory) -> Certificate:
    """Certify what a statement moves to and from a memory.

    >>> from feinsum.bounds.soap import statement
    >>> product = statement("ij,jk->ik", dict.fromkeys("ijk", 2000))
    >>> moved = certify(product, FastMemory(10_000)).n_bytes
    >>> round(moved / 2000**3 * 10_000**0.5, 4)  # 2 for large extents
    1.9997
    """
    return certified(surveyed([statement], [memory]), [memory])[0][0]


@dataclass(frozen=True)
class Survey:
    """A statement, and what a first pass found for every memory."""

    problem: _Problem
    choices: tuple[_Choice, ...]

    def estimated_bytes(self, memory: int) -> float:
        """Estimate the bytes that will be proved for a memory, by its position."""
        return exp(min(self.choices[memory].log_value, HUGE))


def surveyed(
    statements: Sequence[SoapStatement], memories: Sequence[FastMemory]
) -> list[Survey]:
    """Estimate all statements over the whole range of prices."""
    problems = [_Problem.of(statement) for statement in statements]
    # A price is the reciprocal of the bytes of a piece. Prices range from the smallest
    # memory to all bytes of the statement, plus one for safety.
    smallest = log(max(min(m.n_bytes for m in memories), 1))
    ends = [max(p.log_bytes, smallest) + 1.0 for p in problems]
    prices = [-np.linspace(smallest, end, N_PRICES) for end in ends]
    return [
        Survey(problem, _chosen(problem, memories, tried[1], None))
        for problem, tried in zip(problems, _tried(problems, prices), strict=True)
    ]


def certified(
    surveys: Sequence[Survey], memories: Sequence[FastMemory]
) -> list[list[Certificate]]:
    """Certify every statement for every memory, searching near the estimated best."""
    problems = [survey.problem for survey in surveys]
    near = [
        np.concatenate([choice.best_price + SPREAD for choice in survey.choices])
        for survey in surveys
    ]
    chosen = [
        _chosen(survey.problem, memories, tried[1], survey.choices)
        for survey, tried in zip(surveys, _tried(problems, near), strict=True)
    ]
    exact = [np.array([choice.best_price for choice in its]) for its in chosen]
    return [
        [
            _certificate(problem, memory, choice, tile)
            for memory, choice, tile in zip(memories, its, tiles, strict=True)
        ]
        for problem, its, (tiles, _) in zip(
            problems, chosen, _tried(problems, exact), strict=True
        )
    ]


def _tried(
    problems: Sequence[_Problem], prices: Sequence[Array]
) -> list[tuple[Array, Array]]:
    """Compute tiles and exponents of each problem, batching equal shapes."""
    solutions: dict[int, tuple[Array, Array]] = {}
    shapes: dict[tuple[int, ...], list[int]] = {}
    # Arrays of one shape are solved together: hundreds of small problems, one at a
    # time, would be bound by the overhead of numpy.
    for k, problem in enumerate(problems):
        shapes.setdefault(problem.member.shape, []).append(k)
    for chosen in shapes.values():
        tiles, shares = best_tiles(
            np.array([problems[k].member for k in chosen]),
            np.array([problems[k].log_weights for k in chosen]),
            np.array([problems[k].log_extents for k in chosen]),
            np.array([prices[k] for k in chosen]),
        )
        for k, its_tiles, its_shares in zip(chosen, tiles, shares, strict=True):
            solutions[k] = its_tiles, its_shares
    return [solutions[k] for k in range(len(problems))]


@dataclass(frozen=True)
class _Problem:
    """A statement in numbers, with indices by classes, and last the instances.

    What instances do not share has them as one more index.
    """

    statement: SoapStatement
    classes: Classes
    member: Array
    log_weights: Array
    log_extents: Array

    @classmethod
    def of(cls, statement: SoapStatement) -> _Problem:
        accesses, classes = statement.accesses, _classes(statement)
        n_instances = statement.n_instances
        member = np.array(
            [
                [names[0] in access.indices for names in classes]
                + [access.most_shared < n_instances]
                for access in accesses
            ]
        )
        # an array that may not be read, such as under a condition, proves nothing
        member &= np.array([[a.entry_bytes > 0] for a in accesses])
        weights = [
            log(a.entry_bytes) if a.entry_bytes > 0 else -np.inf for a in accesses
        ]
        extents = [_log_extent(statement, names) for names in classes]
        extents.append(log(n_instances))
        return cls(statement, classes, member, np.array(weights), np.array(extents))

    @property
    def log_steps(self) -> float:
        return log(max(self.statement.n_points, 1))

    @property
    def log_bytes(self) -> float:
        n_bytes = max(self.statement.compulsory_bytes, Fraction(1))
        return log(n_bytes.numerator) - log(n_bytes.denominator)


def _classes(statement: SoapStatement) -> Classes:
    """Group the indices of extents above 1 by the arrays that have them."""
    groups: dict[tuple[bool, ...], list[str]] = {}
    for index, extent in statement.extents.items():
        if extent > 1:
            its = tuple(index in access.indices for access in statement.accesses)
            groups.setdefault(its, []).append(index)
    return tuple(map(tuple, groups.values()))


def _log_extent(statement: SoapStatement, names: Sequence[str]) -> float:
    return sum(log(statement.extents[name]) for name in names)


@dataclass(frozen=True)
class _Choice:
    """The best exponents of one pass for one memory."""

    log_value: float
    log_segment: float
    exponents: Array

    @property
    def best_price(self) -> float:
        """The price at which a tile accesses just the segment."""
        return log(max(self.exponents.sum(), 1e-9)) - self.log_segment


def _chosen(
    problem: _Problem,
    memories: Sequence[FastMemory],
    shares: Array,
    near: Sequence[_Choice] | None,
) -> tuple[_Choice, ...]:
    """Choose for each memory the exponents and the segment that prove most.

    Args:
        problem: the statement as numbers.
        memories: the memories to certify for.
        shares: ``(P, A)``, the exponents of the arrays at each price.
        near: choices near whose segments to search; None for the whole range.
    """
    total = shares.sum(axis=1)
    # what the exponents of arrays leave uncovered, those of extents cover
    missing = np.maximum(1 - shares @ problem.member.astype(float), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(shares / total[:, None]) - problem.log_weights
        entropy = np.where(shares > 0, shares * logs, 0.0).sum(axis=1)
    # log of steps over H(X) is constant - total * log X
    spared = missing[:, :-1] @ problem.log_extents[:-1]
    constant = problem.log_steps - entropy - spared - _log_factors(problem, shares)
    small = np.log([[max(m.n_bytes, 1)] for m in memories])
    copies = np.array([[m.n_memories] for m in memories])
    if near is None:
        # beyond this X, one piece does all steps, and nothing is proved
        last = (constant - np.log(copies)) / np.maximum(total, 1e-9)
        last = np.clip(last, small + 1e-6, small + 60.0)
        segments = small[..., None] + (last - small)[..., None] * SQUARES
    else:
        middles = np.array([[choice.log_segment] for choice in near])
        segments = np.repeat((middles + NEARBY)[:, None, :], len(shares), axis=1)
    values = _log_values(constant, total, segments, small, copies)
    best = values.reshape(len(memories), -1).argmax(axis=1)
    estimates = []
    for m, position in enumerate(best):
        k, x = divmod(int(position), segments.shape[2])
        # between the points of the grid by a parabola: the value is flat at its maximum
        at = float(segments[m, k, x]) + _vertex(segments[m, k], values[m, k], x)
        estimates.append(_Choice(float(values[m, k, x]), at, shares[k]))
    return tuple(estimates)


def _log_values(
    constant: Array, total: Array, segments: Array, small: Array, copies: Array
) -> Array:
    """Return the logarithms of the proved bounds, by memory, price and segment."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        pieces = constant[:, None] - total[:, None] * segments
        values = (
            segments
            + np.log1p(-np.exp(small[..., None] - segments))
            + pieces
            + np.log1p(-copies[..., None] * np.exp(-pieces))
        )
    return np.where(np.isnan(values), -np.inf, values)


def _vertex(at: Array, values: Array, x: int) -> float:
    """Return the offset of a parabola's top through a point and its neighbours."""
    if not 0 < x < len(at) - 1 or at[x] - at[x - 1] > CLOSE:
        return 0.0
    before, center, after = (float(values[x + d]) for d in (-1, 0, 1))
    bend = before - 2 * center + after
    if not (np.isfinite(bend) and bend < 0):
        return 0.0
    return float(at[x] - at[x - 1]) * 0.5 * (before - after) / bend


def _log_factors(problem: _Problem, shares: Array) -> Array:
    """Compute :func:`feinsum.bounds.finite.log_factor` for many exponents."""
    n_instances = problem.statement.n_instances
    log_factors = np.zeros(len(shares))
    if n_instances == 1:
        return log_factors
    left = np.ones(len(shares))
    most = [access.most_shared for access in problem.statement.accesses]
    # exponents of arrays that few instances share are spent first: they cost least
    for a in sorted(range(len(most)), key=most.__getitem__):
        part = np.minimum(shares[:, a], left)
        left = left - part
        log_factors += part * log(most[a])
    return log_factors + left * log(n_instances)


def _certificate(
    problem: _Problem, memory: FastMemory, choice: _Choice, log_tile: Array
) -> Certificate:
    """Certify a choice with fractional exponents, choosing X again for these."""
    statement = problem.statement
    exponents = _fractions([float(s) for s in choice.exponents])
    return Certificate(
        statement,
        memory.n_bytes,
        memory.n_memories,
        max(_rounded(choice.log_segment), memory.n_bytes + 1),
        exponents,
        covered(statement, exponents),
        _tile(problem, log_tile),
    )


def _fractions(values: Sequence[float]) -> tuple[Fraction, ...]:
    """Round values to simple fractions if all are close to such."""
    simple = tuple(Fraction(s).limit_denominator(SIMPLE) for s in values)
    if all(abs(a - b) < NEAR for a, b in zip(simple, values, strict=True)):
        return simple
    return tuple(Fraction(round(s * FINE), FINE) for s in values)


def _rounded(log_value: float) -> int:
    """Round an exponential of any size to an integer."""
    # a double holds up to exp(709): larger values are scaled by a power of two
    shift = max(0, floor(log_value / log(2)) - 60)
    return int(exp(log_value - shift * log(2))) << shift


def _tile(problem: _Problem, log_tile: Array) -> Mapping[str, int]:
    """Distribute the extents of a tile's classes to their indices, the last first."""
    statement = problem.statement
    tile = dict.fromkeys(statement.extents, 1)
    for names, size in zip(problem.classes, log_tile, strict=False):
        left = exp(min(float(size), HUGE))
        for name in reversed(names):
            tile[name] = max(1, min(statement.extents[name], round(left)))
            left /= tile[name]
    return tile


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

    statement: SoapStatement
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
        # Logarithms lose as many digits as the number of steps has; a third of its bits
        # is more than that.
        n_digits = DIGITS + self.statement.n_points.bit_length() // 3
        with localcontext(Context(prec=n_digits)):
            log_steps = Decimal(self.statement.n_points).ln() - SLACK
            log_most = log_largest(
                self.statement,
                self.exponents,
                self.extent_exponents,
                Decimal(self.segment_bytes),
            )
            # the first piece of each memory may use what the memory held before
            n_pieces = (log_steps - log_most - SLACK).exp() - self.n_memories
            return max(int((self.segment_bytes - self.memory_bytes) * n_pieces), 0)


def log_largest(
    statement: SoapStatement,
    exponents: tuple[Fraction, ...],
    extent_exponents: Mapping[str, Fraction],
    segment_bytes: Decimal,
) -> Decimal:
    """Return the logarithm of H(X), in the precision of the context."""
    total = _decimal(sum(exponents, Fraction(0)))
    log_bytes = _decimal(Fraction(1)) * log_factor(statement, exponents)
    for access, s in zip(statement.accesses, exponents, strict=True):
        if s:
            share = _decimal(s) * segment_bytes / (total * _decimal(access.entry_bytes))
            log_bytes += _decimal(s) * share.ln()
    for index, t in extent_exponents.items():
        log_bytes += _decimal(t) * Decimal(statement.extents[index]).ln()
    return log_bytes


def log_factor(statement: SoapStatement, exponents: tuple[Fraction, ...]) -> Decimal:
    """Return the logarithm of F: how much more instances do than one with all bytes.

    With ``P[r,a]`` entries that instance r accesses of array a, Hoelder's inequality
    bounds ``sum(prod(P[r,a] ** s_a))`` by ``prod(sum(P[r,a]) ** h_a)`` for parts
    ``h_a`` of the exponents that add up to 1; the rest is bounded by the largest. An
    array that m instances share is counted m times then. For instances that share one
    of their arrays and have exponents of at least 1 elsewhere, F is 1: a batch has the
    intensity of one row.
    """
    left, log_sum = Fraction(1), Decimal(0)
    shared = sorted(
        (access.most_shared, s)
        for access, s in zip(statement.accesses, exponents, strict=True)
    )
    for most, s in shared:
        part = min(s, left)
        left -= part
        log_sum += _decimal(part) * Decimal(most).ln()
    return log_sum + _decimal(left) * Decimal(statement.n_instances).ln()


def covered(
    statement: SoapStatement, exponents: tuple[Fraction, ...]
) -> dict[str, Fraction]:
    """Return the least exponents of extents with which every index is covered."""
    exponent_of = {}
    for v in statement.extents:
        pairs = zip(statement.accesses, exponents, strict=True)
        missing = 1 - sum((s for a, s in pairs if v in a.indices), Fraction(0))
        if missing > 0:
            exponent_of[v] = missing
    return exponent_of


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)
