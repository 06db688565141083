"""The folder of a bundle: kernels, arguments and expected results.

A GPU is often available for minutes only, on a machine without a network. Therefore
kernels are generated and compiled in advance. The bundle describes how arguments are
drawn, and has samples of the expected results; ``runner.py`` verifies and times the
kernels.
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
"""Limit for all files of a bundle together."""


@dataclass(frozen=True)
class Exported:
    """A summary of a written bundle.

    Attributes:
        n_candidates: total over all workloads.
        left_out: for each workload, recipes that are not in it, with the reason.
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
        architecture: target of the compiler, such as ``sm_90``; on other GPUs the
            runner compiles the sources.
        n_candidates: per workload, including the baseline.
        tried: seconds of recipes, by key: they are skipped, and the neighbours of the
            best come first.
        n_processes: number of compiling processes; by default one per core. One is
            this process.
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
    document = {"name": name, **builder.build(problem, n_candidates, tried)}
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
    """Write a bundle, with one workload for each item, built in parallel.

    After an error, the folder is empty again.

    Args:
        make: builds a workload; must support pickling.

    Raises:
        MeasurementError: if the folder is not empty, or the bundle gets too large.
    """
    if folder.exists() and any(folder.iterdir()):
        raise MeasurementError(f"{folder} is not empty; give a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _map_items(make, items, n_processes) as results:
            built = _report_progress(results, on_workload)
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
def _map_items(
    make: Callable[[Item], BuiltWorkload],
    items: Sequence[Item],
    n_processes: int | None,
) -> Iterator[Iterable[BuiltWorkload]]:
    """Make the workloads of the items, in a pool of processes or, for one, here.

    After an error, the processes of the pool only finish their current items.
    """
    if min(len(items), n_processes or len(items)) <= 1:
        yield map(make, items)
        return
    pool = ProcessPoolExecutor(n_processes, get_context("spawn"))
    try:
        yield pool.map(make, items)
    finally:
        pool.shutdown(cancel_futures=True)


def _report_progress(
    built: Iterable[BuiltWorkload], on_workload: Callable[[int], None] | None
) -> Iterator[BuiltWorkload]:
    """Yield the workloads, and report the number of finished ones."""
    for n_built, workload in enumerate(built, start=1):
        yield workload
        if on_workload is not None:
            on_workload(n_built)


def _write_kernels(
    path: Path, built: Iterable[BuiltWorkload]
) -> tuple[list[dict[str, Any]], Mapping[str, Mapping[str, str]]]:
    """Write the files of workloads, each once; return the documents, and skipped
    recipes.

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


def read_seconds(folder: Path, results: Path) -> dict[str, dict[TransformSpec, float]]:
    """Return the seconds of tried recipes, infinite for failures, by workload.

    Args:
        results: the file that the runner wrote.

    Raises:
        MeasurementError: if the folder holds no bundle.
    """
    seconds_by_key: dict[str, dict[TransformSpec, float]] = {}
    workloads = read_bundle(folder)["workloads"]
    for line in runner.read_lines(results):
        if line.get("state", "started") == "started":
            continue
        workload = workloads[line["workload"]]
        spec = TransformSpec.parse(workload["candidates"][line["candidate"]]["spec"])
        seconds = float(line.get("seconds", np.inf))
        seconds_by_key.setdefault(workload["key"], {})[spec] = seconds
    return seconds_by_key


def read_bundle(folder: Path) -> dict[str, Any]:
    """Read the document of a bundle.

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
