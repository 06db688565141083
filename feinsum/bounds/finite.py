"""Certificates: exponents that prove how many bytes a statement must move.

For the product of two matrices of 1000 x 1000 doubles with a memory of 1 MiB, a
certificate has the exponents 1/2, 1/2, 1/2 and a segment X of 2.9 MB, and proves 42 MB.
The proof is exact arithmetic (:attr:`Certificate.n_bytes`), independent of the search,
which is numerical and covers many statements and memories at once::

    prices of a byte  ->  best tiles and exponents  ->  best segment X  ->  fractions
    (first pass: a coarse range; second pass: around the best)             exact bound

Cut an execution into pieces that move ``X - S`` bytes each, for a memory of S bytes. A
piece accesses at most X bytes: those already in the memory, and those it moves. With
exponents ``s_a`` of arrays and ``t_v`` of indices that cover every index,
``s(arrays with v) + t_v >= 1``, it cannot do more steps than::

    H(X) = F * prod((s_a X / (sigma w_a)) ** s_a) * prod(N_v ** t_v),  sigma = sum(s_a)

where ``w_a`` are bytes of an entry, ``N_v`` extents, and ``F`` is 1 except for batches
of rows that share arrays; see :func:`compute_log_factor`. So V steps move at least
``(X - S) * (V / H(X) - p)`` bytes, with p parallel memories of S bytes each. Results
count, too: their first access need not read them, but they have to be written.

Any X and any covering exponents give a valid bound, so the numerical search cannot make
it wrong.

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

from feinsum.bounds.asymptotic import Array, find_best_tiles
from feinsum.bounds.soap import SoapStatement

N_PRICES = 16
"""Points of the first pass, from the smallest memory to all bytes of a statement."""

SPREAD = np.linspace(-0.4, 0.4, 3)
"""Points of the second pass, around the best of the first."""

SQUARES = np.linspace(0, 1, 34)[1:-1] ** 2
"""Segments of the first pass, between the memory and a size that proves nothing."""

NEARBY = np.linspace(-0.8, 0.8, 33)
"""Segments of the second pass: logarithms around the best of the first."""

CLOSE, HUGE = 0.1, 700.0

SIMPLE, FINE = 48, 10**6
"""Denominators of exponents: the small one if it is close enough."""

NEAR = 1e-4

Classes: TypeAlias = tuple[tuple[str, ...], ...]
"""Classes of indices: those of the same arrays act as one index."""


@dataclass(frozen=True)
class FastMemory:
    """A fast memory of S bytes, and the number of its parallel copies."""

    n_bytes: int
    n_memories: int = 1


def certify(statement: SoapStatement, memory: FastMemory) -> Certificate:
    """Certify the minimum traffic of a statement to and from a memory.

    >>> from feinsum.bounds.soap import make_statement
    >>> product = make_statement("ij,jk->ik", dict.fromkeys("ijk", 2000))
    >>> moved = certify(product, FastMemory(10_000)).n_bytes
    >>> round(moved / 2000**3 * 10_000**0.5, 4)  # 2 for large extents
    1.9997
    """
    return certify_all(survey_statements([statement], [memory]), [memory])[0][0]


@dataclass(frozen=True)
class Survey:
    """A statement, and the first pass's choice for every memory."""

    problem: _Problem
    choices: tuple[_Choice, ...]

    def estimate_bytes(self, memory: int) -> float:
        """Estimate the bytes that will be proved for a memory, by its position."""
        return exp(min(self.choices[memory].log_value, HUGE))


def survey_statements(
    statements: Sequence[SoapStatement], memories: Sequence[FastMemory]
) -> list[Survey]:
    """Estimate all statements over the whole range of prices."""
    problems = [_Problem.of(statement) for statement in statements]
    # A price is the reciprocal of the bytes of a piece. These range from the smallest
    # memory to all bytes of the statement, and a little more for safety.
    smallest = log(max(min(m.n_bytes for m in memories), 1))
    ends = [max(p.log_bytes, smallest) + 1.0 for p in problems]
    prices = [-np.linspace(smallest, end, N_PRICES) for end in ends]
    return [
        Survey(problem, _choose(problem, memories, tried[1], None))
        for problem, tried in zip(problems, _solve(problems, prices), strict=True)
    ]


