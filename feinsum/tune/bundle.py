"""Trials that travel: kernels and all that it takes to judge them, in one folder.

A GPU is often available for minutes, on a machine without a network. So candidates are
generated and compiled where there is time. The folder says how arguments are drawn, and
has samples of the expected results; ``runner.py`` in it verifies and times the kernels.
"""

from __future__ import annotations

import hashlib
import json
import re
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
from typing import Any, TypeVar

import loopy as lp
import numpy as np
from pymbolic.mapper.evaluator import evaluate

from feinsum.errors import BuildError, FeinsumError, MeasurementError
from feinsum.measure import einsum_operations, footprint_bytes
from feinsum.measure.cases import Case, make_case
from feinsum.records import TransformSpec, utc_now
from feinsum.targets.cuda.built import check_launch
from feinsum.targets.cuda.code import CudaCode, CudaLaunch, CudaTarget, generated
from feinsum.targets.cuda.figures import checked_occupancy, figures_of
from feinsum.targets.cuda.nvrtc import HEADERS, find_nvrtc
from feinsum.targets.layout import array_layout, typed
from feinsum.targets.software import software
from feinsum.transforms import (
    apply_spec,
    configurations,
    find_transform,
)
from feinsum.tune import bundle_runner
from feinsum.tune.bundle_candidates import candidates
from feinsum.tune.problem import Problem

__all__ = [
    "MOST_BYTES",
    "BuiltWorkload",
    "Exported",
    "WorkloadBuilder",
    "document_of",
    "export_bundle",
    "read_bundle",
    "results_of",
    "write_bundle",
]

Item = TypeVar("Item")

FORMAT = 1
MOST_BYTES = 30_000_000
"""Largest bundle, all its files together."""
N_CHECKED = 1024
"""Entries of a result that are compared one by one."""
SEED = 0
"""The seed of :func:`feinsum.measure.cases.make_case`."""
BASELINE = "gpu_points"
"""The family whose recommended recipe all others are compared with: an untransformed
kernel is one work-item on a GPU, which nobody would run.
"""


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
        shutil.copyfile(bundle_runner.__file__, folder / "runner.py")
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


@dataclass(frozen=True)
class BuiltWorkload:
    """A workload of a bundle.

    Attributes:
        files: sources and cubins, by their names in the archive.
        left_out: why candidates are not in it, with how many there are.
    """

    document: dict[str, Any]
    files: Mapping[str, str | bytes]
    left_out: Mapping[str, int]


def _build(
    n_candidates: int,
    architecture: str,
    item: tuple[Problem, Mapping[TransformSpec, float]],
) -> BuiltWorkload:
    problem, tried = item
    builder = WorkloadBuilder(architecture)
    document = builder.workload(problem, n_candidates, tried)
    return BuiltWorkload(document, builder.files, builder.left_out)


@dataclass
class WorkloadBuilder:
    """Generates and compiles the kernels of a workload.

    Attributes:
        files: sources and cubins, by their names in the archive.
        left_out: why candidates are not in it, with how many there are.
    """

    architecture: str
    files: dict[str, str | bytes] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    def workload(
        self, problem: Problem, n_candidates: int, tried: Mapping[TransformSpec, float]
    ) -> dict[str, Any]:
        case = make_case(problem.einsum, problem.sizes)
        made: list[dict[str, Any]] = []
        baseline = find_transform(BASELINE, 1)
        first = next(configurations(baseline, problem.workload), None)
        if first is None:
            raise MeasurementError(
                f"{problem.einsum.subscripts} has no baseline kernel for a GPU"
            )
        for spec in (first, *candidates(problem, tried, self.architecture)):
            if len(made) == n_candidates:
                break
            if made and (spec == first or spec in tried):
                continue
            try:
                made.append(self.candidate(spec, case))
            except FeinsumError as error:
                if not made:
                    raise
                self.left_out[error.code] += 1
        return {**document_of(problem, case), "baseline": 0, "candidates": made}

    def candidate(self, spec: TransformSpec, case: Case) -> dict[str, Any]:
        """A recipe as launches.

        Raises:
            BuildError: if it cannot be compiled, or spills too much.
            TransformError: if it cannot be applied.
        """
        unit = apply_spec(spec, case.t_unit, case.nest)
        code = self._generated(unit)
        scalars = {name: case.arguments[name] for name in code.scalars}
        capability = int(self.architecture.partition("_")[2])
        binary = find_nvrtc().compile(code.source, self.architecture)
        launches = [
            _launch(launch, binary.log, scalars, spec, capability)
            for launch in code.launches
        ]
        return {
            "spec": str(spec),
            "code": self._kept_code(code.source, binary.image),
            "launches": launches,
            "temporaries": _temporaries(code, scalars),
        }

    def _generated(self, unit: lp.TranslationUnit) -> CudaCode:
        try:
            return generated(typed(unit.copy(target=CudaTarget())))
        except FeinsumError:
            raise
        except Exception as error:  # Loopy raises errors of many kinds
            raise BuildError(f"Loopy: {type(error).__name__}: {error}") from error

    def _kept_code(self, source: str, image: bytes) -> str:
        """The name of a source and its cubin."""
        digest = hashlib.sha256(source.encode()).hexdigest()[:24]
        self.files[f"{digest}.cu"] = standalone(source)
        self.files[f"{digest}.{self.architecture}"] = image
        return digest


