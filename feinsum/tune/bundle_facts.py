"""Facts from the results of a bundle's runner on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feinsum.canonical import canonicalize
from feinsum.errors import InvalidRecordError
from feinsum.ir import from_text
from feinsum.records import (
    Device,
    Environment,
    FactStore,
    Measurement,
    TransformSpec,
    TuningRecord,
    Verification,
    check_plausible,
)
from feinsum.records.environment import CUDA_PLATFORM
from feinsum.transforms import check_spec
from feinsum.tune import bundle_runner
from feinsum.tune.bundle import read_bundle
from feinsum.tune.recording import N_RECORDED

__all__ = ["Imported", "import_results"]


@dataclass(frozen=True)
class Imported:
    """The contents of a file of results.

    Attributes:
        facts: recorded, the best of each workload first.
        states: how many candidates were tried, wrong, failed or crashed.
    """

    facts: tuple[TuningRecord, ...]
    states: Mapping[str, int]


def import_results(folder: Path, store: FactStore) -> Imported:
    """Record the best of every workload, with the GPU that it was measured on.

    The recipe of the baseline is one of them: nothing says that it is the slowest.

    Raises:
        MeasurementError: if the folder holds no bundle.
        InvalidRecordError: if there are no results, or one is of another bundle, of
            no recipe of this installation, or wrong.
        ImplausibleError: if a time is none that a device can have.
    """
    bundle = read_bundle(folder)
    lines = bundle_runner.lines_of(folder / "results.jsonl")
    if not lines:
        raise InvalidRecordError(
            f"{folder} has no results; run its runner.py on a machine with a GPU"
        )
    states: dict[str, int] = {}
    finals: dict[int, dict[int, TuningRecord]] = {}
    errors: dict[tuple[int, int], float] = {}
    for number, line in enumerate(lines, start=1):
        try:
            if line.get("final"):
                found = finals.setdefault(line["workload"], {})
                found[line["candidate"]] = _fact(bundle, line)
                at = bundle["workloads"][line["workload"]]["baseline"]
                error = errors.get((line["workload"], at))
                if error is not None:
                    of_it = {"candidate": at, "samples_s": line["baseline_s"]}
                    found[at] = _fact(bundle, {**line, **of_it, "error": error})
            elif line["state"] == "tried":
                errors[line["workload"], line["candidate"]] = line["error"]
                states["tried"] = states.get("tried", 0) + 1
            elif line["state"] != "started":
                states[line["state"]] = states.get(line["state"], 0) + 1
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidRecordError(
                f"result {number} of {folder} is none of this bundle: "
                f"{type(error).__name__}: {error}"
            ) from error
    facts = []
    for by_candidate in finals.values():
        ranked = sorted(by_candidate.values(), key=lambda f: f.measurement.median_s)
        facts += ranked[:N_RECORDED]
    for fact in facts:
        check_plausible(fact)
    for fact in facts:
        store.add(fact)
    return Imported(tuple(facts), states)


def _fact(bundle: Mapping[str, Any], line: Mapping[str, Any]) -> TuningRecord:
    if line["bundle"] != bundle["id"]:
        raise ValueError(f"it is of the bundle {line['bundle'][:12]}")
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
    environment = _environment(bundle, line["device"], len(measurement.samples_s))
    return TuningRecord(form.key, form.text, environment, spec, measurement, provenance)


def _environment(
    bundle: Mapping[str, Any], has: Mapping[str, Any], rounds: int
) -> Environment:
    """The GPU's own identity, and the software of either machine."""
    major, minor = has["capability"]
    device = Device(
        platform=CUDA_PLATFORM,
        name=has["name"],
        vendor="NVIDIA Corporation",
        kind="gpu",
        architecture=f"sm_{major}{minor}",
        compute_units=has["multiprocessors"],
    )
    return Environment(
        device,
        has["driver"],
        f"sm_{major}{minor} {has['clock_khz'] // 1000} MHz",
        {**bundle["software"], "cupy": has["cupy"], "python": has["python"]},
        {"rounds": rounds, "timer": "cuda-events", "cache": "warm"},
    )
