"""The graph in docs/explanation/canonical-form.md; see ``make figures``."""

from __future__ import annotations

from pathlib import Path

from feinsum.drawing.graph import draw
from feinsum.ir import array, batched_einsum

A, B, D = array("A", ("n", 4)), array("B", ("n", 4)), array("D", (4, 4))

FIGURES = {
    "induced_graph": batched_einsum("ij,jk,kk->ik", [[A, D, D], [B, D, D]]),
}
"""The einsum behind each SVG of this folder."""

if __name__ == "__main__":
    for name, einsum in FIGURES.items():
        draw(einsum, Path(__file__).with_name(f"{name}.svg"))
