"""Tasks in processes of their own: a crash is reported, and the rest goes on."""

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
from benchmarks.experiments.results import Limits, Outcome, outcome_of
from benchmarks.experiments.terms import environment

ROOT = Path(__file__).parents[2]


class ChildError(Exception):
    """A child did not finish.

    Attributes:
        at: the contender whose code ran last, if any did.
    """

    def __init__(self, why: str, at: str | None) -> None:
        super().__init__(why)
        self.at = at


def in_child(
    kind: str, arguments: Mapping[str, Any], terms: str, limit_s: float = 3600.0
) -> Any:
    """What a child process made of a task.

    Raises:
        ChildError: if it ended with an error or a signal, or ran past the limit.
    """
    with tempfile.TemporaryDirectory(prefix="feinsum-") as folder:
        task, events, answer_file = (
            Path(folder) / n for n in ("task", "events", "said")
        )
        task.write_text(json.dumps({"kind": kind, "given": arguments}))
        events.touch()
        command = [sys.executable, "-m", "benchmarks.experiments.child"]
        with answer_file.open("w") as output:
            why = _ended([*command, str(task), str(events)], terms, output, limit_s)
        seen = [json.loads(line) for line in events.read_text().splitlines()]
        if seen and "done" in seen[-1]:
            return seen[-1]["done"]
        last_words = "".join(answer_file.read_text(errors="replace").splitlines()[-1:])
        at = seen[-1]["now"] if seen else None
        raise ChildError(f"{why}; {last_words[:300]}".rstrip("; "), at)


def _ended(command: list[str], terms: str, output: Any, limit_s: float) -> str:
    """Run to the end, with all its own children; how it ended."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    child = subprocess.Popen(
        command,
        env=environment(terms) | {"PYTHONPATH": path},
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
    """End the session of a child: it may have left workers behind."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def held(task: Task, terms: str, limit_s: float = 3600.0) -> dict[str, Outcome]:
    """The contest of a task; again without whoever crashed, until it is over."""
    crashed: dict[str, Outcome] = {}
    while left := [name for name in task.contenders if name not in crashed]:
        try:
            arguments = asdict(replace(task, contenders=left))
            answer = in_child("contest", arguments, terms, limit_s)
        except ChildError as error:
            culprits = left if error.at is None else [error.at]
            crashed |= dict.fromkeys(culprits, Outcome("crashed", str(error)))
            continue
        return {name: outcome_of(value) for name, value in answer.items()} | crashed
    return crashed


def tuned(task: Task, n_trials: int, limit_s: float = 3600.0) -> list[str]:
    """Recipes that a tuning recorded; if it failed, why."""
    try:
        arguments = {"task": asdict(task), "n_trials": n_trials}
        return list(in_child("tune", arguments, "fresh", limit_s))
    except ChildError as error:
        return [f"tuning failed: {error}"]


def measured_limits(device: str | None) -> Limits | None:
    """The limits of the machine, or None if they cannot be measured."""
    try:
        return Limits(**in_child("limits", {"device": device}, "reused", 600.0))
    except ChildError:
        return None
