"""Kernel Tuner's T4 format, for other tools.

A file holds the results of one workload in one environment: one for every fact and
every trial. The format is write-only here, since T4 cannot represent all of a fact.

Source: schemas "results" and "metadata" of T4, version 1.0.0, at
https://github.com/odgaard/TuningSchema.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from feinsum.records import (
    KINDS,
    Document,
    Trial,
    TuningRecord,
    get_kind,
    to_json,
)

T4_VERSION = "1.0.0"

TRANSFORM = "@transform"
"""The key of a configuration that names the transform; no parameter has such a name."""

INVALIDITY = {
    "ok": "correct",
    "build-failed": "compile",
    "invalid-parameter": "constraints",
    "transform-failed": "constraints",
    "trial-timeout": "timeout",
    "wrong-result": "correctness",
}
"""T4's word for the status of a trial; any other one failed while it ran."""


def write_t4(documents: Iterable[Document], folder: Path) -> Counter[str]:
    """Write a file for every workload and environment; returns counts by kind.

    Complexity: all facts and trials are in memory.

    Raises:
        OSError: if a file cannot be written.
    """
    by_file: dict[str, list[TuningRecord | Trial]] = {}
    n_written: Counter[str] = Counter()
    for document in documents:
        if not KINDS[get_kind(document)].has_recipe:
            continue
        assert isinstance(document, (TuningRecord, Trial))
        name = (
            f"{_make_file_name(document.workload)}-{document.environment.id[:12]}.json"
        )
        by_file.setdefault(name, []).append(document)
        n_written[get_kind(document)] += 1
    # T4 has one workload and environment per file, so all results must be known first.
    folder.mkdir(parents=True, exist_ok=True)
    for name, results in by_file.items():
        text = json.dumps(make_t4_document(results), indent=2, allow_nan=False)
        (folder / name).write_text(f"{text}\n", "utf-8")
    return n_written


def make_t4_document(results: Iterable[TuningRecord | Trial]) -> dict[str, Any]:
    """Return the T4 document of the facts and trials of a workload in an environment.

    There is at least one. Times are in milliseconds, as in Kernel Tuner.
    """
    ordered = sorted(results, key=lambda result: (result.recorded_at, result.id))
    first = ordered[0]
    software = sorted(first.environment.software.items())
    environment = first.environment
    return {
        "schema_version": T4_VERSION,
        "metadata": {
            "workload": first.workload,
            "workload_text": first.workload_text,
            "hardware": {
                "hardware_description": [json.loads(to_json(environment.device))]
            },
            "environment": {
                "device_query": {
                    "driver_version": environment.driver_version,
                    "platform_version": environment.platform_version,
                },
                "requirements": [f"{name}=={version}" for name, version in software],
                "policy": dict(environment.policy),
            },
        },
        "results": [_make_result(result) for result in ordered],
    }


def _make_file_name(workload: str) -> str:
    """Return the key, or a digest of one that cannot be the name of a file."""
    if re.fullmatch(r"\w[\w.-]{0,150}", workload, re.ASCII):
        return workload
    return hashlib.sha256(workload.encode()).hexdigest()[:40]


def _make_result(result: TuningRecord | Trial) -> dict[str, Any]:
    spec, invalidity = result.spec, "correct"
    samples_s: tuple[float, ...] = ()
    measurements: list[tuple[str, Any, str]] = []
    if isinstance(result, TuningRecord):
        measured = result.measurement
        samples_s = measured.samples_s
        measurements = [
            ("time", 1e3 * measured.median_s, "ms"),
            ("speedup", measured.speedup, ""),
            ("GFLOP/s", measured.giga_operations_per_s, ""),
        ]
    else:
        invalidity = INVALIDITY.get(result.status, "runtime")
        if result.median_s is not None:
            samples_s = (result.median_s,)
            time_ms = 1e3 * result.median_s
            measurements = [("time", time_ms, "ms"), ("ratio", result.ratio, "")]
    return {
        "timestamp": result.recorded_at,
        "configuration": {
            **{
                name: list(value) if isinstance(value, tuple) else value
                for name, value in spec.parameters.items()
            },
            TRANSFORM: f"{spec.name}@{spec.version}",
        },
        "times": {"runtimes": [1e3 * sample for sample in samples_s]},
        "invalidity": invalidity,
        "correctness": int(invalidity == "correct"),
        "measurements": [
            {"name": name, "value": value, "unit": unit}
            for name, value, unit in measurements
        ],
        "objectives": ["time"],
    }
