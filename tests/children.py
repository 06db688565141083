"""Processes that tests start, where a process of its own is what is tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["ROOT", "run_command", "run_python"]

ROOT = Path(__file__).resolve().parents[1]


def run_command(
    *words: object, is_checked: bool = True, limit_s: float = 300, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command from the root of the project, and collect its text.

    Args:
        is_checked: whether it must end with code 0.
        variables: variables of the environment, besides those of this process.
    """
    done = subprocess.run(
        [str(word) for word in words],
        cwd=ROOT,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert not (is_checked and done.returncode), done.stdout + done.stderr[-3000:]
    return done


def run_python(*words: object, **options) -> subprocess.CompletedProcess[str]:
    """Run Python with these words, such as ``-c`` and a program."""
    return run_command(sys.executable, *words, **options)
