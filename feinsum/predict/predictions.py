"""Which recipes are expected to be fast for a workload on a device."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter

from feinsum.ir import BatchedEinsum
from feinsum.predict.correction import Correction, corrected, correction_in_use
from feinsum.predict.machine import machine_of
from feinsum.records import Device, DevicePeaks
from feinsum.transforms import REGISTRY
from feinsum.transforms.ranking import Costed, at_sizes, ranked

__all__ = ["predictions"]


def predictions(
    einsum: BatchedEinsum,
    sizes: Mapping[str, int],
    device: Device,
    peaks: DevicePeaks | None = None,
    correction: Correction | None = None,
) -> list[Costed]:
    """Recipes with their expected seconds, the fastest first; none for GPUs.

    Of recipes that differ in little, one is enough: each is of another family, or has
    another analytic cost. A correction can change their order, and brings in none.

    Args:
        einsum: canonical.
        sizes: of its size parameters, as far as they are known.
        correction: of the analytic costs; by default the one that is in use.
    """
    if device.kind != "cpu":
        return []
    newest = dict(sorted(REGISTRY))
    transforms = [REGISTRY[name] for name in newest.items()]
    suited = [t for t in transforms if device.kind in t.devices]
    machine = machine_of(device, peaks)
    found = ranked(einsum, sizes, suited, machine)
    if correction is None:
        correction = correction_in_use()
    costs = corrected(correction, at_sizes(einsum, sizes), found, machine)
    first: dict[tuple[str, str], Costed] = {}
    for cost, one in sorted(zip(costs, found, strict=True), key=itemgetter(0)):
        first.setdefault(_likeness(one), Costed(cost, one.spec))
    return [*first.values()]


def _likeness(one: Costed) -> tuple[str, str]:
    """Of recipes that differ in little, as their families see it."""
    return one.spec.name, f"{one.seconds:.3g}"
