"""The folder of a bundle: kernels, all that it takes to judge them, and their facts.

A GPU is often available for minutes, on a machine without a network. So candidates are
generated and compiled where there is time. The folder says how arguments are drawn, and
has samples of the expected results; ``runner.py`` in it verifies and times the kernels.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from feinsum.canonical import canonicalize
from feinsum.errors import InvalidRecordError, MeasurementError
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
    utc_now,
)
from feinsum.records.environment import CUDA_PLATFORM
from feinsum.targets.cuda.nvrtc import find_nvrtc
from feinsum.targets.protocol import software
from feinsum.transforms import check_spec
from feinsum.tuning.bundle import runner
from feinsum.tuning.bundle.workload import SEED, BuiltWorkload, WorkloadBuilder
from feinsum.tuning.problem import Problem
from feinsum.tuning.trials import N_RECORDED

Item = TypeVar("Item")

FORMAT = 1

MOST_BYTES = 30_000_000
"""Largest bundle, all its files together."""


@dataclass(frozen=True)
class Exported:
    """The contents of a bundle.

    Attributes:
        n_candidates: of all workloads.
        left_out: why candidates are not in it, with how many there are.
    """

    n_workloads: int
    n_candidates: int
    n_bytes: int
    left_out: Mapping[str, int]


def export_bundle(
    problems: Sequence[Problem],
    folder: Path,
    architecture: str,
    *,
    n_candidates: int = 20,
    after: Path | None = None,
    n_processes: int | None = None,
    on_workload: Callable[[int], None] | None = None,
) -> Exported:
    """Write a bundle.

    Args:
        architecture: that is compiled for, such as ``sm_90``; on other GPUs the runner
            compiles the sources.
        n_candidates: of each workload, the baseline included.
        after: an earlier bundle with results: its candidates are left out, and the
            neighbours of the best come first.
        n_processes: that generate and compile; by default one per core.
        on_workload: called with the number of finished workloads.

    Raises:
        MeasurementError: if the folder is not empty, or the bundle gets too large.
        DeviceUnavailableError: if there is no NVRTC.
    """
    known = {} if after is None else results_of(after)
    tried = [known.get(str(problem.form.key), {}) for problem in problems]
    return write_bundle(
        folder,
        architecture,
        partial(_build, n_candidates, architecture),
        list(zip(problems, tried, strict=True)),
        n_processes=n_processes,
        on_workload=on_workload,
    )


def _build(
    n_candidates: int,
    architecture: str,
    item: tuple[Problem, Mapping[TransformSpec, float]],
) -> BuiltWorkload:
    problem, tried = item
    builder = WorkloadBuilder(architecture)
    document = builder.workload(problem, n_candidates, tried)
    return BuiltWorkload(document, builder.files, builder.left_out)


def write_bundle(
    folder: Path,
    architecture: str,
    make: Callable[[Item], BuiltWorkload],
    items: Sequence[Item],
    *,
    n_processes: int | None = None,
    on_workload: Callable[[int], None] | None = None,
) -> Exported:
    """Write a bundle of the workloads that processes build, one of each item.

    After an error, the folder is empty again.

    Args:
        make: builds a workload; it is pickled.

    Raises:
        MeasurementError: if the folder is not empty, or the bundle gets too large.
    """
    if folder.exists() and any(folder.iterdir()):
        raise MeasurementError(f"{folder} is not empty; give a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _processes(n_processes) as pool:
            built = _reported(pool.map(make, items), on_workload)
            workloads, left_out = _write_kernels(folder / "kernels.zip", built)
        _write_document(folder, architecture, workloads)
        shutil.copyfile(runner.__file__, folder / "runner.py")
        n_bytes = sum(path.stat().st_size for path in folder.iterdir())
        _check_size(n_bytes)
    except BaseException:
        for path in folder.iterdir():
            path.unlink()
        raise
    total = sum(len(w["candidates"]) for w in workloads)
    return Exported(len(workloads), total, n_bytes, left_out)


@contextmanager
def _processes(n: int | None) -> Iterator[ProcessPoolExecutor]:
    """After an error, they only finish what they have begun."""
    pool = ProcessPoolExecutor(n, get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _reported(
    built: Iterable[BuiltWorkload], on_workload: Callable[[int], None] | None
) -> Iterator[BuiltWorkload]:
    """The same workloads; calls a function with the number of finished ones."""
    for n_built, workload in enumerate(built, start=1):
        yield workload
        if on_workload is not None:
            on_workload(n_built)


def _write_kernels(
    path: Path, built: Iterable[BuiltWorkload]
) -> tuple[list[dict[str, Any]], Mapping[str, int]]:
    """Write the files of workloads, each once; their documents, and what is left out.

    Raises:
        MeasurementError: as soon as the bundle gets too large.
    """
    left_out: Counter[str] = Counter()
    documents, text_bytes = [], 0
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for workload in built:
            documents.append(workload.document)
            left_out.update(workload.left_out)
            for name in sorted(workload.files.keys() - set(archive.namelist())):
                archive.writestr(name, workload.files[name])
            text_bytes += len(json.dumps(workload.document))
            _check_size(text_bytes + path.stat().st_size)
    return documents, left_out


def _write_document(
    folder: Path, architecture: str, workloads: Sequence[Mapping[str, Any]]
) -> None:
    document = {
        "format": FORMAT,
        "made_at": utc_now(),
        "seed": SEED,
        "architecture": architecture,
        "software": {**software(), "nvrtc": find_nvrtc().version},
        "workloads": workloads,
    }
    text = json.dumps(document)
    document = {"id": hashlib.sha256(text.encode()).hexdigest(), **document}
    (folder / "bundle.json").write_text(json.dumps(document))


def _check_size(n_bytes: int) -> None:
    if n_bytes > MOST_BYTES:
        raise MeasurementError(
            f"the bundle takes more than {MOST_BYTES} bytes; give fewer trials"
        )


def results_of(folder: Path) -> dict[str, dict[TransformSpec, float]]:
    """Seconds of what was tried, infinite where it failed, by workload and recipe.

    Raises:
        MeasurementError: if the folder holds no bundle.
    """
    found: dict[str, dict[TransformSpec, float]] = {}
    workloads = read_bundle(folder)["workloads"]
    for line in runner.lines_of(folder / "results.jsonl"):
        if line.get("state", "started") == "started":
            continue
        workload = workloads[line["workload"]]
        spec = TransformSpec.parse(workload["candidates"][line["candidate"]]["spec"])
        seconds = float(line.get("seconds", np.inf))
        found.setdefault(workload["key"], {})[spec] = seconds
    return found


def read_bundle(folder: Path) -> dict[str, Any]:
    """The document of a bundle.

    Raises:
        MeasurementError: if there is none, or another version wrote it.
    """
    try:
        document: dict[str, Any] = json.loads((folder / "bundle.json").read_text())
    except (OSError, ValueError) as error:
        raise MeasurementError(
            f"{folder} has no readable bundle ({error}); make one with "
            "feinsum tune --export"
        ) from error
    if document.get("format") != FORMAT:
        raise MeasurementError(
            f"{folder} has the format {document.get('format')!r}, expected {FORMAT}; "
            "import it with the version of feinsum that exported it"
        )
    return document


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
        InvalidRecordError: if there are no results, or one is wrong, belongs to another
            bundle, or has a recipe that this installation does not know.
        ImplausibleError: if no device can be so fast.
    """
    results = _Results(read_bundle(folder))
    lines = runner.lines_of(folder / "results.jsonl")
    if not lines:
        raise InvalidRecordError(
            f"{folder} has no results; run its runner.py on a machine with a GPU"
        )
    for number, line in enumerate(lines, start=1):
        try:
            results.add(line)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidRecordError(
                f"result {number} of {folder} cannot be recorded "
                f"({type(error).__name__}: {error}); expected the results of the "
                "runner.py in this folder"
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
