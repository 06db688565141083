"""A workload of a bundle: kernels, arguments and expected results."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import prod
from typing import Any

import loopy as lp
import numpy as np
import opt_einsum
from pymbolic.mapper.evaluator import evaluate

from benchmarks.gpu.bundle import runner
from benchmarks.gpu.bundle.candidates import list_candidates
from feinsum.errors import BuildError, FeinsumError, MeasurementError
from feinsum.ir import BatchedEinsum
from feinsum.measure import count_footprint_bytes, count_operations
from feinsum.measure.cases import Case, pose_case
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

N_CHECKED = 512
"""Number of entries of a result that are compared."""
MOST_GATHERED = 1 << 22
"""Limit of the entries of an operand that are gathered at a time for them."""
SEED = 0
"""The seed of :func:`feinsum.measure.cases.make_case`."""
BASELINE = "gpu_points"
"""The family whose recommended recipe is the baseline: an untransformed kernel has one
work-item on a GPU.
"""


@dataclass(frozen=True)
class BuiltWorkload:
    """A workload of a bundle, and the files of its kernels.

    Attributes:
        files: sources and cubins, by their names in the archive.
        left_out: skipped recipes, with the reason.
    """

    document: dict[str, Any]
    files: Mapping[str, str | bytes]
    left_out: Mapping[str, str]


@dataclass
class WorkloadBuilder:
    """Generates and compiles the kernels of a workload.

    Attributes:
        files: sources and cubins, by their names in the archive.
        left_out: skipped recipes, with the reason.
    """

    architecture: str
    files: dict[str, str | bytes] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def build(
        self,
        problem: TuningProblem,
        n_candidates: int,
        tried: Mapping[TransformSpec, float],
    ) -> dict[str, Any]:
        case = pose_case(problem.einsum, problem.sizes)
        baseline = find_transform(BASELINE, 1)
        first = next(list_configurations(baseline, problem.workload), None)
        if first is None:
            raise MeasurementError(
                f"{problem.einsum.subscripts} has no baseline kernel for a GPU"
            )
        others = (
            spec
            for spec in list_candidates(problem, tried, self.architecture)
            if spec != first and spec not in tried
        )
        return {
            **describe_workload(problem, case, case.arguments),
            "baseline": 0,
            "candidates": [
                self.build_candidate(first, case),
                *islice(self.build_all(others, case), n_candidates - 1),
            ],
        }

    def build_all(
        self, specs: Iterable[TransformSpec], case: Case
    ) -> Iterator[dict[str, Any]]:
        """Yield the launches of recipes that compile, and note why others do not."""
        for spec in specs:
            try:
                yield self.build_candidate(spec, case)
            except FeinsumError as error:
                self.left_out[str(spec)] = str(error).splitlines()[0]

    def build_candidate(self, spec: TransformSpec, case: Case) -> dict[str, Any]:
        """Compile a recipe, and describe its launches.

        Raises:
            BuildError: if it cannot be compiled, or spills too much.
            TransformError: if it cannot be applied.
        """
        unit = apply_spec(spec, case.t_unit, case.nest)
        code = self._generate(unit)
        scalars = {name: case.arguments[name] for name in code.scalars}
        capability = int(self.architecture.partition("_")[2])
        binary = find_nvrtc().compile(code.source, self.architecture)
        launches = [
            _describe_launch(launch, binary.log, scalars, spec, capability)
            for launch in code.launches
        ]
        return {
            "spec": str(spec),
            "code": self._store_code(code.source, binary.image),
            "launches": launches,
            "temporaries": _list_temporaries(code, scalars),
        }

    def _generate(self, unit: lp.TranslationUnit) -> CudaCode:
        try:
            return generate_cuda(infer_types(unit.copy(target=CudaTarget())))
        except FeinsumError:
            raise
        except Exception as error:  # Loopy raises errors of many kinds
            raise BuildError(f"Loopy: {type(error).__name__}: {error}") from error

    def _store_code(self, source: str, image: bytes) -> str:
        """Store a source and its cubin, and return their name."""
        digest = hashlib.sha256(source.encode()).hexdigest()[:24]
        self.files[f"{digest}.cu"] = inline_headers(source)
        self.files[f"{digest}.{self.architecture}"] = image
        return digest


def _describe_launch(
    launch: CudaLaunch,
    log: str,
    scalars: Mapping[str, Any],
    spec: TransformSpec,
    capability: int,
) -> dict[str, Any]:
    """Describe a launch.

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
        "product": _describe_product(launch, scalars),
    }


