"""Devices, the packages that make code for them, and the facts that fit them."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from feinsum.db import shipped_facts
from feinsum.doctor.finding import Finding, note, ok, problem
from feinsum.errors import DeviceUnavailableError
from feinsum.measure import device_states, open_device
from feinsum.records import Level, level_of
from feinsum.targets.devices import DeviceState

__all__ = ["check_devices", "check_packaged_facts", "check_versions"]

PACKAGES = ("feinsum", "loopy", "pymbolic", "islpy", "pynauty", "numpy", "sqlalchemy",
            "pydantic")  # fmt: skip
ID_LENGTH = 12
DEVICE_ADVICE = (
    "install a C compiler, or set FEINSUM_DEVICE to part of the name of a device "
    "that works; see docs/reference/devices.md"
)
OPTIONAL = "ignore this if another device works; see docs/reference/devices.md"


def check_versions() -> Iterator[Finding]:
    """Versions of the packages that determine code and keys."""
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
    """Every device, whether it works, and the one that is taken."""
    for state in sorted(device_states(), key=lambda state: state.device is not None):
        yield from _check_device(state)
    try:
        chosen = open_device(selector).device
    except DeviceUnavailableError as error:
        yield problem("device", str(error), DEVICE_ADVICE)
    else:
        yield ok("device", f"selected {chosen}, id {chosen.id[:ID_LENGTH]}")


def _check_device(state: DeviceState) -> Iterator[Finding]:
    device = state.device
    if device is None:
        yield ok("devices", f"{state.target}: {state.trouble}")
        return
    if state.trouble:
        text = f"{device}, id {device.id[:ID_LENGTH]}, does not work: {state.trouble}"
        yield note("devices", text, OPTIONAL)
        return
    environment = open_device(device.id).environment({})
    processor = f", {device.processor}" if device.processor else ""
    yield ok(
        "devices",
        f"{device} works: {device.kind}, {device.architecture}, "
        f"{device.compute_units} compute units, driver {environment.driver_version}, "
        f"id {device.id[:ID_LENGTH]}{processor}",
    )
    if not device.is_identified:
        yield note(
            "processor",
            f"{device}: unknown processor, so no fact is an exact match",
            "make /proc/cpuinfo readable; see docs/reference/devices.md",
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
        yield ok("packaged facts", f"match levels on this device: {text}")
    else:
        yield note(
            "packaged facts",
            f"no match under the default policy; levels: {text or 'none'}",
            "tune your kernels with 'feinsum tune', or use the policy 'loose'",
        )
