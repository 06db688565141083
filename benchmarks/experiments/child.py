"""A process of its own for one task: ``python -m ... TASK EVENTS``.

The first file is a task as JSON, to the second events are appended, one a line:
``{"now": name}`` before the code of a contender runs, and ``{"done": value}`` at last.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any, TextIO

import numpy as np

from benchmarks.experiments.contest import Task, hold
from benchmarks.experiments.ours import tune
from benchmarks.experiments.results import Limits
from feinsum.measure import measure_peaks, open_device
from feinsum.suites import EVERYDAY

MATRIX = 2048


def limits(device: str | None = None, n: int = MATRIX) -> Limits:
    """Feinsum's peaks of the device, and on a CPU numpy's product of matrices."""
    opened = open_device(device)
    peaks = measure_peaks(opened, ("<f8",))
    return Limits(
        peaks.bandwidth_bytes_per_s,
        peaks.operations_per_s["<f8"],
        _matmul_rate(n) if opened.device.kind == "cpu" else 0.0,
        str(opened.device),
    )


def _matmul_rate(n: int) -> float:
    """Operations per second, the best of five products."""
    a, b, c = (np.full((n, n), 0.5) for _ in range(3))
    best_s = min(_seconds(lambda: np.matmul(a, b, out=c)) for _ in range(5))
    return 2 * n**3 / best_s


def _seconds(call: Callable[[], Any]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def main() -> None:
    warnings.simplefilter("ignore")
    task, events = Path(sys.argv[1]), Path(sys.argv[2])
    request = json.loads(task.read_text())
    with events.open("a") as file:
        answer = _do(request["kind"], request["given"], file)
        _write(file, {"done": answer})


def _do(kind: str, arguments: dict[str, Any], file: TextIO) -> Any:
    if kind == "limits":
        return asdict(limits(**arguments))
    if kind == "tune":
        task = Task(**arguments["task"])
        return [
            recipe
            for device in task.devices
            for recipe in tune(task.entry, arguments["n_trials"], device, task.database)
        ]
    with tempfile.TemporaryDirectory(prefix="feinsum-cold-") as folder:
        if arguments["suite"] == EVERYDAY:  # a first call finds nothing in the cache
            os.environ["FEINSUM_CACHE_DIR"] = folder
        outcomes = hold(Task(**arguments), lambda name: _write(file, {"now": name}))
    return {name: asdict(outcome) for name, outcome in outcomes.items()}


def _write(file: TextIO, event: Any) -> None:
    file.write(json.dumps(event) + "\n")
    file.flush()


if __name__ == "__main__":
    main()
