"""Failed look-ups of others, as workloads to tune."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from feinsum.cli.shared.demands import demands_in
from feinsum.errors import FeinsumError

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum
    from feinsum.records import Device


def wanted_einsums(source: str, device: Device) -> Iterator[tuple[int, BatchedEinsum]]:
    """Einsums in demand on a device, the most wanted first, and how often each was.

    A demand without a text, with a text that does not have its key, or for another
    device is skipped.

    Args:
        source: URL of a service, or the location of its database.

    Raises:
        StoreUnavailableError: if it does not answer.
        ServiceError: if it refuses, or is no service of ours.
    """
    from feinsum.canonical import canonicalize
    from feinsum.ir import from_text

    for demand in demands_in(source):
        if demand.device not in ("", device.id, device.name):
            continue
        try:
            einsum = from_text(demand.workload_text or "")
            is_right = canonicalize(einsum).key == demand.workload
        except FeinsumError:
            is_right = False
        if is_right:
            yield demand.count, einsum
