"""Resources of GPU kernels from the compiler's figures; no GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any

from feinsum.canonical import canonicalize
from feinsum.errors import BuildError
from feinsum.ir import BatchedEinsum, Workload, generalize
from feinsum.measure.reference import make_reference
from feinsum.records import TransformSpec
from feinsum.targets.cuda.code import CudaTarget, generate_cuda
from feinsum.targets.cuda.figures import KernelFigures, occupancy, parse_figures
from feinsum.targets.cuda.nvrtc import find_nvrtc
from feinsum.targets.layout import infer_types
from feinsum.transforms import (
    apply_spec,
    find_applicable_transforms,
    list_configurations,
)

PREFIX = "gpu_"
"""Prefix of the names of families for GPUs."""


@dataclass(frozen=True)
class RecipeFigures:
    """A launch of a recipe.

    Attributes:
        n_items: of a work-group.
        shared_bytes: of a work-group, declared and requested.
        occupancy: the share of a multiprocessor's work-items that are resident at once.
    """

    spec: TransformSpec
    n_items: int
    figures: KernelFigures
    shared_bytes: int
    occupancy: float

    def to_document(self) -> dict[str, Any]:
        return {
            "recipe": str(self.spec),
            "items": self.n_items,
            "registers": self.figures.registers,
            "spill_bytes": self.figures.spill_bytes,
            "shared_bytes": self.shared_bytes,
            "occupancy": self.occupancy,
        }


def get_recipe_figures(
    spec: TransformSpec, einsum: BatchedEinsum, architecture: str
) -> tuple[RecipeFigures, ...]:
    """Compile a recipe and return the figures of its launches.

    Args:
        spec: the recipe.
        einsum: the canonical einsum.
        architecture: such as ``sm_90``.

    Returns:
        One for each launch; none if the recipe needs a newer architecture.

    Raises:
        BuildError: if there is no such architecture, or compilation for it fails.
    """
    word, _, number = architecture.partition("_")
    if word != "sm" or not number.isdecimal():
        raise BuildError(
            f"the architecture {architecture!r} is unknown; expected one such as "
            "'sm_90'"
        )
    unit, nest = make_reference(einsum).kernel()
    unit = apply_spec(spec, unit, nest)
    code = generate_cuda(infer_types(unit.copy(target=CudaTarget())))
    # Asynchronous copies, for example, are an error of nvrtc on older architectures.
    if any(launch.least_capability > int(number) for launch in code.launches):
        return ()
    log = find_nvrtc().compile(code.source, architecture).log
    launches = []
    for launch in code.launches:
        figures = parse_figures(log, launch.name)
        n_items = prod(int(n) for n in launch.block)
        occupied = occupancy(figures, n_items, int(number), launch.shared_bytes)
        shared = figures.shared_bytes + launch.shared_bytes
        launches.append(RecipeFigures(spec, n_items, figures, shared, occupied))
    return tuple(launches)


def get_start_figures(
    einsum: BatchedEinsum, architecture: str
) -> tuple[RecipeFigures, ...]:
    """Return the figures of the GPU recipes with which a search begins."""
    general, literal = generalize(einsum)
    form = canonicalize(general)
    names = form.relabeling.size_params
    workload = Workload(form.einsum, {names[name]: n for name, n in literal.items()})
    return tuple(
        figures
        for spec in _list_starts(workload)
        for figures in get_recipe_figures(spec, form.einsum, architecture)
    )


def _list_starts(workload: Workload) -> Iterator[TransformSpec]:
    for family in find_applicable_transforms(workload, "gpu"):
        if family.name.startswith(PREFIX):
            recommended = islice(list_configurations(family, workload), 1)
            starts = (family.spec(p) for p in family.starts(workload))
            yield from dict.fromkeys((*recommended, *starts))