def certify_all(
    surveys: Sequence[Survey], memories: Sequence[FastMemory]
) -> list[list[Certificate]]:
    """Certify every statement for every memory, searching near the estimated best."""
    problems = [survey.problem for survey in surveys]
    near = [
        np.concatenate([choice.best_price + SPREAD for choice in survey.choices])
        for survey in surveys
    ]
    chosen = [
        _choose(survey.problem, memories, tried[1], survey.choices)
        for survey, tried in zip(surveys, _solve(problems, near), strict=True)
    ]
    exact = [
        np.array([choice.best_price for choice in memory_choices])
        for memory_choices in chosen
    ]
    return [
        [
            _make_certificate(problem, memory, choice, tile)
            for memory, choice, tile in zip(
                memories, memory_choices, tiles, strict=True
            )
        ]
        for problem, memory_choices, (tiles, _) in zip(
            problems, chosen, _solve(problems, exact), strict=True
        )
    ]


def _solve(
    problems: Sequence[_Problem], prices: Sequence[Array]
) -> list[tuple[Array, Array]]:
    """Compute tiles and exponents of each problem, batching equal shapes."""
    solutions: dict[int, tuple[Array, Array]] = {}
    shapes: dict[tuple[int, ...], list[int]] = {}
    # solve problems of one shape together: numpy's overhead would dominate hundreds of
    # small ones
    for k, problem in enumerate(problems):
        shapes.setdefault(problem.member.shape, []).append(k)
    for same_shape in shapes.values():
        tiles, shares = find_best_tiles(
            np.array([problems[k].member for k in same_shape]),
            np.array([problems[k].log_weights for k in same_shape]),
            np.array([problems[k].log_extents for k in same_shape]),
            np.array([prices[k] for k in same_shape]),
        )
        for k, problem_tiles, problem_shares in zip(
            same_shape, tiles, shares, strict=True
        ):
            solutions[k] = problem_tiles, problem_shares
    return [solutions[k] for k in range(len(problems))]


@dataclass(frozen=True)
class _Problem:
    """A statement as arrays, with an index for each class, and one for the instances.

    Arrays that not all instances share have the index of the instances, which is last.
    """

    statement: SoapStatement
    classes: Classes
    member: Array
    log_weights: Array
    log_extents: Array

    @classmethod
    def of(cls, statement: SoapStatement) -> _Problem:
        accesses, classes = statement.accesses, _group_indices(statement)
        n_instances = statement.n_instances
        member = np.array(
            [
                [names[0] in access.indices for names in classes]
                + [access.most_shared < n_instances]
                for access in accesses
            ]
        )
        # an array that may not be read, as under a condition, proves nothing
        member &= np.array([[a.entry_bytes > 0] for a in accesses])
        weights = [
            log(a.entry_bytes) if a.entry_bytes > 0 else -np.inf for a in accesses
        ]
        extents = [sum(log(statement.extents[i]) for i in names) for names in classes]
        extents.append(log(n_instances))
        return cls(statement, classes, member, np.array(weights), np.array(extents))

    @property
    def log_steps(self) -> float:
        return log(max(self.statement.n_points, 1))

    @property
    def log_bytes(self) -> float:
        n_bytes = max(self.statement.compulsory_bytes, Fraction(1))
        return log(n_bytes.numerator) - log(n_bytes.denominator)


def _group_indices(statement: SoapStatement) -> Classes:
    """Group the indices of extents above 1 by the arrays that have them."""
    groups: dict[tuple[bool, ...], list[str]] = {}
    for index, extent in statement.extents.items():
        if extent > 1:
            membership = tuple(index in access.indices for access in statement.accesses)
            groups.setdefault(membership, []).append(index)
    return tuple(map(tuple, groups.values()))


@dataclass(frozen=True)
class _Choice:
    """The best exponents of one pass for one memory."""

    log_value: float
    log_segment: float
    exponents: Array

    @property
    def best_price(self) -> float:
        """The price at which the best tile accesses exactly the segment."""
        return log(max(self.exponents.sum(), 1e-9)) - self.log_segment


