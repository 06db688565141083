"""Child processes of benchmarks: empty caches, output, limits and memory."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = [
    "ROOT",
    "ChildFailedError",
    "make_empty_caches",
    "read_memory_bytes",
    "reset_peak_memory",
    "run_command",
]

ROOT = Path(__file__).resolve().parents[1]


class ChildFailedError(RuntimeError):
    """A child process ended with an error, or exceeded its limit."""


def make_empty_caches(folder: str) -> dict[str, str]:
    """Make empty caches in a folder, and return the variables that select them."""
    folders = {
        "FEINSUM_CACHE_DIR": f"{folder}/feinsum",
        "POCL_CACHE_DIR": f"{folder}/pocl",
        "XDG_CACHE_HOME": f"{folder}/others",
    }
    for folder_name in folders.values():
        Path(folder_name).mkdir(mode=0o700)
    return folders


def run_command(
    command: Sequence[object],
    environment: Mapping[str, str] | None = None,
    *,
    name: str = "",
    folder: Path = ROOT,
    limit_s: float | None = None,
) -> str:
    """Run a command, and return what it prints.

    Args:
        environment: by default that of this process.
        name: that errors mention; by default the command.

    Raises:
        ChildFailedError: if it fails; with the end of its standard error.
    """
    words = [str(word) for word in command]
    name = name or f"{' '.join(words):.200}"
    try:
        completed = subprocess.run(
            words,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ChildFailedError(f"{name}: not finished in {limit_s:g} s") from None
    if completed.returncode:
        lines = completed.stderr.strip().splitlines() or ["no output"]
        raise ChildFailedError(
            f"{name}: exit code {completed.returncode}: {lines[-1].strip()}"
        )
    return completed.stdout


def read_memory_bytes(field: str, pid: int | str = "self") -> int:
    """Read a size from the status of a process on Linux, such as ``VmHWM``."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"Linux does not report {field} of process {pid}")


def reset_peak_memory(pid: int | str = "self") -> None:
    """Set the peak memory of a process, ``VmHWM``, to its current memory."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
