"""The rate at which all cores together read from each of their caches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from feinsum.errors import WrongResultError
from feinsum.targets.layout import Layout
from feinsum.targets.protocol import OpenDevice

__all__ = ["cache_rates", "read_rate"]

WIDTHS = (2, 4, 8)
"""Lengths of vectors in double precision: 16, 32, 64 bytes."""
UNROLLED = 8
MOST_SHARE = 16
"""Most cores that share a last-level cache."""
EXACT = 1 << 50
"""Sums below are exact."""

# Every work-item reads its own part again and again, into sums that a compiler may not
# put in another order. They are stored, so that nothing is left out.
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


def cache_rates(opened: OpenDevice, min_run_s: float, repeats: int) -> dict[str, float]:
    """Bytes per second that all cores together read from ``L1``, ``L2`` and ``L3``.

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
            read_rate(opened, n_bytes, width, min_run_s, repeats) for width in WIDTHS
        )
        for name, n_bytes in _shares(opened).items()
    }


def _shares(opened: OpenDevice) -> dict[str, int]:
    """Bytes that a core reads from each cache."""
    processor = opened.device.processor
    if processor is None:
        return {}
    n_cores = max(opened.device.compute_units, 1)
    sizes: Mapping[str, int] = processor.cache_bytes
    shares = {
        "L1": sizes.get("L1d", 0) // 2,
        "L2": sizes.get("L2", 0) // 2,
        "L3": sizes.get("L3", 0) // (2 * min(n_cores, MOST_SHARE)),
    }
    found: dict[str, int] = {}
    nearer = 1024
    for name, n_bytes in shares.items():
        if n_bytes >= 2 * nearer:
            found[name] = nearer = n_bytes
    return found


def read_rate(
    opened: OpenDevice, n_bytes: int, width: int, min_run_s: float, repeats: int
) -> float:
    """Bytes per second of reading parts of one size in vectors of one width."""
    vector = f"double{width}"
    names = [f"s{k}" for k in range(UNROLLED)]
    source = _READS.format(
        T=vector,
        unrolled=UNROLLED,
        declare=" ".join(f"{vector} {s} = SPLAT({vector}, 0.0);" for s in names),
        step=" ".join(f"{s} += mine[k + {k}];" for k, s in enumerate(names)),
        total=" + ".join(names),
    )
    program = opened.program(source, "reads")
    n_items = max(opened.device.compute_units, 1)
    n = max(n_bytes // (8 * width * UNROLLED), 1) * UNROLLED
    layout = Layout((n_items * n * width,), (1,), np.dtype(np.float64))
    sums = Layout((n_items * width,), (1,), np.dtype(np.float64))
    x = opened.upload(np.ones(layout.n_entries), layout)
    out = opened.upload(np.zeros(sums.n_entries), sums)

    def run_s(rounds: int) -> float:
        given = (x, out, np.uint32(n), np.uint32(rounds))
        return program.run(given, n_items, 1)

    rounds = 1
    run_s(rounds)  # compiles
    while run_s(rounds) < min_run_s and rounds * n < EXACT and rounds < 1 << 30:
        rounds *= 2
    best_s = min(run_s(rounds) for _ in range(repeats))
    found = opened.download(out, sums)
    if not np.all(found == float(rounds * n)):
        raise WrongResultError(f"sums are {found}, expected {rounds * n}")
    return 8.0 * layout.n_entries * rounds / best_s
