"""Whether a service can be queried now, for ``feinsum doctor``; changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from feinsum.canonical import FORM_VERSION
from feinsum.db.address import address_of, key_for
from feinsum.db.remote.breaker import Breaker
from feinsum.db.remote.client import Client, parsed
from feinsum.db.remote.wire import ExchangeLimits
from feinsum.errors import FeinsumError

MAX_BYTES = 2**20


@dataclass(frozen=True)
class ServiceHealth:
    """The observed state of a service.

    Attributes:
        problem: why it cannot be read; empty if it can.
        left_alone: why look-ups skip it now, after a failure; usually empty.
        version: version of the server, as it reports.
    """

    location: str
    problem: str = ""
    left_alone: str = ""
    version: str = ""


def examine_service(url: str, *, patience_s: float = 2.0) -> ServiceHealth:
    """Query the capabilities of a service, and test reading with the configured key.

    Args:
        patience_s: time limit for each of the two requests.
    """
    try:
        address = address_of(url)
        key = key_for(address)
    except FeinsumError as error:
        return ServiceHealth("the given URL", str(error))
    client = Client(
        address, key, ExchangeLimits(patience_s, patience_s, MAX_BYTES), 0.0
    )
    left_alone = Breaker(address, key).why_open()
    try:
        capabilities = parsed(address, client.get("/v1/capabilities"))
        if not isinstance(capabilities, dict) or "form_version" not in capabilities:
            problem = "it does not identify itself as a feinsum service"
            return ServiceHealth(str(address), problem, left_alone)
        client.get("/v1/workloads", {"limit": 1})
    except FeinsumError as error:
        return ServiceHealth(str(address), f"[{error.code}] {error}", left_alone)
    version = str(capabilities.get("version", ""))[:50]
    form_version = str(capabilities["form_version"])
    if form_version != FORM_VERSION:
        problem = (
            f"its keys have version {form_version[:50]!r}, but those of "
            f"this installation {FORM_VERSION!r}: every look-up is a miss"
        )
        return ServiceHealth(str(address), problem, left_alone, version)
    return ServiceHealth(str(address), "", left_alone, version)
