"""Run one task in this process: ``python -m benchmarks.experiments.child TASK EVENTS``.

TASK is a JSON file. Events are appended to EVENTS, one JSON object per line: ``{"now":
name}`` before the code of a contender runs, and ``{"done": value}`` at the end.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from benchmarks.experiments.contest import Task, run_contest
from benchmarks.experiments.ours import tune
from benchmarks.experiments.results import Limits
from benchmarks.timing import time_call
from feinsum.measure import measure_peaks, open_device
from feinsum.suites import EVERYDAY

MATRIX = 2048


def measure_limits(device: str | None = None, n: int = MATRIX) -> Limits:
    """Measure the peaks of a device, and numpy's matrix product if it is a CPU."""
    opened = open_device(device)
    peaks = measure_peaks(opened, ("<f8",))
    return Limits(
        peaks.bandwidth_bytes_per_s,
        peaks.operations_per_s["<f8"],
        _measure_matmul(n) if opened.device.kind == "cpu" else 0.0,
        str(opened.device),
    )


def _measure_matmul(n: int) -> float:
    """Return operations per second, of the fastest of five products."""
    a, b, c = (np.full((n, n), 0.5) for _ in range(3))
    best_s = min(time_call(np.matmul, a, b, c) for _ in range(5))
    return 2 * n**3 / best_s


def main() -> None:
    warnings.simplefilter("ignore")
    task, events = Path(sys.argv[1]), Path(sys.argv[2])
    request = json.loads(task.read_text())
    with events.open("a") as file:
        value = _run_task(request["kind"], request["arguments"], file)
        _write(file, {"done": value})


def _run_task(kind: str, arguments: dict[str, Any], file: TextIO) -> Any:
    if kind == "limits":
        return asdict(measure_limits(**arguments))
    if kind == "tune":
        task = Task(**arguments["task"])
        return [
            recipe
            for device in task.devices
            for recipe in tune(task.entry, arguments["n_trials"], device, task.database)
        ]
    with tempfile.TemporaryDirectory(prefix="feinsum-cold-") as folder:
        if arguments["suite"] == EVERYDAY:  # first calls start with an empty cache
            os.environ["FEINSUM_CACHE_DIR"] = folder
        outcomes = run_contest(
            Task(**arguments), lambda name: _write(file, {"now": name})
        )
    return {name: asdict(outcome) for name, outcome in outcomes.items()}


def _write(file: TextIO, event: Any) -> None:
    file.write(json.dumps(event) + "\n")
    file.flush()


if __name__ == "__main__":
    main()
