"""Shell sessions of the documentation, which can be run."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deploy import forking
from tests.docs.pages import ROOT, page
from tests.service.running import PATIENCE_S, free_port

__all__ = [
    "SESSIONS",
    "Step",
    "differences",
    "forked_commands",
    "forked_shell",
    "sessions",
    "shell",
]

_SESSION = re.compile(
    r"^\*([^*\n]+)\*\n\n```console\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_MARK = "@@ step "


@dataclass(frozen=True)
class Step:
    """A command, and what it prints; ``...`` stands for anything."""

    command: str
    output: str


def _steps(block: str) -> list[Step]:
    joined = block.replace("\\\n", " ")
    parts = re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]
    return [Step(*part.partition("\n")[::2]) for part in parts]


def sessions(name: str) -> dict[str, list[Step]]:
    """The sessions of a page by their names."""
    return {title: _steps(block) for title, block in _SESSION.findall(page(name))}


SESSIONS = sessions("docs/how-to/operations.md")


def shell(folder: Path, **more: str) -> dict[str, str]:
    """Variables of a shell that has the command ``feinsum``, of these sources."""
    program = folder / "bin" / "feinsum"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m feinsum.cli "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{more.pop('PATH', '')}:{os.environ['PATH']}"
    return os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)} | more


@contextmanager
def forked_commands(folder: Path) -> Iterator[Path]:
    """The socket of a process from which commands are forked.

    Each would import for a second; see :mod:`tests.deploy.forking`.
    """
    path = folder / "commands.socket"
    command = [sys.executable, "-m", forking.__name__, str(path)]
    with subprocess.Popen(command, env=shell(folder)) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            yield path
        finally:
            process.terminate()


def forked_shell(folder: Path, commands: Path, **more: str) -> dict[str, str]:
    """The same as ``shell``, whose commands other than ``serve`` are forked."""
    environment = shell(folder, **more)
    program = folder / "bin" / "feinsum"
    real = program.read_text().partition("exec ")[2]
    program.write_text(
        f"#!/bin/sh\nif [ $1 = serve ]; then exec {real}fi\n"
        f'exec {sys.executable} -S -E {forking.__file__} {commands} "$@"\n'
    )
    return environment


def differences(
    steps: Sequence[Step],
    folder: Path,
    environment: Mapping[str, str],
    port: int | None = None,
) -> list[str]:
    """Run the commands of a session in one shell; those that print something else.

    Args:
        port: of the service; if it starts one itself, one that is free.

    Raises:
        AssertionError: if a command fails.
    """
    port = port or free_port()
    lines = ["trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT"]
    for number, step in enumerate(steps):
        lines += [f"printf '\\n{_MARK}{number}\\n'", step.command]
    script = "\n".join(lines).replace("localhost:8765", f"localhost:{port}")
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env={**environment, "FEINSUM_SERVE_PORT": str(port)},
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{steps}: {done.stdout}\n{done.stderr}"
    printed = re.split(rf"^{_MARK}\d+\n", done.stdout, flags=re.MULTILINE)[1:]
    is_as_shown = doctest.OutputChecker().check_output
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return [
        f"{step.command}: {output}"
        for step, output in zip(steps, printed, strict=True)
        if not is_as_shown(_wanted(step), output, flags)
    ]


def _wanted(step: Step) -> str:
    """What has to be printed; of a command without output anything, but for curl."""
    return step.output or ("" if step.command.startswith("curl") else "...")