def _choose(
    problem: _Problem,
    memories: Sequence[FastMemory],
    shares: Array,
    near: Sequence[_Choice] | None,
) -> tuple[_Choice, ...]:
    """Choose the exponents and the segment that prove the most, for each memory.

    Args:
        problem: the statement as numbers.
        memories: the memories to certify for.
        shares: ``(P, A)``, the exponents of the arrays at each price.
        near: choices near whose segments to search; None for the whole range.
    """
    # everything is in logarithms: steps and bytes exceed the range of doubles
    total = shares.sum(axis=1)
    # the exponents of extents cover what those of arrays leave uncovered
    missing = np.maximum(1 - shares @ problem.member.astype(float), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(shares / total[:, None]) - problem.log_weights
        entropy = np.where(shares > 0, shares * logs, 0.0).sum(axis=1)
    # log of steps over H(X) is constant - total * log X
    spared = missing[:, :-1] @ problem.log_extents[:-1]
    constant = (
        problem.log_steps - entropy - spared - _compute_log_factors(problem, shares)
    )
    small = np.log([[max(m.n_bytes, 1)] for m in memories])
    copies = np.array([[m.n_memories] for m in memories])
    if near is None:
        # for a larger X, one piece does all steps, and nothing is proved
        last = (constant - np.log(copies)) / np.maximum(total, 1e-9)
        last = np.clip(last, small + 1e-6, small + 60.0)
        segments = small[..., None] + (last - small)[..., None] * SQUARES
    else:
        middles = np.array([[choice.log_segment] for choice in near])
        segments = np.repeat((middles + NEARBY)[:, None, :], len(shares), axis=1)
    values = _compute_log_values(constant, total, segments, small, copies)
    best = values.reshape(len(memories), -1).argmax(axis=1)
    estimates = []
    for m, position in enumerate(best):
        k, x = divmod(int(position), segments.shape[2])
        # interpolate between grid points by a parabola, as the maximum is flat
        log_segment = float(segments[m, k, x]) + _find_vertex(
            segments[m, k], values[m, k], x
        )
        estimates.append(_Choice(float(values[m, k, x]), log_segment, shares[k]))
    return tuple(estimates)


def _compute_log_values(
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


def _find_vertex(segments: Array, values: Array, x: int) -> float:
    """Return the offset of the vertex of a parabola through a point's neighbours."""
    if not 0 < x < len(segments) - 1 or segments[x] - segments[x - 1] > CLOSE:
        return 0.0
    before, center, after = (float(values[x + d]) for d in (-1, 0, 1))
    bend = before - 2 * center + after
    if not (np.isfinite(bend) and bend < 0):
        return 0.0
    return float(segments[x] - segments[x - 1]) * 0.5 * (before - after) / bend


def _compute_log_factors(problem: _Problem, shares: Array) -> Array:
    """Compute :func:`feinsum.bounds.finite.compute_log_factor` for many exponents."""
    n_instances = problem.statement.n_instances
    log_factors = np.zeros(len(shares))
    if n_instances == 1:
        return log_factors
    unspent = np.ones(len(shares))
    most = [access.most_shared for access in problem.statement.accesses]
    # spend the exponents of arrays that few instances share first: they cost least
    for a in sorted(range(len(most)), key=most.__getitem__):
        spent = np.minimum(shares[:, a], unspent)
        unspent = unspent - spent
        log_factors += spent * log(most[a])
    return log_factors + unspent * log(n_instances)


def _make_certificate(
    problem: _Problem, memory: FastMemory, choice: _Choice, log_tile: Array
) -> Certificate:
    """Make the certificate of a choice, with exponents rounded to fractions."""
    statement = problem.statement
    exponents = _round_to_fractions([float(s) for s in choice.exponents])
    return Certificate(
        statement,
        memory.n_bytes,
        memory.n_memories,
        max(_round_exponential(choice.log_segment), memory.n_bytes + 1),
        exponents,
        compute_extent_exponents(statement, exponents),
        _split_tile(problem, log_tile),
    )


def _round_to_fractions(values: Sequence[float]) -> tuple[Fraction, ...]:
    """Round values to simple fractions if all are close to some, else to fine ones."""
    simple = tuple(Fraction(s).limit_denominator(SIMPLE) for s in values)
    if all(abs(a - b) < NEAR for a, b in zip(simple, values, strict=True)):
        return simple
    return tuple(Fraction(round(s * FINE), FINE) for s in values)


def _round_exponential(log_value: float) -> int:
    """Round an exponential of any size to an integer."""
    # doubles overflow at exp(709): scale larger values by a power of two
    shift = max(0, floor(log_value / log(2)) - 60)
    return int(exp(log_value - shift * log(2))) << shift


def _split_tile(problem: _Problem, log_tile: Array) -> Mapping[str, int]:
    """Distribute the extents of a tile's classes to their indices, the last first."""
    statement = problem.statement
    tile = dict.fromkeys(statement.extents, 1)
    for names, size in zip(problem.classes, log_tile, strict=False):
        size_left = exp(min(float(size), HUGE))
        for name in reversed(names):
            tile[name] = max(1, min(statement.extents[name], round(size_left)))
            size_left /= tile[name]
    return tile


DIGITS = 40
"""Digits of the arithmetic, more than realistic numbers of steps have."""

SLACK = Decimal("1e-25")
"""Amount by which logarithms are rounded, far more than their errors."""


@dataclass(frozen=True)
class Certificate:
    """A bound on the traffic of a statement, with its proof.

    Attributes:
        statement: the statement.
        memory_bytes: S, the bytes of the fast memory.
        n_memories: p, the number of parallel memories.
        segment_bytes: X, the bytes that a piece of the execution may access.
        exponents: ``s_a``, one for each access of the statement.
        extent_exponents: ``t_v``, one for each index that needs it.
        tile: the number of values of each index in a piece that nearly attains the
            bound.
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
        """Return whether the exponents cover every index, and X and S are valid."""
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
        # logarithms lose as many digits as the number of steps has, which is less than
        # a third of its bits
        n_digits = DIGITS + self.statement.n_points.bit_length() // 3
        with localcontext(Context(prec=n_digits)):
            log_steps = Decimal(self.statement.n_points).ln() - SLACK
            log_most = compute_log_largest(
                self.statement,
                self.exponents,
                self.extent_exponents,
                Decimal(self.segment_bytes),
            )
            # the first piece of each memory may use its initial contents
            n_pieces = (log_steps - log_most - SLACK).exp() - self.n_memories
            return max(int((self.segment_bytes - self.memory_bytes) * n_pieces), 0)


def compute_log_largest(
    statement: SoapStatement,
    exponents: tuple[Fraction, ...],
    extent_exponents: Mapping[str, Fraction],
    segment_bytes: Decimal,
) -> Decimal:
    """Return the logarithm of H(X), in the precision of the context."""
    total = _convert_to_decimal(sum(exponents, Fraction(0)))
    log_bytes = _convert_to_decimal(Fraction(1)) * compute_log_factor(
        statement, exponents
    )
    for access, s in zip(statement.accesses, exponents, strict=True):
        if s:
            share = (
                _convert_to_decimal(s)
                * segment_bytes
                / (total * _convert_to_decimal(access.entry_bytes))
            )
            log_bytes += _convert_to_decimal(s) * share.ln()
    for index, t in extent_exponents.items():
        log_bytes += _convert_to_decimal(t) * Decimal(statement.extents[index]).ln()
    return log_bytes


def compute_log_factor(
    statement: SoapStatement, exponents: tuple[Fraction, ...]
) -> Decimal:
    """Return the logarithm of F, the gain of several instances over one with all bytes.

    Let instance r access ``P[r,a]`` entries of array a. Hoelder's inequality bounds
    ``sum(prod(P[r,a] ** s_a))`` by ``prod(sum(P[r,a]) ** h_a)`` for parts ``h_a`` of
    the exponents that add up to 1; the largest ``P[r,a]`` bounds the remaining powers.
    The sum counts an array that m instances share m times. If instances share one of
    their arrays and the exponents of the others add up to at least 1, F is 1: a batch
    then has the intensity of one row.
    """
    unspent, log_sum = Fraction(1), Decimal(0)
    shared = sorted(
        (access.most_shared, s)
        for access, s in zip(statement.accesses, exponents, strict=True)
    )
    for most, s in shared:
        spent = min(s, unspent)
        unspent -= spent
        log_sum += _convert_to_decimal(spent) * Decimal(most).ln()
    return log_sum + _convert_to_decimal(unspent) * Decimal(statement.n_instances).ln()


def compute_extent_exponents(
    statement: SoapStatement, exponents: tuple[Fraction, ...]
) -> dict[str, Fraction]:
    """Return the smallest exponents of extents with which every index is covered."""
    exponent_of = {}
    for v in statement.extents:
        pairs = zip(statement.accesses, exponents, strict=True)
        missing = 1 - sum((s for a, s in pairs if v in a.indices), Fraction(0))
        if missing > 0:
            exponent_of[v] = missing
    return exponent_of


def _convert_to_decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)
