"""What processes have in common in which a recipe may crash, hang or misbehave."""

from __future__ import annotations

import os
import signal
from pathlib import Path

__all__ = ["child_environment", "how_it_ended"]

_LAUNCHERS = ("HYDI_", "HYDRA_", "MPI", "OMPI_", "PMI", "PMIX_")
"""What launchers of MPI tell the ranks that they start; a child is no rank."""


def child_environment(folder: str | os.PathLike[str]) -> dict[str, str]:
    """The variables of this process, with caches of a compiler in ``folder``.

    Compiler caches that are shared between processes have crashed.
    """
    own = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS)}
    return own | {
        "POCL_CACHE_DIR": str(folder),
        "XDG_CACHE_HOME": str(folder),
        "PYOPENCL_NO_CACHE": "1",
        "FEINSUM_CACHE_DIR": "off",
    }


def how_it_ended(code: int | None, log: Path) -> str:
    """The exit code or signal of a process, and the last line that it logged."""
    how = f"code {code}" if code is None or code >= 0 else _signal_name(-code)
    lines = log.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    said = f": {last[:500]}" if last else ""
    return f"{how}{said}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
