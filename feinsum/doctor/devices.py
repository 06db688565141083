"""Devices, the packages that make code for them, and the facts that fit them."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from feinsum.db import shipped_facts
from feinsum.doctor.finding import Finding, note, ok, problem
from feinsum.errors import DeviceUnavailableError
from feinsum.measure import list_devices, open_device
from feinsum.records import Level, level_of

__all__ = ["check_devices", "check_packaged_facts", "check_versions"]

PACKAGES = ("feinsum", "loopy", "pymbolic", "islpy", "pyopencl", "pynauty", "numpy",
            "sqlalchemy", "pydantic")  # fmt: skip
ID_LENGTH = 12
DEVICE_ADVICE = (
    "pip install 'feinsum[pocl]' for a device on any CPU; docs/devices.md says more"
)


def check_versions() -> Iterator[Finding]:
    """What makes code and keys, by version."""
    found, missing = [f"Python {platform.python_version()}"], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield problem(
            "versions",
            f"not installed: {', '.join(missing)}",
            f"pip install {' '.join(missing)}",
        )
    yield ok("versions", ", ".join(found))


def check_devices(selector: str | None) -> Iterator[Finding]:
    """Every device with its fingerprint, and the one that is taken."""
    try:
        devices = list_devices()
    except DeviceUnavailableError as error:
        yield problem("devices", str(error), DEVICE_ADVICE)
        return
    for device in devices:
        yield from _check_device(device.id)
    try:
        chosen = open_device(selector).device
    except DeviceUnavailableError as error:
        advice = DEVICE_ADVICE
        if devices:
            advice = "set FEINSUM_DEVICE to a part of the name of one of these devices"
        yield problem("device", str(error), advice)
    else:
        yield ok("device", f"{chosen} is taken, id {chosen.id[:ID_LENGTH]}")


def _check_device(device_id: str) -> Iterator[Finding]:
    try:
        environment = open_device(device_id).environment({})
    except DeviceUnavailableError as error:
        yield problem("devices", str(error), "check its driver, or use another device")
        return
    device = environment.device
    yield ok(
        "devices",
        f"{device}: {device.kind}, {device.architecture}, {device.compute_units} "
        f"units, driver {environment.driver_version}, id {device.id[:ID_LENGTH]}",
    )


def check_packaged_facts(selector: str | None) -> Iterator[Finding]:
    """How well the facts of this installation fit the device."""
    try:
        environment = open_device(selector).environment({})
    except DeviceUnavailableError:
        return  # that is another finding
    levels = Counter(level_of(fact, environment) for fact in shipped_facts().records())
    text = ", ".join(f"{n} {level}" for level, n in sorted(levels.items()))
    if any(level <= Level.SAME_ARCHITECTURE for level in levels):
        yield ok("packaged facts", f"fit of this device: {text}")
    else:
        yield note(
            "packaged facts",
            f"fit of this device: {text or 'none'}; the default policy takes none",
            "tune your kernels with 'feinsum tune', or use the policy 'loose'",
        )