def describe_workload(
    problem: TuningProblem, case: Case, operands: Mapping[str, Any]
) -> dict[str, Any]:
    """Describe a workload for the runner, without its kernels.

    Args:
        operands: the arrays of the operands of the einsum, by name.
    """
    return {
        "key": str(problem.form.key),
        "text": problem.workload_text,
        "sizes": dict(problem.sizes),
        "tolerance": max(case.tolerance, float(np.finfo(np.float64).eps)),
        "operations": dict(count_operations(case.einsum, problem.sizes)),
        "footprint_bytes": count_footprint_bytes(case.einsum, problem.sizes),
        "arguments": list(_list_arguments(case)),
        "outputs": list(_list_outputs(case, operands)),
    }


def inline_headers(source: str) -> str:
    """Inline the headers of a source."""
    text = re.sub(r"^\s*#include <.*>\s*$", "", source, flags=re.MULTILINE)
    return "\n".join((HEADERS["stdint.h"], HEADERS["math.h"], text))


def _describe_product(
    launch: CudaLaunch, scalars: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Describe the library call that replaces a launch, if any."""
    product, gemm = launch.product, launch.gemm(scalars)
    if product is None or gemm is None:
        return None
    return {
        "arrays": (product.right, product.left, product.result),
        "call": gemm.numbers,
    }


def _list_temporaries(code: CudaCode, scalars: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {name: int(value) for name, value in scalars.items()}
    return {
        name: (int(np.prod([int(evaluate(n, sizes)) for n in shape])), dtype.str)
        for name, (shape, dtype) in code.temporaries.items()
    }


def _list_arguments(case: Case) -> Iterator[tuple[str, str, Any, str]]:
    """Yield name, dtype, shape or value, and distribution, in the order of the
    kernel.
    """
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


def _list_outputs(
    case: Case, operands: Mapping[str, Any]
) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Yield name, dtype, shape and expectation of each result."""
    einsum, arguments = case.einsum, case.t_unit.default_entrypoint.arg_dict
    extents = einsum.extents_at(case.sizes)
    shape = tuple(extents[index] for index in einsum.output)
    for name, row in zip(case.nest.outputs, einsum.rows, strict=True):
        arrays = [np.asarray(operands[operand.name]) for operand in row]
        dtype = arguments[name].dtype.numpy_dtype
        yield name, dtype.str, shape, compute_checks(einsum, arrays, shape)


def compute_checks(
    einsum: BatchedEinsum, arrays: Sequence[Any], shape: tuple[int, ...]
) -> dict[str, Any]:
    """Compute some entries of a row's result, and a weighted sum of all.

    The whole result is not computed: it would take numpy longer than everything else.

    Raises:
        MeasurementError: if an entry is not finite.
    """
    positions = runner.choose_checked(np, prod(shape), N_CHECKED)
    values = _compute_entries(
        einsum, arrays, np.unravel_index(positions, shape) if shape else ()
    )
    if not np.isfinite(values).all():
        raise MeasurementError(f"the result of {einsum.subscripts} is not finite")
    weights = [runner.draw_weights(np, axis, n) for axis, n in enumerate(shape)]
    terms = [*einsum.inputs, *((index,) for index in einsum.output)]
    weighted = _contract([*arrays, *weights], terms, ())
    return {
        "values": values.tolist(),
        "weighted": float(weighted),
        "largest": float(np.abs(values).max(initial=0.0)),
    }


def _compute_entries(
    einsum: BatchedEinsum, arrays: Sequence[Any], positions: Sequence[Any]
) -> Any:
    """Compute entries of the result of a row in double precision.

    Args:
        positions: for each index of the result, its values at the entries.
    """
    point, n_entries = "a checked entry", len(positions[0]) if positions else 1
    positions_of = dict(zip(einsum.output, positions, strict=True))
    sliced, terms, n_gathered = [], [], 1
    for array, term in zip(arrays, einsum.inputs, strict=True):
        free = [k for k, index in enumerate(term) if index in positions_of]
        summed = [k for k, index in enumerate(term) if index not in positions_of]
        sliced.append(
            (array.transpose(*free, *summed), [positions_of[term[k]] for k in free])
        )
        terms.append((*[point][: len(free)], *(term[k] for k in summed)))
        n_gathered = max(n_gathered, prod(array.shape[k] for k in summed))
    step = max(1, MOST_GATHERED // n_gathered)
    return np.concatenate([
        np.atleast_1d(_contract(
            [array[tuple(p[start : start + step] for p in free)]
             for array, free in sliced],
            terms, (point,) if positions else (),
        ))
        for start in range(0, n_entries, step)
    ])  # fmt: skip


def _contract(
    arrays: Sequence[Any], terms: Sequence[Sequence[str]], output: Sequence[str]
) -> Any:
    """Compute an einsum over arbitrary index names in double precision."""
    number: dict[str, int] = {}
    for index in chain.from_iterable(terms):
        number.setdefault(index, len(number))
    operands: list[Any] = []
    for array, term in zip(arrays, terms, strict=True):
        operands += [array.astype(np.float64, copy=False), [number[i] for i in term]]
    return opt_einsum.contract(*operands, [number[i] for i in output])
