"""Which recipes are expected to be fast for a workload on a device."""

from __future__ import annotations

from collections.abc import Mapping

from feinsum.ir import BatchedEinsum
from feinsum.measure.intermediates import has_room, intermediate_limit_bytes
from feinsum.predict.machine import machine_of
from feinsum.records import Device, DevicePeaks, TransformSpec
from feinsum.transforms import REGISTRY
from feinsum.transforms.ranking import Costed, at_sizes, ranked

__all__ = ["predictions"]


def predictions(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    peaks: DevicePeaks | None = None,
    *,
    intermediate_bytes: int | None = None,
) -> list[Costed]:
    """Recipes with their expected seconds, the fastest first.

    There are none for GPUs, and none where an extent is zero: nothing is computed then.

    Of recipes that differ in little, one is enough: each is of another family, or
    expected to take another time.

    Args:
        einsum: canonical.
        sizes: of its size parameters, as far as they are known.
        intermediate_bytes: what the intermediates of a recipe may take; by default
            :func:`feinsum.measure.intermediates.intermediate_limit_bytes`.

    Raises:
        MeasurementError: if the variable of this limit is no number.
    """
    is_empty = 0 in at_sizes(einsum, sizes).extents.values()
    if device.kind != "cpu" or is_empty:
        return []
    newest = dict(sorted(REGISTRY))
    transforms = [REGISTRY[name] for name in newest.items()]
    suited = [t for t in transforms if device.kind in t.devices]
    limit = intermediate_bytes
    if limit is None:
        limit = intermediate_limit_bytes(einsum, sizes)
    found = [
        one
        for one in ranked(einsum, sizes, suited, machine_of(device, peaks))
        if has_room(one.spec, einsum, sizes, limit)
    ]
    return list({_likeness(one): one for one in reversed(found)}.values())[::-1]


def _likeness(one: Costed) -> tuple[str, str]:
    spec: TransformSpec = one.spec
    return spec.name, f"{one.seconds:.3g}"
