"""The minimum cost of an einsum at every level of memory, and of recorded facts.

For a matrix product of 1000 x 1000 doubles, 1 MiB of cache ahead of the memory, and a
bandwidth of 20 GB/s::

    every array once             24 MB
    any order of execution       42 MB    a certificate of :mod:`feinsum.bounds.finite`
    time at least                2.1 ms   42 MB / 20 GB/s
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property, lru_cache
from math import ceil, inf
from typing import Any

import numpy as np
from constantdict import constantdict

from feinsum.bounds.asymptotic import compute_intensity
from feinsum.bounds.factors import Factors, build_factors
from feinsum.bounds.finite import FastMemory
from feinsum.bounds.levels import MemoryLevel, combine_levels_ahead, list_levels
from feinsum.bounds.paths import ALL_UP_TO, PathBound, bound_paths, count_fewest_steps
from feinsum.bounds.programs import bound_program_traffic, count_compulsory_bytes
from feinsum.errors import BoundError, FeinsumError
from feinsum.ir import BatchedEinsum, FunctionalBatchedEinsum, from_text
from feinsum.ir.program import Program
from feinsum.records import Device, DevicePeaks, TuningRecord, compute_operations_s
from feinsum.words import format_brief, format_count

ARITHMETIC = "arithmetic"

MOST_WIDTH = 80

MOST_SECONDS = 1e300


@dataclass(frozen=True)
class LevelBound:
    """The traffic between a level and all levels nearer to the arithmetic.

    Attributes:
        level: the level.
        memory: all nearer levels, as one fast memory; None if unknown, in which case
            every array counts once.
        path: the considered order of products that moves the least; without steps if
            the memory is unknown.
    """

    level: MemoryLevel
    memory: FastMemory | None
    path: PathBound

    @cached_property
    def asymptotic_bytes(self) -> float:
        """Steps over intensity, the figure of the paper for that order.

        It is no bound for small extents.
        """
        n_bytes = 0 if self.memory is None else self.memory.n_bytes
        steps = self.path.steps
        return sum(_compute_asymptotic_bytes(x.statement, n_bytes) for x in steps)

    @property
    def compulsory_bytes(self) -> int:
        """Bytes of all operands and results."""
        return self.path.compulsory_bytes

    @property
    def n_bytes(self) -> int:
        """The minimum traffic: at least every array once."""
        return self.path.n_bytes

    @property
    def stored_bytes(self) -> int:
        """The minimum traffic if all intermediates pass through this level."""
        return self.path.stored_bytes

    @property
    def seconds(self) -> float | None:
        """The minimum time; None if the bandwidth was not measured."""
        rate = self.level.bandwidth_bytes_per_s
        if rate is None:
            return None
        # int / float overflows for the huge extents that a fact may state, and JSON has
        # no infinity
        return min(float(Decimal(self.n_bytes) / Decimal(rate)), MOST_SECONDS)

    @property
    def tile(self) -> Mapping[str, int]:
        """The tile of the step with the most excess traffic; empty if there is none."""
        most = max(self.path.steps, key=lambda step: step.excess_bytes, default=None)
        if most is None or not most.excess_bytes:
            return constantdict()
        return most.certificate.tile

    @property
    def steps(self) -> tuple[str, ...]:
        return tuple(map(str, self.path.steps))


@dataclass(frozen=True)
class Bound:
    """Lower bounds of an einsum on a device.

    Attributes:
        einsum: subscripts of the einsum.
        sizes: values of size parameters.
        compulsory_bytes: bytes of all operands and results.
        levels: the levels after the nearest one, to the memory.
        operations_s: minimum time of the arithmetic; None if unknown.
        scope: a description of the orders of products that were considered.
        nearest: the level nearest to the arithmetic, usually registers; None if only
            the memory is known.
    """

    einsum: str
    sizes: Mapping[str, int]
    compulsory_bytes: int
    levels: tuple[LevelBound, ...]
    operations_s: float | None
    scope: str
    nearest: MemoryLevel | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", constantdict(self.sizes))

    @cached_property
    def _seconds(self) -> dict[str, float]:
        timed = {level.level.name: level.seconds for level in self.levels}
        timed[ARITHMETIC] = self.operations_s
        return {name: time for name, time in timed.items() if time is not None}

    @property
    def seconds(self) -> float | None:
        """The largest known minimum time; None if none is known."""
        # transfers of different levels and arithmetic may overlap: their sum would be
        # no bound
        return max(self._seconds.values(), default=None)

    @property
    def limit(self) -> str | None:
        """The name of what limits that time: a level, or ``arithmetic``."""
        return max(self._seconds, key=self._seconds.__getitem__, default=None)

    def level(self, name: str) -> LevelBound:
        """Return the traffic of a level, by its name.

        Raises:
            BoundError: if there is no such level.
        """
        for level_bound in self.levels:
            if level_bound.level.name == name:
                return level_bound
        names = ", ".join(level_bound.level.name for level_bound in self.levels)
        raise BoundError(f"there is no memory level {name!r}; expected one of {names}")

    def with_operations(self, operations_s: float) -> Bound:
        """Return the bound with a minimum time of the arithmetic."""
        return replace(self, operations_s=operations_s)

    def document(self) -> dict[str, Any]:
        """Return the bound as JSON."""
        return {
            "einsum": self.einsum,
            "sizes": dict(self.sizes),
            "compulsory_bytes": self.compulsory_bytes,
            "operations_s": self.operations_s,
            "seconds": self.seconds,
            "limit": self.limit,
            "scope": self.scope,
            "nearest": None
            if self.nearest is None
            else _make_size_document(self.nearest),
            "levels": [_make_document(level_bound) for level_bound in self.levels],
        }

    def __repr__(self) -> str:
        moved = ", ".join(
            f"{level_bound.level.name} {_format_megabytes(level_bound.n_bytes)} MB"
            for level_bound in self.levels
        )
        time = f"; {self.seconds * 1e6:.4g} us" if self.seconds is not None else ""
        return format_brief(self, f"{self.einsum}: at least {moved}{time}")

    def __str__(self) -> str:
        return "\n".join(self._format_lines())

    def _format_lines(self) -> Iterator[str]:
        yield f"{'level':<10}{'size':>10}{'GB/s':>8}{'MB at least':>13}{'us':>11}  tile"
        if self.nearest is not None:
            time = self.operations_s
            yield (
                f"{self.nearest.name:<10}{_format_size(self.nearest):>10}{'-':>8}{'-':>13}"
                f"{'-' if time is None else f'{time * 1e6:.4g}':>11}  (arithmetic)"
            )
        for level_bound in self.levels:
            rate = level_bound.level.bandwidth_bytes_per_s
            time = level_bound.seconds
            yield (
                f"{level_bound.level.name:<10}{_format_size(level_bound.level):>10}"
                f"{'-' if rate is None else f'{rate * 1e-9:.4g}':>8}"
                f"{_format_megabytes(level_bound.n_bytes):>13}"
                f"{'-' if time is None else f'{time * 1e6:.4g}':>11}"
                f"  {_format_tile(level_bound.tile)}"
            ).rstrip()
        yield f"every array once: {_format_megabytes(self.compulsory_bytes)} MB"
        if self.seconds is not None:
            yield f"at least {self.seconds * 1e6:.4g} us: {self.limit}"
        if self.sizes:
            yield f"at {', '.join(f'{name}={n}' for name, n in self.sizes.items())}"
        yield f"least over {self.scope}"


def compute_bound(
    einsum: BatchedEinsum | FunctionalBatchedEinsum | Program,
    sizes: Mapping[str, int],
    levels: Sequence[MemoryLevel],
) -> Bound:
    """Compute bounds for levels of memory, the nearest first.

    Args:
        einsum: the einsum, one with functions as operands, or a program.
        sizes: the value of every size parameter.
        levels: the memory levels, the nearest first.

    Raises:
        BoundError: if a size is missing, a memory is too small for one step, or an
            operand is sparse.
    """
    if not levels:
        raise BoundError("no memory level is given; expected at least one")
    if isinstance(einsum, BatchedEinsum) and einsum.sparse_position is not None:
        raise BoundError(
            f"an operand of {einsum.subscripts} is sparse; bounds are computed for "
            "dense operands only"
        )
    ahead = [combine_levels_ahead(levels, number) for number in range(len(levels))]
    memories = [memory for memory in ahead if memory is not None]
    if isinstance(einsum, Program):
        text = "; ".join(map(str, einsum.statements))
        compulsory = count_compulsory_bytes(einsum, sizes)
        paths = iter(bound_program_traffic(einsum, sizes, memories))
        scope = "all schedules of the statements as written"
    else:
        factors = build_factors(einsum, sizes)
        text = str(factors.einsum.subscripts)
        compulsory = factors.compulsory_bytes
        paths = iter(_bound_paths(factors, memories))
        scope = _describe_scope(factors.einsum.n_operands)
    whole = PathBound(compulsory, ())
    level_bounds = tuple(
        LevelBound(level, memory, whole if memory is None else next(paths))
        for number, (level, memory) in enumerate(zip(levels, ahead, strict=True))
        if number or len(levels) == 1
    )
    nearest = levels[0] if len(levels) > 1 else None
    return Bound(text, sizes, compulsory, level_bounds, None, scope, nearest)


def compute_least_bytes(
    einsum: BatchedEinsum | FunctionalBatchedEinsum,
    sizes: Mapping[str, int],
    memory_bytes: int,
    n_memories: int = 1,
) -> int:
    """Return the fewest bytes that an execution moves to and from a fast memory.

    >>> from feinsum.ir import array, einsum
    >>> A, B = array("A", (500, 500)), array("B", (500, 500))
    >>> compute_least_bytes(einsum("ij,jk->ik", A, B), {}, 8 * 1024) // 10**6
    62
    """
    factors = build_factors(einsum, sizes)
    (path,) = _bound_paths(factors, [FastMemory(memory_bytes, n_memories)])
    return path.n_bytes


def _bound_paths(factors: Factors, memories: Sequence[FastMemory]) -> list[PathBound]:
    for memory in memories:
        if memory.n_memories < 1 or memory.n_bytes < factors.step_bytes:
            raise BoundError(
                f"a memory of {memory.n_bytes} bytes; one step of "
                f"{factors.einsum.subscripts} needs {factors.step_bytes} bytes, an "
                "entry of each array"
            )
    if factors.is_empty or not memories:
        return [PathBound(factors.compulsory_bytes, ()) for _ in memories]
    return bound_paths(factors, memories)


def _compute_asymptotic_bytes(statement: Any, memory_bytes: int) -> float:
    try:
        rho = compute_intensity(statement).steps_per_byte(memory_bytes)
        return float(statement.n_points) / rho if rho else 0.0
    except OverflowError:
        return inf


def _describe_scope(n_operands: int) -> str:
    if n_operands == 1:
        return "one pass over the operand"
    if n_operands == 2:
        return "one product"
    if n_operands <= ALL_UP_TO:
        return f"all orders and fusions of {format_count(n_operands, 'operand')}"
    return (
        f"some good orders of {format_count(n_operands, 'operand')}, and fusions of "
        "neighbours"
    )


def _make_document(level_bound: LevelBound) -> dict[str, Any]:
    level, memory = level_bound.level, level_bound.memory
    return {
        **_make_size_document(level),
        "bandwidth_bytes_per_s": level.bandwidth_bytes_per_s,
        "memory_ahead_bytes": None if memory is None else memory.n_bytes,
        "n_memories_ahead": None if memory is None else memory.n_memories,
        "bytes": level_bound.n_bytes,
        "stored_bytes": level_bound.stored_bytes,
        "asymptotic_bytes": None if level_bound.asymptotic_bytes == inf
        else ceil(level_bound.asymptotic_bytes),
        "seconds": level_bound.seconds,
        "tile": dict(level_bound.tile),
        "steps": list(level_bound.steps),
    }  # fmt: skip


def _format_megabytes(n_bytes: int) -> str:
    """Format megabytes of any size.

    >>> _format_megabytes(1234567890), _format_megabytes(10**400)
    ('1234.57', '1e+394')
    """
    if n_bytes < 10**18:
        return f"{n_bytes * 1e-6:.6g}"
    return f"{Decimal(n_bytes).scaleb(-6).normalize():.6g}"


def _make_size_document(level: MemoryLevel) -> dict[str, Any]:
    return {"name": level.name, "size_bytes": level.n_bytes, "n_copies": level.n_copies}


def _format_size(level: MemoryLevel) -> str:
    if level.n_bytes is None:
        return "-"
    copies = "" if level.n_copies == 1 else f"{level.n_copies}x"
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if level.n_bytes >= unit:
            return f"{copies}{level.n_bytes / unit:.4g} {name}"
    return f"{copies}{level.n_bytes} B"


def _format_tile(tile: Mapping[str, int]) -> str:
    text = " ".join(f"{index}={size}" for index, size in tile.items())
    return text if len(text) <= MOST_WIDTH - 54 else f"{text[: MOST_WIDTH - 57]}..."


MOST_OPERANDS, MOST_ACCESSES, MOST_INDICES = 10, 2000, 30
"""Facts of larger einsums get no bound: anybody can upload them to a service."""


def bound_record(record: TuningRecord, peaks: DevicePeaks | None) -> Bound | None:
    """Compute the bound of a fact at its sizes on its device; None if it has none.

    A fact may contain anything, so one without a bound is not an error.

    Args:
        record: the fact.
        peaks: limits of the fact's device; without them there are no times.
    """
    measured, device = record.measurement, record.environment.device
    bound = _compute_bound(record.workload_text, measured.sizes, device, peaks)
    try:
        if bound is not None and peaks is not None:
            return bound.with_operations(
                compute_operations_s(measured.operations, peaks)
            )
    except (FeinsumError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        pass  # the rate of the dtype is unknown, or the dtype is invalid
    return bound


@lru_cache(maxsize=512)
def _compute_bound(
    text: str, sizes: Mapping[str, int], device: Device, peaks: DevicePeaks | None
) -> Bound | None:
    """Compute the bound of all facts of a workload at these sizes on a device."""
    try:
        einsum = from_text(text)
        n_accesses = einsum.n_operands * einsum.batch_size
        if (
            einsum.n_operands > MOST_OPERANDS
            or n_accesses > MOST_ACCESSES
            or len(einsum.indices) > MOST_INDICES
        ):
            return None
        return compute_bound(einsum, sizes, list_levels(device, peaks))
    except (FeinsumError, OverflowError):
        return None


def compute_shares(bound: Bound, measured_s: float) -> dict[str, float]:
    """Return the used share of the bandwidth, for every level with a known time.

    It is above 1 if arrays were in the caches before the work began.

    >>> from feinsum.bounds import MemoryLevel
    >>> from feinsum.ir import array, einsum
    >>> levels = [MemoryLevel("cache", 1000), MemoryLevel("memory", None, 1, 1e9)]
    >>> copied = einsum("ij->ji", array("A", (1000, 1000)))
    >>> compute_shares(compute_bound(copied, {}, levels), 0.032)
    {'memory': 0.5}
    """
    return {
        level_bound.level.name: level_bound.seconds / measured_s
        for level_bound in bound.levels
        if level_bound.seconds is not None
    }


def compute_least_s(
    einsum: BatchedEinsum, sizes: Mapping[str, int], device: Device, peaks: DevicePeaks
) -> float:
    """Return a lower bound on the time of repeated runs; 0 if nothing is known.

    In repeated runs, caches may hold data of the previous run at the beginning, and
    results at the end that are never written back. So twice the nearer memory is
    subtracted from the bytes of each level. Only multiply-adds that every order of
    products needs count. Measured limits are not exact: allow for a factor, such as 2.

    Raises:
        BoundError: if a size has no value.

    >>> cpu = Device("Host", "a CPU", "", "cpu", "x86_64", 2)
    >>> peaks = DevicePeaks(cpu, 1e10, {"<f8": 1e9}, "2026-01-01T00:00:00+00:00")
    >>> from feinsum.ir import array, einsum
    >>> product = einsum("ij,jk->ik", array("A", (100, 100)), array("B", (100, 100)))
    >>> compute_least_s(product, {}, cpu, peaks)
    0.002
    """
    levels = list_levels(device, peaks)
    bound = compute_bound(einsum, sizes, levels)
    times = [_compute_arithmetic_s(build_factors(einsum, sizes), peaks)]
    for level_bound in bound.levels:
        rate = level_bound.level.bandwidth_bytes_per_s
        # if the size of the caches is unknown, they may hold all arrays
        if rate and level_bound.memory is not None:
            cached_bytes = (
                2 * level_bound.memory.n_bytes * level_bound.memory.n_memories
            )
            times.append(max(level_bound.n_bytes - cached_bytes, 0) / rate)
    return max(times)


def _compute_arithmetic_s(factors: Factors, peaks: DevicePeaks) -> float:
    """Bound the time of the fewest multiply-adds, at the rate of the fastest dtype."""
    einsum = factors.einsum
    rates = peaks.operations_per_s
    real = {np.empty(0, dtype).real.dtype.str for dtype in einsum.output_dtypes}
    # of more operands, not all orders are considered: another may need fewer steps
    if not 2 <= einsum.n_operands <= ALL_UP_TO or not real <= set(rates):
        return 0.0
    # a complex multiply-add takes eight real operations; counting two keeps the bound
    # valid
    return 2 * count_fewest_steps(factors) / max(rates[dtype] for dtype in real)
