"""Does a device work? A small kernel tells.

A driver that lists a device may know nothing of its processor, or crash. So a device of
a driver is tried in a separate process, and what was found is remembered on disk, for
this device, driver and processor.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np

from feinsum.cache import default_cache
from feinsum.errors import FeinsumError
from feinsum.memory import remembered
from feinsum.processes import run_to_end
from feinsum.records import Device, to_json
from feinsum.targets.layout import Layout
from feinsum.targets.protocol import OpenDevice, Target
from feinsum.words import first_lines

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


def why_not(target: Target, device: Device) -> str:
    """Why a device does not run a small kernel rightly; empty if it does."""
    try:
        environment = target.open(device).environment({})
    except FeinsumError as error:
        return str(error)
    key = hashlib.sha256(f"probe\0{to_json(environment)}".encode()).hexdigest()
    known = remembered(_Probed)
    if key in known:
        return known[key]
    found = _found(key, target, device)
    if not (found and target.is_in_process):
        # that of the host may be transient, such as a full disk, and costs little
        known[key] = found
    return found


def _found(key: str, target: Target, device: Device) -> str:
    """The result of a probe; only successes are cached, as failures may be fixed."""
    if target.is_in_process:
        return _trouble(target.open(device))
    cache = default_cache()
    if cache is not None and cache.read(key) == _WORKS.encode():
        return ""
    trouble = _asked(device)
    if cache is not None and not trouble:
        cache.write(key, _WORKS.encode())
    return trouble


def _asked(device: Device) -> str:
    """The result of a probe in a separate process, or how that ended."""
    command = (sys.executable, "-W", "ignore", "-m", "feinsum.targets.probing")
    ended = run_to_end((*command, device.id), limit_s=LIMIT_S)
    if ended.code is None:
        return f"a small kernel did not end within {LIMIT_S:g} s"
    # the answer comes last: drivers may write to stdout before it
    if ended.said.splitlines()[-1:] == [_WORKS]:
        return ""
    if ended.code < 0:
        return f"a small kernel ended its process by signal {-ended.code}"
    # of a traceback, the last line names the error
    return first_lines(
        ended.said or ended.logged.rstrip().rpartition("\n")[2], n_lines=3
    )


def _trouble(opened: OpenDevice) -> str:
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

    (device_id,) = sys.argv[1:]
    (device,) = (d for d in OPENCL.devices() if d.id == device_id)
    sys.stdout.write(_trouble(OPENCL.open(device)) or _WORKS)


if __name__ == "__main__":
    _main()
