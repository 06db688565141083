"""Access to matplotlib, an optional dependency for pictures."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from feinsum.extras import require_extra


def build_figure(width: float, height: float) -> Any:
    """Build an empty matplotlib figure, in inches.

    Raises:
        FeinsumError: if matplotlib is not installed.
    """
    with require_extra("matplotlib", "plots", "a picture"):
        from feinsum.drawing.notebook import NotebookFigure
    return NotebookFigure(figsize=(width, height), layout="constrained")


def can_plot() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check_plots(purpose: str) -> None:
    """Raise an error if matplotlib is not installed.

    Raises:
        FeinsumError: naming the purpose, and how to install matplotlib.
    """
    with require_extra("matplotlib", "plots", purpose):
        import matplotlib  # noqa: F401  (only whether it is there)


OURS, OTHERS, INK = "#0f8b6d", "#9aa5b1", "#444444"
