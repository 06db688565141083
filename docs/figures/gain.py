"""The figure of README.md: speed-ups of the DG operators over their best rivals.

``make figures`` draws it from the table that ``make bench-dgfem`` printed; see
docs/explanation/performance.md.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
from matplotlib import pyplot as plt

RESULTS = Path(__file__).parents[2] / "benchmarks/results/dgfem-sapphire-rapids.txt"
COLORS = {"face mass": "#e69f00", "divergence": "#0072b2", "gradient": "#009e73"}
ROW = re.compile(r"^(\w+?)(?:_b\d+)\S* .* (\d+\.\d+)≈? +\d+\.\d+≈? +\d+\.\d+$", re.M)


def ratios() -> list[tuple[str, float]]:
    """Kind of operator and speed-up over its fastest rival, as the table has them."""
    rows = ROW.findall(RESULTS.read_text())
    return [(kind.replace("_", " "), float(ratio)) for kind, ratio in rows]


def draw(path: Path) -> None:
    rows = sorted(ratios(), key=lambda row: (list(COLORS).index(row[0]), row[1]))
    figure, axes = plt.subplots(figsize=(7, 2.6), dpi=150, layout="constrained")
    for kind, color in COLORS.items():
        places = [k for k, row in enumerate(rows) if row[0] == kind]
        axes.bar(places, [rows[k][1] for k in places], color=color, label=kind)
    axes.axhline(1, color="black", linewidth=1)
    axes.annotate(
        "the fastest rival",
        (len(rows) - 0.5, 1),
        (2, -3),
        textcoords="offset points",
        fontsize=8,
        annotation_clip=False,
    )
    axes.set_xticks([])
    axes.set_xlim(-0.8, len(rows) - 0.2)
    axes.set_ylabel("times as fast")
    axes.set_title(
        "Speed-up over the fastest of numpy, JAX and PyTorch: "
        f"{len(rows)} DG operators",
        fontsize=10,
    )
    axes.legend(frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
