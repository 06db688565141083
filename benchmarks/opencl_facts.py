"""What OpenCL says of its platforms, and which GPU is there.

``python benchmarks/opencl_facts.py [NAME]`` writes the facts to standard error, and the
id of the first GPU whose name has NAME in it to standard output. Without one, the exit
code is 3.
"""

from __future__ import annotations

import sys

from feinsum.errors import DeviceUnavailableError
from feinsum.records import Device
from feinsum.targets.opencl import OPENCL

NO_GPU = 3


def main(arguments: list[str]) -> int:
    name = arguments[0] if arguments else ""
    devices = _devices()
    for device in devices:
        print(_facts(device), file=sys.stderr)
    gpus = [d.id for d in devices if d.kind == "gpu" and name.lower() in str(d).lower()]
    if not gpus:
        print(f"no GPU among {len(devices)} OpenCL devices", file=sys.stderr)
        return NO_GPU
    print(gpus[0])
    return 0


def _devices():
    try:
        return OPENCL.devices()
    except DeviceUnavailableError as error:
        print(error, file=sys.stderr)
        return ()


def _facts(device: Device) -> str:
    """One block of lines, in the words of OpenCL."""
    opencl = OPENCL.open(device)
    handle = opencl.handle
    facts = {
        "platform": f"{handle.platform.name}, {handle.platform.version}",
        "device": f"{handle.name} ({opencl.device.kind}), {handle.vendor}",
        "driver": handle.driver_version,
        "compute units": f"{handle.max_compute_units} at "
        f"{handle.max_clock_frequency} MHz",
        "memory": f"{handle.global_mem_size / 2**30:.1f} GiB, "
        f"local {handle.local_mem_size / 2**10:.0f} KiB",
        "work-group": str(handle.max_work_group_size),
        "double precision": "yes" if handle.double_fp_config else "no",
        "id": opencl.device.id,
    }
    return "\n".join(f"{name + ':':18}{value}" for name, value in facts.items()) + "\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