def _launch(
    launch: CudaLaunch,
    log: str,
    scalars: Mapping[str, Any],
    spec: TransformSpec,
    capability: int,
) -> dict[str, Any]:
    """The description of a launch.

    Raises:
        BuildError: if it spills too much, or fits no multiprocessor.
    """
    check_launch(launch, capability)
    grid, block = launch.sizes(scalars)
    figures, n_threads = figures_of(log, launch.name), int(np.prod(block))
    occupancy = checked_occupancy(
        str(spec), figures, n_threads, capability, launch.shared_bytes
    )
    return {
        "name": launch.name,
        "arguments": launch.arguments,
        "grid": grid,
        "block": block,
        "shared_bytes": launch.shared_bytes,
        "registers": figures.registers,
        "occupancy": occupancy,
        "product": _product(launch, scalars),
    }


def document_of(problem: Problem, case: Case) -> dict[str, Any]:
    """The description of a workload for a runner, without its kernels."""
    return {
        "key": str(problem.form.key),
        "text": problem.workload_text,
        "sizes": dict(problem.sizes),
        "tolerance": max(case.tolerance, float(np.finfo(np.float64).eps)),
        "operations": dict(einsum_operations(case.einsum, problem.sizes)),
        "footprint_bytes": footprint_bytes(case.einsum, problem.sizes),
        "arguments": list(_arguments(case)),
        "outputs": list(_outputs(case)),
    }


def standalone(source: str) -> str:
    """A source that includes no file."""
    text = re.sub(r"^\s*#include <.*>\s*$", "", source, flags=re.MULTILINE)
    return "\n".join((HEADERS["stdint.h"], HEADERS["math.h"], text))


def _product(launch: CudaLaunch, scalars: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the library is called for in the place of a launch."""
    product, gemm = launch.product, launch.gemm(scalars)
    if product is None or gemm is None:
        return None
    return {
        "arrays": (product.right, product.left, product.result),
        "call": gemm.numbers,
    }


def _temporaries(code: CudaCode, scalars: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {name: int(value) for name, value in scalars.items()}
    return {
        name: (int(np.prod([int(evaluate(n, sizes)) for n in shape])), dtype.str)
        for name, (shape, dtype) in code.temporaries.items()
    }


def _arguments(case: Case) -> Iterator[tuple[str, str, Any, str]]:
    """Name, dtype, shape or value, and how it is drawn, in the order of the kernel."""
    for arg in case.t_unit.default_entrypoint.args:
        dtype = arg.dtype.numpy_dtype
        if isinstance(arg, lp.ValueArg):
            value = dtype.type(case.arguments[arg.name]).item()
            is_size = dtype.kind in "iu"
            yield arg.name, dtype.str, value, "size" if is_size else "scalar"
        elif arg.is_input:
            shape = array_layout(arg, case.sizes).shape
            if dtype.kind not in "iuf":
                raise MeasurementError(
                    f"operand {arg.name!r} has the dtype {dtype}, which bundles do not"
                    " support; expected integers or floating-point numbers"
                )
            kind = "uniform" if dtype.kind == "f" else "integers"
            yield arg.name, dtype.str, shape, kind


def _outputs(case: Case) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Name, dtype, shape, and what is expected of each result."""
    for name, result in case.expected.items():
        flat = np.asarray(result).reshape(-1).astype(np.float64)
        places = bundle_runner.checked(np, flat.size, N_CHECKED)
        weights = bundle_runner.weights(np, flat.size)
        arg = case.t_unit.default_entrypoint.arg_dict[name]
        yield (
            name,
            arg.dtype.numpy_dtype.str,
            result.shape,
            {
                "values": flat[places].tolist(),
                "weighted": float(flat @ weights),
                "largest": float(np.abs(flat).max(initial=0.0)),
            },
        )


def results_of(folder: Path) -> dict[str, dict[TransformSpec, float]]:
    """Seconds of what was tried, infinite where it failed, by workload and recipe.

    Raises:
        MeasurementError: if the folder holds no bundle.
    """
    found: dict[str, dict[TransformSpec, float]] = {}
    workloads = read_bundle(folder)["workloads"]
    for line in bundle_runner.lines_of(folder / "results.jsonl"):
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
