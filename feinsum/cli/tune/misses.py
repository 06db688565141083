"""What others asked for in vain, as workloads to tune."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from feinsum.errors import FeinsumError

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum
    from feinsum.records import Demand, Device

__all__ = ["wanted_einsums"]

PAGE = 1000


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

    for demand in _demands(source):
        if demand.device not in ("", device.id, device.name):
            continue
        try:
            einsum = from_text(demand.workload_text or "")
            is_right = canonicalize(einsum).key == demand.workload
        except FeinsumError:
            is_right = False
        if is_right:
            yield demand.count, einsum


def _demands(source: str) -> Iterator[Demand]:
    from feinsum.db import HttpStore, is_service
    from feinsum.db.server import open_serving_store

    if is_service(source):
        yield from HttpStore.at(source).demands()
        return
    with open_serving_store(source, may_create=False) as store:
        found = store.demands(limit=PAGE)
    yield from found
