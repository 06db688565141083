r"""Measured limits of a device: bandwidths, caches, and the rate of multiply-adds.

Cores read private arrays of growing sizes again and again. The rates form plateaus,
one per level of the memory, and the sizes of caches are the edges between them::

    bytes/s |------.                 L1
            |       \_______.        L2
            |                \____.  L3
            |                     \_______  main memory
            +----------------------------- bytes per core
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import log2
from typing import Any

import numpy as np

from feinsum.errors import MeasurementError, WrongResultError
from feinsum.records import DevicePeaks, get_utc_now
from feinsum.targets.layout import Layout
from feinsum.targets.protocol import OpenDevice

_MIB = 1 << 20

_WIDTHS = (1, 2, 4, 8, 16)
"""Lengths of vectors; the fastest depends on the compiler, so all are tried."""

CHAINS = 8
"""Multiply-adds that do not wait for each other: they fill two units of four cycles."""

_PERIOD = 64
"""Number of work-items that start at different numbers."""

CTYPES = {"<f8": "double", "<f4": "float"}

_A, _B = 0.999, 0.001
"""With these ``x = a*x + b`` goes to 1, never to subnormal numbers, which are slow."""

_TRIAD = """
KERNEL(triad, __global {T} *restrict a, __global const {T} *restrict b,
       __global const {T} *restrict c, float s) {{
    size_t i = get_global_id(0);
    a[i] = b[i] + s * c[i];
}}
"""

# Written as x*a + b and contracted by the compiler: the built-in fma() is a call of
# a slow function on some devices (a tenth of the rate with PoCL 3.0). Work-items start
# at numbers of their own, or a compiler computes once what is the same for all of them.
_FMA = """
#ifdef __OPENCL_VERSION__
#pragma OPENCL FP_CONTRACT ON
#endif
KERNEL(chains, __global {T} *restrict out, {S} a, {S} b, uint n) {{
    {T} va = SPLAT({T}, a), vb = SPLAT({T}, b);
    {T} start = SPLAT({T}, ({S}) (get_global_id(0) % {period}));
    {declare}
    for (uint k = 0; k < n; ++k) {{ {step} }}
    out[get_global_id(0)] = {total};
}}
"""


def measure_peaks(
    opened: OpenDevice,
    dtypes: Sequence[str] = ("<f8", "<f4"),
    *,
    array_bytes: int | None = None,
    min_run_s: float = 0.02,
    repeats: int = 5,
) -> DevicePeaks:
    """Measure the bandwidth and arithmetic rates that kernels on this device reach.

    The bandwidth counts the three arrays of ``a = b + s*c`` once each; the rate
    counts a multiply-add, from registers to registers in eight independent chains,
    as two operations. Vector widths 1 to 16 are tried, the best time of
    all is taken, and every result is checked. What is read from caches is in
    :func:`feinsum.measure.peaks.measure_cache_rates`, how large they are in
    :func:`feinsum.measure.peaks.measure_cache_sizes`.

    Args:
        opened: the device.
        dtypes: of ``<f8`` and ``<f4``; one that the device lacks is left out.
        array_bytes: of each array of the triad; :func:`choose_triad_array_bytes` by
            default.
        min_run_s: minimum time of a run of multiply-adds, in seconds.
        repeats: runs of each kernel.

    Raises:
        MeasurementError: for another dtype, or if the device fails.
        WrongResultError: if a result is wrong.
    """
    if unknown := sorted(set(dtypes) - set(CTYPES)):
        raise MeasurementError(f"dtypes {unknown}: expected some of {sorted(CTYPES)}")
    n_bytes = array_bytes or choose_triad_array_bytes(opened)
    return DevicePeaks(
        device=opened.device,
        bandwidth_bytes_per_s=_measure_bandwidth(opened, n_bytes, repeats),
        operations_per_s={
            dtype: max(
                _measure_fma_rate(opened, dtype, width, min_run_s, repeats)
                for width in _WIDTHS
            )
            for dtype in dtypes
            if dtype != "<f8" or opened.has_double
        },
        measured_at=get_utc_now(),
        cache_bytes_per_s=measure_cache_rates(opened, min_run_s, repeats),
        cache_bytes=measure_cache_sizes(opened, n_bytes, min_run_s / 5, 2),
    )


def choose_triad_array_bytes(opened: OpenDevice) -> int:
    """Choose the bytes of one array of the triad: far more than the caches hold.

    256 MiB, or the size of the last cache if that is larger, so that three
    arrays are three times the cache; within the largest allocation, and all
    three within half of the device's memory. A multiple of 1 MiB.
    """
    memory = opened.memory
    wanted = max(256 * _MIB, memory.cache_bytes)
    limit = min(memory.allocation_bytes, memory.total_bytes // 6)
    return max(1, int(min(wanted, limit)) // _MIB) * _MIB


def _measure_bandwidth(opened: OpenDevice, array_bytes: int, repeats: int) -> float:
    """Measure the bytes per second of the triad at its best vector width."""
    # a multiple of every vector width: 1024 entries of 4 bytes
    n_entries = -(-array_bytes // 4096) * 1024
    layout = Layout((n_entries,), (1,), np.dtype(np.float32))
    a, b, c = (
        opened.upload(np.full(n_entries, value, np.float32), layout)
        for value in (np.nan, 1.0, 2.0)
    )
    best_s = np.inf
    # Which width is the fastest depends on the compiler.
    for width in _WIDTHS:
        source = _TRIAD.format(T=get_vector_type("float", width))
        triad = opened.program(source, "triad")
        arguments = (a, b, c, np.float32(3.0))
        # The least time counts: disturbances only ever make a run slower.
        seconds = [triad.run(arguments, n_entries // width) for _ in range(repeats + 1)]
        best_s = min(best_s, *seconds)
    _check_triad(opened.download(a, layout))
    return 3 * layout.n_entries * 4 / best_s


def _check_triad(result: np.ndarray[Any, np.dtype[Any]]) -> None:
    """Compare with 1 + 3*2."""
    if not np.all(result == 7.0):
        wrong = int(np.flatnonzero(result != 7.0)[0])
        raise WrongResultError(
            f"entry {wrong} of the triad is {result[wrong]}, expected 7"
        )


def _measure_fma_rate(
    opened: OpenDevice, dtype: str, width: int, min_run_s: float, repeats: int
) -> float:
    """Measure the operations per second of multiply-adds in one vector width."""
    chains = opened.program(_write_fma_source(dtype, width), "chains")
    scalar = np.dtype(dtype).type
    # Enough work-items to fill a multiprocessor of a GPU.
    n_items = 1024 * opened.device.compute_units
    layout = Layout((n_items, width), (width, 1), np.dtype(dtype))
    out = opened.upload(np.empty(layout.n_entries, dtype), layout)

    def run_s(n_steps: int) -> float:
        arguments = (out, scalar(_A), scalar(_B), np.uint32(n_steps))
        return chains.run(arguments, n_items)

    n_steps = _double_until_long(run_s, 64, min_run_s, 1 << 24)
    best_s = min(run_s(n_steps) for _ in range(repeats))
    _check_chains(opened.download(out, layout).reshape(layout.shape), n_steps)
    return 2.0 * n_items * width * CHAINS * n_steps / best_s


def _double_until_long(
    run_s: Callable[[int], float], n: int, min_run_s: float, most: float
) -> int:
    """Double a number of steps until a run is long enough."""
    run_s(n)  # compiles
    # The cap ends the loop if a device's clock does not advance.
    while run_s(n) < min_run_s and n < most:
        n *= 2
    return n


def _check_chains(result: np.ndarray[Any, np.dtype[Any]], n_steps: int) -> None:
    """Compare with the closed form of x -> a*x + b from x = start + 1 ... start + 8."""
    fixed = _B / (1 - _A)
    decay = _A**n_steps
    start = np.arange(len(result))[:, np.newaxis] % _PERIOD
    firsts = CHAINS * start + sum(range(1, CHAINS + 1))
    expected = decay * firsts + (1 - decay) * CHAINS * fixed
    # A percent: thousands of roundings in single precision add up.
    if not np.allclose(result, expected, rtol=1e-2, atol=0):
        raise WrongResultError(
            f"multiply-adds of {result.dtype} give {result.min()} to {result.max()}, "
            f"expected {expected.min()} to {expected.max()}"
        )


def _write_fma_source(dtype: str, width: int) -> str:
    scalar = CTYPES[dtype]
    names = [f"x{k}" for k in range(CHAINS)]
    vector = get_vector_type(scalar, width)
    return _FMA.format(
        T=vector,
        S=scalar,
        period=_PERIOD,
        declare=" ".join(
            f"{vector} {x} = start + {k + 1};" for k, x in enumerate(names)
        ),
        step=" ".join(f"{x} = {x} * va + vb;" for x in names),
        total=" + ".join(names),
    )


def get_vector_type(scalar: str, width: int) -> str:
    return scalar if width == 1 else f"{scalar}{width}"


WIDTHS = (2, 4, 8)
"""Lengths of vectors in double precision: 16, 32, 64 bytes."""

# Every work-item repeatedly reads its own part, into sums that a compiler must not
# reorder. The sums are stored, so that no read is optimized away.
_READS = """
KERNEL(reads, __global const {T} *restrict x, __global {T} *restrict out,
       uint n, uint rounds) {{
    __global const {T} *mine = x + get_global_id(0) * n;
    {declare}
    for (uint r = 0; r < rounds; ++r)
        for (uint k = 0; k < n; k += {unrolled}) {{ {step} }}
    out[get_global_id(0)] = {total};
}}
"""


def measure_cache_rates(
    opened: OpenDevice, min_run_s: float, repeats: int
) -> dict[str, float]:
    """Measure the bytes per second that all cores together read from each cache.

    Each core reads a private array half the size of the cache, or of its share. The
    best of several vector widths and all repeats counts. Caches whose share is not much
    larger than the previous level are omitted, as are all caches of a device with an
    unknown processor or without double precision.

    Raises:
        WrongResultError: if a sum is wrong.
    """
    if not opened.has_double:
        return {}
    return {
        name: max(
            measure_read_rate(opened, n_bytes, width, min_run_s, repeats)
            for width in WIDTHS
        )
        for name, n_bytes in _find_cache_shares(opened).items()
    }


def _find_cache_shares(opened: OpenDevice) -> dict[str, int]:
    """Return the bytes that each core reads to measure each cache."""
    processor = opened.device.processor
    if processor is None:
        return {}
    n_cores = max(opened.device.compute_units, 1)
    sizes: Mapping[str, int] = processor.cache_bytes
    shares = {
        "L1": sizes.get("L1d", 0) // 2,
        "L2": sizes.get("L2", 0) // 2,
        # at most 16 cores share a last-level cache
        "L3": sizes.get("L3", 0) // (2 * min(n_cores, 16)),
    }
    distinct: dict[str, int] = {}
    nearer = 1024
    # A share that is not twice the nearer cache would measure that one.
    for name, n_bytes in shares.items():
        if n_bytes >= 2 * nearer:
            distinct[name] = nearer = n_bytes
    return distinct


def measure_read_rate(
    opened: OpenDevice, n_bytes: int, width: int, min_run_s: float, repeats: int
) -> float:
    """Measure the bytes per second of reading arrays of one size per core."""
    vector = f"double{width}"
    names = [f"s{k}" for k in range(CHAINS)]
    source = _READS.format(
        T=vector,
        unrolled=CHAINS,
        declare=" ".join(f"{vector} {s} = SPLAT({vector}, 0.0);" for s in names),
        step=" ".join(f"{s} += mine[k + {k}];" for k, s in enumerate(names)),
        total=" + ".join(names),
    )
    program = opened.program(source, "reads")
    n_items = max(opened.device.compute_units, 1)
    n = max(n_bytes // (8 * width * CHAINS), 1) * CHAINS
    layout = Layout((n_items * n * width,), (1,), np.dtype(np.float64))
    sums = Layout((n_items * width,), (1,), np.dtype(np.float64))
    x = opened.upload(np.ones(layout.n_entries), layout)
    out = opened.upload(np.zeros(sums.n_entries), sums)

    def run_s(rounds: int) -> float:
        arguments = (x, out, np.uint32(n), np.uint32(rounds))
        return program.run(arguments, n_items, 1)

    # sums below 2**50 are exact
    rounds = _double_until_long(run_s, 1, min_run_s, min(2**50 / n, 2**30))
    best_s = min(run_s(rounds) for _ in range(repeats))
    totals = opened.download(out, sums)
    if not np.all(totals == float(rounds * n)):
        raise WrongResultError(f"sums are {totals}, expected {rounds * n}")
    return 8.0 * layout.n_entries * rounds / best_s


MAX_CACHES = 3

MIN_DROP = 0.4
"""Least drop of the base-2 logarithm of a rate; smaller ones are noise."""


def measure_cache_sizes(
    opened: OpenDevice, max_bytes: int, min_run_s: float, repeats: int
) -> dict[str, int]:
    """Measure the bytes of each cache that a core has while all of them read.

    For a shared cache, this is the share. A size is that of the smallest parts that are
    read at the rate of the next level, so it errs on the large side: sizes are tried in
    steps of a factor of 1.4. Caches whose rates differ by less than a quarter count as
    one. None is found on a GPU, where one work-item per core does not reach such rates,
    or without double precision.

    Args:
        opened: the device.
        max_bytes: maximum bytes that all cores together read.
        min_run_s: minimum time of a run, in seconds.
        repeats: runs of each kernel.

    Raises:
        WrongResultError: if a sum is wrong.
    """
    if opened.device.kind == "gpu" or not opened.has_double:
        return {}
    sizes = _list_sizes(max_bytes // max(opened.device.compute_units, 1))
    rates = [measure_read_rate(opened, n, 4, min_run_s, repeats) for n in sizes]
    boundaries = find_edges(sizes, rates)[:MAX_CACHES]
    return {f"L{k}": n_bytes for k, n_bytes in enumerate(boundaries, start=1)}


def _list_sizes(max_bytes: int) -> list[int]:
    """List the sizes to try, two for each power of two, up to a limit and to 64 MiB.

    >>> _list_sizes(16 << 10)
    [4096, 5793, 8192, 11585, 16384]
    """
    least, most = 4 << 10, min(64 << 20, max_bytes)
    n_steps = 2 * int(log2(max(most, least) / least))
    return [round(least * 2 ** (k / 2)) for k in range(n_steps + 1)]


def find_edges(sizes: Sequence[int], rates: Sequence[float]) -> list[int]:
    """Fit a few plateaus to rates, and find the sizes where they fall.

    Args:
        sizes: rising.
        rates: read there. A rate below a later one is a disturbance.

    Returns:
        For every plateau but the last one the first size of the next.

    >>> find_edges([4, 8, 16, 32, 64, 128], [9.0, 9.1, 8.9, 3.0, 3.1, 2.9])
    [32]
    >>> find_edges([4, 8, 16, 32], [9.0, 8.0, 9.0, 8.5])
    []
    """
    # Rates only fall with the size: a dip was a disturbance. fits[end, n] is the least
    # squared error of n plateaus over the first sizes, with where they start.
    logs = [log2(max(rates[k:])) for k in range(len(rates))]
    fits: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {(0, 0): (0.0, ())}
    for end in range(1, len(logs) + 1):
        for n in range(1, MAX_CACHES + 2):
            choices = [
                (fits[start, n - 1][0] + _sum_squares(logs[start:end]), start)
                for start in range(end)
                if (start, n - 1) in fits
            ]
            if choices:
                error, start = min(choices)
                fits[end, n] = error, (*fits[start, n - 1][1], start)
    best = min(
        # each plateau costs what noise may explain; else the most plateaus fit best
        (error + n * MIN_DROP**2, starts)
        for (end, n), (error, starts) in fits.items()
        if end == len(logs)
    )[1]
    means = [sum(logs[a:b]) / (b - a) for a, b in pairwise([*best, len(logs)])]
    return [
        sizes[start]
        for start, (before, after) in zip(best[1:], pairwise(means), strict=True)
        if before - after >= MIN_DROP
    ]


def _sum_squares(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values)
