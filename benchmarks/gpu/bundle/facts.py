"""Import results of a bundle as tuning records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.gpu.bundle import runner
from benchmarks.gpu.bundle.folder import read_bundle
from feinsum.canonical import canonicalize
from feinsum.errors import InvalidRecordError
from feinsum.ir import from_text
from feinsum.records import (
    Device,
    Environment,
    Measurement,
    Store,
    TransformSpec,
    TuningRecord,
    Verification,
    check_plausible,
)
from feinsum.records.environment import CUDA_PLATFORM
from feinsum.transforms import check_spec
from feinsum.tuning.trials import N_RECORDED


@dataclass(frozen=True)
class Imported:
    """The imported records, and a summary of the trials.

    Attributes:
        facts: the recorded ones, the best of each workload first.
        states: number of candidates that were tried, wrong, failed or crashed.
    """

    facts: tuple[TuningRecord, ...]
    states: Mapping[str, int]


def import_results(folder: Path, path: Path, store: Store) -> Imported:
    """Record the best recipes of every workload, with the identity of the GPU.

    The baseline is a candidate, too, because it may be the fastest.

    Args:
        folder: the bundle.
        path: the file that the runner wrote.
        store: the database.

    Raises:
        MeasurementError: if the folder holds no bundle.
        InvalidRecordError: if there are no results, or one is wrong, belongs to another
            bundle, or has an unknown recipe.
        ImplausibleError: if a time is faster than any device.
    """
    results = _Results(read_bundle(folder))
    lines = runner.read_lines(path)
    if not lines:
        raise InvalidRecordError(
            f"{path} has no results; run gpu.sh on a machine with a GPU"
        )
    for number, line in enumerate(lines, start=1):
        try:
            results.add(line)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidRecordError(
                f"result {number} of {path} cannot be recorded "
                f"({type(error).__name__}: {error}); expected the results of the "
                f"trials in {folder}"
            ) from error
    facts = results.list_best()
    for fact in facts:
        check_plausible(fact)
    for fact in facts:
        store.add(fact)
    return Imported(tuple(facts), Counter(results.states.values()))


Trial: TypeAlias = tuple[int, int]
"""Numbers of a workload and of a candidate."""


@dataclass(frozen=True)
class _Results:
    """The results of a bundle.

    Attributes:
        states: of trials.
        errors: of trials with right results.
        finals: facts of candidates that were timed in interleaved rounds, by workload.
    """

    bundle: Mapping[str, Any]
    states: dict[Trial, str] = field(default_factory=dict)
    errors: dict[Trial, float] = field(default_factory=dict)
    finals: dict[int, dict[int, TuningRecord]] = field(default_factory=dict)

    def add(self, line: Mapping[str, Any]) -> None:
        """Add a line of the file of results."""
        if line.get("final"):
            self._add_final(line)
        elif line["state"] != "started":
            trial = line["workload"], line["candidate"]
            self.states[trial] = line["state"]
            if line["state"] == "tried":
                self.errors[trial] = line["error"]

    def _add_final(self, line: Mapping[str, Any]) -> None:
        """Add the samples of a candidate, and of the baseline in the same rounds."""
        k = line["workload"]
        facts = self.finals.setdefault(k, {})
        facts[line["candidate"]] = _make_fact(self.bundle, line)
        baseline = self.bundle["workloads"][k]["baseline"]
        error = self.errors.get((k, baseline))
        if error is not None:
            baseline_line = {"candidate": baseline, "samples_s": line["baseline_s"]}
            facts[baseline] = _make_fact(
                self.bundle, {**line, **baseline_line, "error": error}
            )

    def list_best(self) -> list[TuningRecord]:
        """Return the fastest of each workload, without those that were wrong later."""
        best = []
        for k, facts in self.finals.items():
            right = [
                fact
                for c, fact in facts.items()
                if self.states.get((k, c), "tried") == "tried"
            ]
            ranked = sorted(right, key=lambda fact: fact.measurement.median_s)
            best += ranked[:N_RECORDED]
        return best


def _make_fact(bundle: Mapping[str, Any], line: Mapping[str, Any]) -> TuningRecord:
    if line["bundle"] != bundle["id"]:
        raise ValueError(f"it belongs to the bundle {line['bundle'][:12]}")
    workload = bundle["workloads"][line["workload"]]
    einsum = from_text(workload["text"])
    form = canonicalize(einsum)
    spec = TransformSpec.parse(workload["candidates"][line["candidate"]]["spec"])
    check_spec(spec, einsum)
    error, tolerance = float(line["error"]), float(workload["tolerance"])
    if not 0 <= error <= tolerance:
        raise ValueError(f"its error is {error}, the tolerance {tolerance}")
    verification = Verification("numpy.einsum", tolerance, error, (workload["sizes"],))
    measurement = Measurement(
        tuple(map(float, line["samples_s"])),
        tuple(map(float, line["baseline_s"])),
        "cuda-events",
        3,
        workload["sizes"],
        workload["operations"],
        workload["footprint_bytes"],
        verification,
    )
    baseline = workload["candidates"][workload["baseline"]]["spec"]
    provenance = {"recorded_by": "feinsum.tune.bundle", "baseline": baseline}
    if runner.is_wide(measurement.samples_s):
        provenance["spread"] = f"{runner.compute_spread(measurement.samples_s):.2f}"
    environment = _make_environment(bundle, line["device"], len(measurement.samples_s))
    return TuningRecord(form.key, form.text, environment, spec, measurement, provenance)


def _make_environment(
    bundle: Mapping[str, Any], gpu: Mapping[str, Any], rounds: int
) -> Environment:
    """Return the GPU with the software of both machines."""
    architecture = "sm_{}{}".format(*gpu["capability"])
    clock = f"{gpu['clock_khz'] // 1000} MHz"
    device = Device(
        platform=CUDA_PLATFORM,
        name=gpu["name"],
        vendor="NVIDIA Corporation",
        kind="gpu",
        architecture=architecture,
        compute_units=gpu["multiprocessors"],
    )
    return Environment(
        device,
        gpu["driver"],
        f"{architecture} {clock}" if gpu["clock_khz"] else architecture,
        {**bundle["software"], "cupy": gpu["cupy"], "python": gpu["python"]},
        {"rounds": rounds, "timer": "cuda-events", "cache": "warm"},
    )
