"""The folder of a bundle: kernels, and all that it takes to judge them.

A GPU is often available for minutes, on a machine without a network. So candidates are
generated and compiled where there is time. The folder says how arguments are drawn, and
has samples of the expected results; ``runner.py`` verifies and times the kernels.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from benchmarks.gpu.bundle import runner
from benchmarks.gpu.bundle.workload import SEED, BuiltWorkload, WorkloadBuilder
from feinsum.errors import MeasurementError
from feinsum.records import TransformSpec, get_utc_now
from feinsum.targets.cuda.nvrtc import find_nvrtc
from feinsum.targets.protocol import list_versions
from feinsum.tuning.problem import TuningProblem

Item = TypeVar("Item")

FORMAT = 2
MOST_BYTES = 20_000_000
"""Largest bundle, all its files together."""


@dataclass(frozen=True)
class Exported:
    """The contents of a bundle.

    Attributes:
        n_candidates: of all workloads.
        left_out: for each workload with some, recipes that are not in it, and why.
    """

    n_workloads: int
    n_candidates: int
    n_bytes: int
    left_out: Mapping[str, Mapping[str, str]]


def export_bundle(
    problems: Mapping[str, TuningProblem],
    folder: Path,
    architecture: str,
    *,
    n_candidates: int = 20,
    tried: Mapping[str, Mapping[TransformSpec, float]] = MappingProxyType({}),
    n_processes: int | None = None,
    on_workload: Callable[[int], None] | None = None,
) -> Exported:
    """Write a bundle.

    Args:
        problems: the workloads, by name.
        architecture: that is compiled for, such as ``sm_90``; on other GPUs the runner
            compiles the sources.
        n_candidates: of each workload, the baseline included.
        tried: seconds of recipes, by key: they are left out, and the neighbours of the
            best come first.
        n_processes: that generate and compile; by default one per core. One is this
            process.
        on_workload: called with the number of finished workloads.

    Raises:
        MeasurementError: if the folder is not empty, or the bundle gets too large.
        DeviceUnavailableError: if there is no NVRTC.
    """
    return write_bundle(
        folder,
        architecture,
        partial(_build, n_candidates, architecture),
        [(n, p, tried.get(str(p.form.key), {})) for n, p in problems.items()],
        n_processes=n_processes,
        on_workload=on_workload,
    )


def _build(
    n_candidates: int,
    architecture: str,
    item: tuple[str, TuningProblem, Mapping[TransformSpec, float]],
) -> BuiltWorkload:
    name, problem, tried = item
    builder = WorkloadBuilder(architecture)
    document = {"name": name, **builder.workload(problem, n_candidates, tried)}
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
        with _mapped(make, items, n_processes) as made:
            built = _reported(made, on_workload)
            workloads, left_out = _write_kernels(folder / "kernels.zip", built)
        _write_document(folder, architecture, workloads)
        n_bytes = sum(path.stat().st_size for path in folder.iterdir())
        _check_size(n_bytes)
    except BaseException:
        for path in folder.iterdir():
            path.unlink()
        raise
    total = sum(len(w["candidates"]) for w in workloads)
    return Exported(len(workloads), total, n_bytes, left_out)


@contextmanager
def _mapped(
    make: Callable[[Item], BuiltWorkload],
    items: Sequence[Item],
    n_processes: int | None,
) -> Iterator[Iterable[BuiltWorkload]]:
    """The workloads of the items; a single process would only be started for nothing.

    After an error, processes only finish what they have begun.
    """
    if min(len(items), n_processes or len(items)) <= 1:
        yield map(make, items)
        return
    pool = ProcessPoolExecutor(n_processes, get_context("spawn"))
    try:
        yield pool.map(make, items)
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
) -> tuple[list[dict[str, Any]], Mapping[str, Mapping[str, str]]]:
    """Write the files of workloads, each once; their documents, and what is left out.

    Raises:
        MeasurementError: as soon as the bundle gets too large.
    """
    left_out: dict[str, Mapping[str, str]] = {}
    documents, text_bytes = [], 0
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for workload in built:
            documents.append(workload.document)
            if workload.left_out:
                left_out[workload.document["name"]] = workload.left_out
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
        "made_at": get_utc_now(),
        "seed": SEED,
        "architecture": architecture,
        "software": {**list_versions(), "nvrtc": find_nvrtc().version},
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


def results_of(folder: Path, results: Path) -> dict[str, dict[TransformSpec, float]]:
    """Seconds of what was tried, infinite where it failed, by workload and recipe.

    Args:
        results: the file that the runner wrote.

    Raises:
        MeasurementError: if the folder holds no bundle.
    """
    found: dict[str, dict[TransformSpec, float]] = {}
    workloads = read_bundle(folder)["workloads"]
    for line in runner.lines_of(results):
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
            f"{folder} has no readable bundle ({error}); make one with make gpu-pack"
        ) from error
    if document.get("format") != FORMAT:
        raise MeasurementError(
            f"{folder} has the format {document.get('format')!r}, expected {FORMAT}; "
            "import it with the version of feinsum that exported it"
        )
    return document
