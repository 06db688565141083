"""What others asked for in vain, as workloads to tune."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from feinsum.errors import FeinsumError, ServiceError, error_from_code

if TYPE_CHECKING:
    from feinsum.ir import BatchedEinsum
    from feinsum.records import Device

__all__ = ["KEY_VARIABLE", "is_service", "wanted_einsums"]

KEY_VARIABLE = "FEINSUM_KEY"

TIME_LIMIT_S = 30

MOST_BYTES = 50_000_000

PAGE = 1000


def is_service(source: str) -> bool:
    """Whether misses come from a service, and not from a database."""
    return source.startswith(("http://", "https://"))


def wanted_einsums(source: str, device: Device) -> Iterator[tuple[int, BatchedEinsum]]:
    """Einsums in demand on a device, the most wanted first, and how often each was.

    A demand without a text, with a text that does not have its key, or for
    another device is passed over.

    Args:
        source: URL of a service, or the location of its database.

    Raises:
        ServiceError: if the service does not answer, or not as one of ours.
    """
    from feinsum.canonical import canonicalize
    from feinsum.ir import from_text

    for demand in _demands(source):
        if demand["device"] not in ("", device.id, device.name):
            continue
        try:
            einsum = from_text(demand["workload_text"] or "")
            is_right = canonicalize(einsum).key == demand["workload"]
        except FeinsumError:
            is_right = False
        if is_right:
            yield demand["count"], einsum


def _demands(source: str) -> Iterator[dict[str, Any]]:
    if is_service(source):
        yield from _of_service(source.rstrip("/"))
        return
    from feinsum.db import open_serving_store

    with open_serving_store(source) as store:
        found = store.demands(limit=PAGE)
    for demand in found:
        yield vars(demand)


def _of_service(url: str) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        query = f"?limit={PAGE}" + (f"&cursor={quote(cursor)}" if cursor else "")
        page = _get(f"{url}/v1/demand{query}")
        try:
            yield from page["demands"]
            cursor = page["next"]
        except (KeyError, TypeError):
            raise ServiceError(f"{url} answered something else than demands") from None
        if cursor is None:
            return


def _get(url: str) -> Any:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        request = Request(url, headers=headers)  # noqa: S310  # http(s), see is_service
        with urlopen(request, timeout=TIME_LIMIT_S) as answer:  # noqa: S310
            return json.loads(answer.read(MOST_BYTES))
    except HTTPError as error:
        raise _problem(url, error) from None
    except (URLError, OSError, ValueError) as error:
        raise ServiceError(
            f"the service at {url} cannot be asked ({error}); check the address, and "
            "that it runs"
        ) from None


def _problem(url: str, error: HTTPError) -> FeinsumError:
    with error:
        try:
            document = json.loads(error.read(MOST_BYTES))
            return error_from_code(document["code"], document["detail"])
        except (ValueError, KeyError, TypeError):
            return ServiceError(f"{url} answered with status {error.code}")
