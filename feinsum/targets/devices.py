"""The choice of a device: the first that works, or the one that a selector names.

A device works if it runs a small kernel correctly. The probe runs in a separate process
for drivers that may crash, and successes are cached on disk::

    open_device()         host, cuda, opencl in this order: the first that works
    open_device("cuda")   devices of the target cuda
    open_device("epyc")   devices whose platform, name or id matches
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from feinsum.cache import get_default_cache
from feinsum.errors import DeviceUnavailableError, FeinsumError
from feinsum.memory import get_remembered
from feinsum.options import DEVICE_VARIABLE
from feinsum.processes import (
    Channel,
    Worker,
    WorkerError,
    WorkerTimeoutError,
    make_python_command,
)
from feinsum.records import Device, to_json
from feinsum.targets.cuda import CUDA
from feinsum.targets.host import HOST
from feinsum.targets.layout import Layout
from feinsum.targets.opencl import OPENCL
from feinsum.targets.protocol import OpenDevice, Target
from feinsum.words import get_first_lines

TARGETS: tuple[Target, ...] = (HOST, CUDA, OPENCL)
"""All targets, in the order of preference."""


class _Candidate(NamedTuple):
    target: Target
    device: Device

    def is_match(self, wanted: str) -> bool:
        names = (self.device.platform.lower(), self.device.name.lower())
        is_named = wanted == self.target.name or any(wanted in n for n in names)
        return is_named or self.device.id.startswith(wanted)

    def __str__(self) -> str:
        return f"{self.device} [{self.device.id[:12]}]"


def list_devices() -> tuple[Device, ...]:
    """List all devices, working or not, in the order of targets."""
    return tuple(candidate.device for candidate in _find_candidates(TARGETS, []))


def open_device(selector: str | None = None, *, loopy_target: Any = None) -> OpenDevice:
    """Open the first device that matches and works, or the only one that matches.

    Each device is tried with a small kernel, once.

    Args:
        selector: the name of a target, a part of the platform's or of the device's
            name in any case, or the first characters of the device's id. By default
            the environment variable ``FEINSUM_DEVICE``; if that is empty, any.
        loopy_target: one of Loopy's targets; without a selector, only devices that run
            its kernels are considered.

    Raises:
        DeviceUnavailableError: if there is none; the message lists the devices, with
            the reason why each does not work.
    """
    if selector is None:
        selector = os.environ.get(DEVICE_VARIABLE, "")
    wanted = selector.strip().lower()
    troubles: list[str] = []
    if not wanted:
        serving = TARGETS if loopy_target is None else (find_target(loopy_target),)
        return _open_first_working(_find_candidates(serving, troubles), troubles)
    # if the target is named, no other driver needs to be loaded
    named = tuple(target for target in TARGETS if target.name == wanted)
    candidates = list(_find_candidates(named or TARGETS, troubles))
    matches = [candidate for candidate in candidates if candidate.is_match(wanted)]
    if len(matches) == 1:
        return matches[0].target.open(matches[0].device)
    names = "; ".join(map(str, candidates)) or "none"
    refusal = (
        f"no device that works matches {selector!r}; found: {names}. Give a part of a "
        f"name or the start of an id, or set {DEVICE_VARIABLE}. What does not work"
    )
    return _open_first_working(matches, troubles, refusal)


def _open_first_working(
    candidates: Iterable[_Candidate],
    troubles: list[str],
    refusal: str = "no device works here",
) -> OpenDevice:
    """Open the first candidate that works; drivers of later ones are not loaded."""
    for candidate in candidates:
        trouble = find_trouble(candidate.target, candidate.device)
        if not trouble:
            return candidate.target.open(candidate.device)
        troubles.append(f"{candidate}: {trouble}")
    reasons = "; ".join(troubles) or "nothing"
    raise DeviceUnavailableError(f"{refusal}: {reasons}")


class DeviceState(NamedTuple):
    """State of a device.

    Attributes:
        target: name of the target.
        device: the device; None for a target without one.
        trouble: the reason why it does not work; empty if it works.
    """

    target: str
    device: Device | None
    trouble: str


def device_states() -> Iterator[DeviceState]:
    """Try every device with a small kernel; yield targets without a device, too."""
    for target in TARGETS:
        try:
            devices = target.devices()
        except FeinsumError as error:
            yield DeviceState(target.name, None, str(error))
            continue
        if not devices:
            yield DeviceState(target.name, None, f"no device; {target.install_hint}")
        for device in devices:
            yield DeviceState(target.name, device, find_trouble(target, device))


def find_target(loopy_target: Any) -> Target:
    """Find the target that runs kernels of one of Loopy's targets.

    Raises:
        DeviceUnavailableError: if no target runs them.
    """
    for target in TARGETS:
        if target.serves(loopy_target):
            return target
    names = ", ".join(target.name for target in TARGETS)
    raise DeviceUnavailableError(
        f"{loopy_target} is not supported by any of the targets {names}"
    )


def _find_candidates(
    targets: tuple[Target, ...], troubles: list[str]
) -> Iterator[_Candidate]:
    for target in targets:
        try:
            devices = target.devices()
        except FeinsumError as error:
            troubles.append(f"{target.name}: {error}")
            continue
        if not devices:
            troubles.append(f"{target.name}: no device is found; {target.install_hint}")
        yield from (_Candidate(target, device) for device in devices)


LIMIT_S = 60.0
N_ITEMS = 1000
_SOURCE = """
KERNEL(probe, __global float4 *restrict out, __global const float4 *restrict x,
       float a)
{
    size_t i = get_global_id(0);
    out[i] = x[i] * a + SPLAT(float4, a);
}
"""
_WORKS = "works"


class _Probed(dict[str, str]):
    """Results of the probes of this process."""


def find_trouble(target: Target, device: Device) -> str:
    """Describe why a device does not run a small kernel correctly; empty if it does."""
    try:
        environment = target.open(device).environment({})
    except FeinsumError as error:
        return str(error)
    # the environment has the version of the driver, so a new one is tried again
    key = hashlib.sha256(f"probe\0{to_json(environment)}".encode()).hexdigest()
    troubles = get_remembered(_Probed)
    if key in troubles:
        return troubles[key]
    trouble = _probe(key, target, device)
    if not (trouble and target.is_in_process):
        # not for failures of the host, which may be transient and are cheap to repeat
        troubles[key] = trouble
    return trouble


def _probe(key: str, target: Target, device: Device) -> str:
    """Try a device; only successes are cached on disk, since failures may be fixed."""
    if target.is_in_process:
        return _try_kernel(target.open(device))
    cache = get_default_cache()
    if cache is not None and cache.read(key) == _WORKS.encode():
        return ""
    trouble = _probe_in_child(device)
    if cache is not None and not trouble:
        cache.write(key, _WORKS.encode())
    return trouble


def _probe_in_child(device: Device) -> str:
    """Try a small kernel in a separate process; describe the failure, if any."""
    try:
        with Worker(make_python_command("feinsum.targets.devices")) as worker:
            trouble = json.loads(worker.request(device.id, LIMIT_S))
    except WorkerTimeoutError:
        return f"a small kernel did not end within {LIMIT_S:g} s"
    except WorkerError as error:
        return f"the process of a small kernel {error}"
    return get_first_lines(trouble, n_lines=3)


def _try_kernel(opened: OpenDevice) -> str:
    try:
        return "" if _is_right(opened) else "a small kernel computes wrong results"
    except FeinsumError as error:
        return str(error)


def _is_right(opened: OpenDevice) -> bool:
    layout = Layout((N_ITEMS, 4), (4, 1), np.dtype(np.float32))
    values = np.arange(layout.n_entries, dtype=np.float32)
    out, x = (opened.upload(a.copy(), layout) for a in (np.zeros_like(values), values))
    opened.program(_SOURCE, "probe").run((out, x, np.float32(2)), N_ITEMS)
    return np.array_equal(opened.download(out, layout), values * 2 + 2)


def _main() -> None:
    from feinsum.targets.opencl import OPENCL  # this module is below it

    channel = Channel()
    device_id = next(channel.requests())
    # the id is a digest of the description, so it is equal in every process
    (device,) = (d for d in OPENCL.devices() if d.id == device_id)
    channel.answer(json.dumps(_try_kernel(OPENCL.open(device))))


if __name__ == "__main__":
    _main()
