"""Predict the fastest recipes for a workload on a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from operator import itemgetter

from feinsum.ir import BatchedEinsum
from feinsum.measure.intermediates import has_room, intermediate_limit_bytes
from feinsum.predict.correction import (
    ANALYTIC,
    Correction,
    corrected,
    correction_in_use,
)
from feinsum.predict.machine import machine_of
from feinsum.predict.sparse import sparse_predictions
from feinsum.predict.vectors import has_vectors
from feinsum.records import Device, DevicePeaks, TransformSpec
from feinsum.transforms import REGISTRY, Transform, find_transform
from feinsum.transforms.ranking import Costed, at_sizes, ranked
from feinsum.transforms.registry import Cost

__all__ = ["hopeless", "is_outdone", "predictions"]

HOPELESS = 30
"""Factor over the lowest expected time: more than any cost is wrong by."""

OUTDONE = 1.3
"""Factor over the better recipe's time: costs of one family err by less."""


def predictions(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    peaks: DevicePeaks | None = None,
    *,
    correction: Correction | None = None,
    intermediate_bytes: int | None = None,
) -> list[Costed]:
    """Recipes with their expected seconds, fastest first.

    If an extent is zero, there are none. For GPUs, only the families made for them are
    predicted, without a correction. Recipes for a sparse operand come from
    :func:`feinsum.predict.sparse.sparse_predictions`.

    Recipes differ in family or analytic cost: of similar ones, only one is returned. A
    correction can change their order, but adds none.

    Args:
        einsum: canonical.
        sizes: values of its size parameters, as far as known.
        correction: of the analytic costs; by default the one in use.
        intermediate_bytes: limit on the intermediates of a recipe; by default
            :func:`feinsum.measure.intermediates.intermediate_limit_bytes`.

    Raises:
        MeasurementError: if the variable for this limit is not a number.
    """
    is_empty = 0 in at_sizes(einsum, sizes).extents.values()
    if device.kind not in ("cpu", "gpu") or is_empty:
        return []
    if einsum.sparse_position is not None:
        is_cpu = device.kind == "cpu"
        return sparse_predictions(einsum, sizes, device) if is_cpu else []
    newest = dict(sorted(REGISTRY))
    transforms = [REGISTRY[name] for name in newest.items()]
    suited = [t for t in transforms if _cost_on(device, t)]
    machine, limit = machine_of(device, peaks), intermediate_bytes
    if limit is None:
        limit = intermediate_limit_bytes(einsum, sizes)
    found = [
        one
        for one in ranked(einsum, sizes, suited, machine)
        if has_vectors(one.spec, einsum, device)
        and has_room(one.spec, einsum, sizes, limit)
    ]
    if machine.gpu is not None:
        found = [one for one in found if one.seconds < inf]
        correction = ANALYTIC
    elif correction is None:
        correction = correction_in_use()
    costs = corrected(correction, at_sizes(einsum, sizes), found, machine)
    first: dict[tuple[str, str], Costed] = {}
    for cost, one in sorted(zip(costs, found, strict=True), key=itemgetter(0)):
        first.setdefault(_likeness(one), Costed(cost, one.spec))
    return [*first.values()]


def hopeless(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    least_s: float,
    peaks: DevicePeaks | None = None,
) -> Callable[[TransformSpec], bool]:
    """Whether a recipe is expected to take far longer than ``least_s``.

    One nest of many operands, for example, may take hours. Families without a cost have
    no expectation.
    """
    known, machine = at_sizes(einsum, sizes), machine_of(device, peaks)

    def is_hopeless(spec: TransformSpec) -> bool:
        cost = _cost_on(device, find_transform(spec.name, spec.version))
        return cost is not None and (
            cost(known, spec.parameters, machine) > HOPELESS * least_s
        )

    return is_hopeless


def is_outdone(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    recipe: TransformSpec,
    other: TransformSpec,
) -> bool:
    """Whether the other recipe of the same family should be clearly faster.

    Only costs of one family are compared, which differ in tiles and vector widths;
    between families they err by more than this margin.
    """
    cost = _cost_on(device, find_transform(recipe.name, recipe.version))
    if cost is None or (recipe.name, recipe.version) != (other.name, other.version):
        return False
    known, machine = at_sizes(einsum, sizes), machine_of(device)
    costs = (cost(known, one.parameters, machine) for one in (recipe, other))
    return next(costs) > OUTDONE * next(costs)


def _cost_on(device: Device, transform: Transform) -> Cost | None:
    """The cost of a family, if it applies to devices of this kind.

    On GPUs only families made for GPUs have one; the others count cycles of CPUs.
    """
    is_meant = device.kind in transform.devices and (
        device.kind == "cpu" or transform.devices == {device.kind}
    )
    return transform.cost if is_meant else None


def _likeness(one: Costed) -> tuple[str, str]:
    """One of each set of recipes that their families consider similar."""
    return one.spec.name, f"{one.seconds:.3g}"
