"""The levels of a memory in docs/explanation/bounds.md; see ``make figures``.

The device is made up, so that the picture is the same on every machine.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

from feinsum.bounds import MemoryLevel, compute_bound
from feinsum.drawing import Chart, Dot, draw_roofline
from feinsum.ir import array, einsum

LEVELS = (
    MemoryLevel("registers", 2048, 2),
    MemoryLevel("L1", 32 << 10, 2, 400e9),
    MemoryLevel("L2", 512 << 10, 2, 100e9),
    MemoryLevel("L3", 32 << 20, 1, 50e9),
    MemoryLevel("DRAM", None, 1, 20e9),
)
PEAK = 250e9
WORKLOADS = {
    "ij,jk->ik": dict.fromkeys("ijk", 2000),
    "bda,dc->abc": {"a": 312, "b": 312, "c": 24, "d": 312},
    "ijk,ja,ka->ia": {**dict.fromkeys("ijk", 400), "a": 24},
    "ij,j->i": {"i": 4000, "j": 4000},
}


def dots(subscripts: str, extents: dict[str, int]) -> list[Dot]:
    """What each level allows, at operations per byte that must pass it."""
    terms = subscripts.partition("->")[0].split(",")
    operands = [
        array(f"A{k}", tuple(extents[i] for i in term)) for k, term in enumerate(terms)
    ]
    bound = compute_bound(einsum(subscripts, *operands), {}, LEVELS)
    operations = 2 * prod(extents.values())
    return [
        Dot(
            subscripts,
            operations / one.n_bytes,
            min(PEAK, operations / (one.seconds or 1.0)) * 1e-9,
            is_measured=True,
        )
        for one in bound.levels
    ]


def chart() -> Chart:
    """All workloads under the roofs of all levels."""
    bandwidths = {
        one.name: (one.bandwidth_bytes_per_s or 0.0) * 1e-9 for one in LEVELS[1:]
    }
    memory = bandwidths.pop("DRAM")
    return Chart(
        "What each level of the memory allows; a made-up device",
        memory,
        {"float64": PEAK * 1e-9},
        [dot for item in WORKLOADS.items() for dot in dots(*item)],
        (),
        bandwidths,
    )


if __name__ == "__main__":
    draw_roofline(chart(), Path(__file__).with_suffix(".png"))
