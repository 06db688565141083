"""A workload of a bundle: its kernels, arguments and expected results."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import loopy as lp
import numpy as np
from pymbolic.mapper.evaluator import evaluate

from benchmarks.gpu.bundle import runner
from benchmarks.gpu.bundle.candidates import candidates
from feinsum.errors import BuildError, FeinsumError, MeasurementError
from feinsum.measure import count_footprint_bytes, count_operations
from feinsum.measure.cases import Case, make_case
from feinsum.records import TransformSpec
from feinsum.targets.cuda.built import check_launch
from feinsum.targets.cuda.code import CudaCode, CudaLaunch, CudaTarget, generate_cuda
from feinsum.targets.cuda.figures import parse_figures, require_occupancy
from feinsum.targets.cuda.nvrtc import HEADERS, find_nvrtc
from feinsum.targets.layout import compute_layout, infer_types
from feinsum.transforms import (
    apply_spec,
    find_transform,
    list_configurations,
)
from feinsum.tuning.problem import TuningProblem

N_CHECKED = 1024
"""Entries of a result that are compared one by one."""
SEED = 0
"""The seed of :func:`feinsum.measure.cases.make_case`."""
BASELINE = "gpu_points"
"""The family whose recommended recipe all others are compared with: an untransformed
kernel is one work-item on a GPU, which nobody would run.
"""


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
        self,
        problem: TuningProblem,
        n_candidates: int,
        tried: Mapping[TransformSpec, float],
    ) -> dict[str, Any]:
        case = make_case(problem.einsum, problem.sizes)
        made: list[dict[str, Any]] = []
        baseline = find_transform(BASELINE, 1)
        first = next(list_configurations(baseline, problem.workload), None)
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
            return generate_cuda(infer_types(unit.copy(target=CudaTarget())))
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
    figures, n_threads = parse_figures(log, launch.name), int(np.prod(block))
    occupancy = require_occupancy(
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


def document_of(problem: TuningProblem, case: Case) -> dict[str, Any]:
    """The description of a workload for a runner, without its kernels."""
    return {
        "key": str(problem.form.key),
        "text": problem.workload_text,
        "sizes": dict(problem.sizes),
        "tolerance": max(case.tolerance, float(np.finfo(np.float64).eps)),
        "operations": dict(count_operations(case.einsum, problem.sizes)),
        "footprint_bytes": count_footprint_bytes(case.einsum, problem.sizes),
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
            shape = compute_layout(arg, case.sizes).shape
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
        places = runner.checked(np, flat.size, N_CHECKED)
        weights = runner.weights(np, flat.size)
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
