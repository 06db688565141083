"""The picture of a plan in docs/reference/plans.md; see ``make figures``."""

from __future__ import annotations

from pathlib import Path

import feinsum
from feinsum.distributed import Plan, rows_of
from feinsum.drawing import draw_blocks


def example() -> Plan:
    """The paper's example on eight processes."""
    shapes = {"A": (10, 10, 10), "B": (10, 10), "C": (10, 10), "D": (10, 10)}
    arrays = [feinsum.array(name, shape) for name, shape in shapes.items()]
    return feinsum.plan(feinsum.einsum("ijk,ja,ka,al->il", *arrays), processes=8)


if __name__ == "__main__":
    draw_blocks(rows_of(example()), Path(__file__).with_name("plans.png"))
