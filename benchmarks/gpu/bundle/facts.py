"""Facts from the results of a bundle's runner on a GPU."""

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
    """The contents of a file of results.

    Attributes:
        facts: recorded, the best of each workload first.
        states: how many candidates were tried, wrong, failed or crashed.
    """

    facts: tuple[TuningRecord, ...]
    states: Mapping[str, int]


def import_results(folder: Path, path: Path, store: Store) -> Imported:
    """Record the best of every workload, with the GPU that it was measured on.

    The recipe of the baseline is one of them: nothing says that it is the slowest.

    Args:
        folder: the bundle.
        path: the file that the runner wrote.
        store: where the facts are stored.

    Raises:
        MeasurementError: if the folder holds no bundle.
        InvalidRecordError: if there are no results, or one is wrong, belongs to another
            bundle, or has a recipe that this installation does not know.
        ImplausibleError: if no device can be so fast.
    """
    results = _Results(read_bundle(folder))
    lines = runner.lines_of(path)
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
    facts = results.best()
    for fact in facts:
        check_plausible(fact)
    for fact in facts:
        store.add(fact)
    return Imported(tuple(facts), Counter(results.states.values()))


At: TypeAlias = tuple[int, int]
"""The numbers of a workload and of one of its candidates."""


@dataclass(frozen=True)
class _Results:
    """The results of a bundle.

    Attributes:
        states: how trials ended.
        errors: of those with right results.
        finals: facts of candidates that were timed in turns, by their workload.
    """

    bundle: Mapping[str, Any]
    states: dict[At, str] = field(default_factory=dict)
    errors: dict[At, float] = field(default_factory=dict)
    finals: dict[int, dict[int, TuningRecord]] = field(default_factory=dict)

    def add(self, line: Mapping[str, Any]) -> None:
        """Take a line of the file of results."""
        if line.get("final"):
            self._add_final(line)
        elif line["state"] != "started":
            at = line["workload"], line["candidate"]
            self.states[at] = line["state"]
            if line["state"] == "tried":
                self.errors[at] = line["error"]

    def _add_final(self, line: Mapping[str, Any]) -> None:
        """Take the times of a candidate, and of the baseline beside it."""
        k = line["workload"]
        facts = self.finals.setdefault(k, {})
        facts[line["candidate"]] = _fact(self.bundle, line)
        baseline = self.bundle["workloads"][k]["baseline"]
        error = self.errors.get((k, baseline))
        if error is not None:
            its = {"candidate": baseline, "samples_s": line["baseline_s"]}
            facts[baseline] = _fact(self.bundle, {**line, **its, "error": error})

    def best(self) -> list[TuningRecord]:
        """The fastest of each workload, without those that were wrong later on."""
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


def _fact(bundle: Mapping[str, Any], line: Mapping[str, Any]) -> TuningRecord:
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
        provenance["spread"] = f"{runner.spread(measurement.samples_s):.2f}"
    environment = _environment(bundle, line["device"], len(measurement.samples_s))
    return TuningRecord(form.key, form.text, environment, spec, measurement, provenance)


def _environment(
    bundle: Mapping[str, Any], has: Mapping[str, Any], rounds: int
) -> Environment:
    """The GPU's own identity, and the software of either machine."""
    architecture = "sm_{}{}".format(*has["capability"])
    clock = f"{has['clock_khz'] // 1000} MHz"
    device = Device(
        platform=CUDA_PLATFORM,
        name=has["name"],
        vendor="NVIDIA Corporation",
        kind="gpu",
        architecture=architecture,
        compute_units=has["multiprocessors"],
    )
    return Environment(
        device,
        has["driver"],
        f"{architecture} {clock}" if has["clock_khz"] else architecture,
        {**bundle["software"], "cupy": has["cupy"], "python": has["python"]},
        {"rounds": rounds, "timer": "cuda-events", "cache": "warm"},
    )
