"""Run tasks in child processes: a crash is reported, and the other tasks go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.experiments.contest import Task
from benchmarks.experiments.results import Limits, Outcome, read_outcome
from benchmarks.experiments.terms import make_environment

ROOT = Path(__file__).parents[2]


class ChildError(Exception):
    """A child process that did not finish.

    Attributes:
        at: the contender whose code ran last, if any.
    """

    def __init__(self, why: str, at: str | None) -> None:
        super().__init__(why)
        self.at = at


def run_in_child(
    kind: str, arguments: Mapping[str, Any], terms: str, limit_s: float = 3600.0
) -> Any:
    """Run a task in a child process, and return its value.

    Raises:
        ChildError: if it ended with an error or a signal, or ran past the limit.
    """
    with tempfile.TemporaryDirectory(prefix="feinsum-") as folder:
        task, events, output_file = (
            Path(folder) / n for n in ("task", "events", "output")
        )
        task.write_text(json.dumps({"kind": kind, "arguments": arguments}))
        events.touch()
        command = [sys.executable, "-m", "benchmarks.experiments.child"]
        with output_file.open("w") as output:
            why = _run_command(
                [*command, str(task), str(events)], terms, output, limit_s
            )
        seen = [json.loads(line) for line in events.read_text().splitlines()]
        if seen and "done" in seen[-1]:
            return seen[-1]["done"]
        last_line = "".join(output_file.read_text(errors="replace").splitlines()[-1:])
        at = seen[-1]["now"] if seen else None
        raise ChildError(f"{why}; {last_line[:300]}".rstrip("; "), at)


def _run_command(command: list[str], terms: str, output: Any, limit_s: float) -> str:
    """Run a command to its end, and return how it ended; its own children are
    killed.
    """
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    child = subprocess.Popen(
        command,
        env=make_environment(terms) | {"PYTHONPATH": path},
        stdout=output,
        stderr=output,
        start_new_session=True,
    )
    try:
        code = child.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"stopped after {limit_s:.0f} s"
    finally:
        _stop(child)
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Kill the process group of a child, which may have left workers behind."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def run_contest(task: Task, terms: str, limit_s: float = 3600.0) -> dict[str, Outcome]:
    """Run a contest, and repeat it without contenders that crash their process."""
    crashed: dict[str, Outcome] = {}
    while left := [name for name in task.contenders if name not in crashed]:
        try:
            arguments = asdict(replace(task, contenders=left))
            documents = run_in_child("contest", arguments, terms, limit_s)
        except ChildError as error:
            failed = left if error.at is None else [error.at]
            crashed |= dict.fromkeys(failed, Outcome("crashed", str(error)))
            continue
        return {
            name: read_outcome(value) for name, value in documents.items()
        } | crashed
    return crashed


def run_tuning(task: Task, n_trials: int, limit_s: float = 3600.0) -> list[str]:
    """Tune, and return the recorded recipes, or the reason of a failure."""
    try:
        arguments = {"task": asdict(task), "n_trials": n_trials}
        return list(run_in_child("tune", arguments, "fresh", limit_s))
    except ChildError as error:
        return [f"tuning failed: {error}"]


def run_limits(device: str | None) -> Limits | None:
    """Measure the limits of the machine; return None if that fails."""
    try:
        return Limits(**run_in_child("limits", {"device": device}, "reused", 600.0))
    except ChildError:
        return None
