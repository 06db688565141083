"""Processes that may crash or hang: bounded in time, and how they ended is a value."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

_LAUNCHERS = ("HYDI_", "HYDRA_", "MPI", "OMPI_", "PMI", "PMIX_")
"""Prefixes of the variables that MPI launchers set for ranks; a child is no rank."""


@dataclass(frozen=True)
class Ended:
    """A process that has ended.

    Attributes:
        code: its exit code, or minus the number of a signal; None if it was stopped
            at its limit.
        said, logged: its standard output and error.
    """

    code: int | None
    said: str = ""
    logged: str = ""

    @property
    def is_ok(self) -> bool:
        return self.code == 0

    def __str__(self) -> str:
        r"""The exit code or signal, and the last line that it logged.

        >>> print(Ended(3, logged="a\nb\n"), Ended(-9), sep="; ")
        code 3: b; SIGKILL
        """
        is_code = self.code is None or self.code >= 0
        how = f"code {self.code}" if is_code else _signal_name(-(self.code or 0))
        lines = [line.strip() for line in self.logged.splitlines() if line.strip()]
        return f"{how}: {lines[-1][:500]}" if lines else how


def run_to_end(
    command: Sequence[str],
    given: str = "",
    *,
    limit_s: float,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Ended:
    """Run a command in a session of its own; at its limit all of that is ended.

    Args:
        given: its standard input.

    Raises:
        OSError: if it cannot be started.
    """
    with subprocess.Popen(  # noqa: S603  (commands of ours, and the user's compiler)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        cwd=cwd,
        start_new_session=True,
    ) as process:
        try:
            said, logged = process.communicate(given, timeout=limit_s)
        except subprocess.TimeoutExpired:
            return Ended(None)
        finally:
            end_session(process)
    return Ended(process.returncode, said, logged)


def end_session(process: subprocess.Popen[Any]) -> None:
    """End what is left of a process and of all that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def child_environment(folder: str | os.PathLike[str]) -> dict[str, str]:
    """The variables of this process, with caches of a compiler in ``folder``.

    Compiler caches that are shared between processes have crashed.
    """
    own = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS)}
    return own | {
        "POCL_CACHE_DIR": str(folder),
        "XDG_CACHE_HOME": str(folder),
        "PYOPENCL_NO_CACHE": "1",
        "FEINSUM_CACHE_DIR": str(folder),
    }


def limit_memory(n_bytes: int) -> None:
    """Let this process allocate no more; it then fails, and no other is ended for it.

    Address space is not limited: that of a GPU's driver is no memory.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = n_bytes if hard == resource.RLIM_INFINITY else min(n_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
