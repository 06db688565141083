"""Findings on the machine: variables, plug-ins, compiler, libraries, and devices."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path
from typing import Literal

from feinsum.contraction import IS_BUILT, VECTOR_BYTES
from feinsum.db import get_shipped_facts
from feinsum.errors import DeviceUnavailableError
from feinsum.measure import device_states, open_device
from feinsum.measure.disturbance import STATISTICS, count_throttled_periods
from feinsum.options import DEPRECATED_VARIABLES
from feinsum.records import MatchLevel, get_match_level
from feinsum.records.environment import CUDA_PLATFORM
from feinsum.targets.cuda.cutensor import load_cutensor
from feinsum.targets.devices import DeviceState
from feinsum.targets.host.compiler import find_compiler
from feinsum.targets.processor import describe_host_processor
from feinsum.transforms.plugins import GROUP, VARIABLE
from feinsum.words import format_count

logger = logging.getLogger(__name__)

PREFIX = "FEINSUM_"

VARIABLES = frozenset(
    {
        "FEINSUM_CACHE_DIR",
        "FEINSUM_CC",
        "FEINSUM_DATABASE",
        "FEINSUM_DEVICE",
        "FEINSUM_EFFORT",
        "FEINSUM_IDLE_BYTES",
        "FEINSUM_INTERMEDIATE_BYTES",
        "FEINSUM_LAYERS",
        "FEINSUM_NUM_THREADS",
        "FEINSUM_POLICY",
        "FEINSUM_REMOTE",
        "FEINSUM_REMOTE_BUDGET_MS",
        "FEINSUM_REMOTE_KEY",
        "FEINSUM_REMOTE_KEY_OVER_HTTP",
        "FEINSUM_SIGNING_KEY",
        "FEINSUM_SITE_DATABASE",
        "FEINSUM_TRANSFORMS",
        "FEINSUM_TRUSTED_SIGNERS",
        "FEINSUM_VERIFY",
    }
)
"""All variables but those of the service, which begin with :data:`SERVICE_PREFIX`."""

SERVICE_PREFIX = "FEINSUM_SERVE_"

OLDEST = {"gcc": 9, "clang": 11}
"""Oldest compilers that generate good code for the vectors of current processors."""

BUSY = 0.3
"""Share of the cores that others may use during timings."""

VECTORS = {"avx512f": ("skylakex", "cooperlake", "sapphirerapids"),
           "avx2": ("haswell", "zen")}  # fmt: skip
"""Kernels of OpenBLAS that use the vectors of a processor, the widest first."""


def check_variables(
    variables: Mapping[str, str] | None = None, of_service: Collection[str] = ()
) -> Iterator[Diagnosis]:
    """Report FEINSUM_ variables that have no effect, or will soon have none.

    Args:
        variables: the variables; by default those of this process.
        of_service: those of the service; none if it is not installed, whose variables
            are not checked then.
    """
    names = os.environ if variables is None else variables
    valid = VARIABLES.union(of_service)
    for name in sorted(names):
        is_unchecked = name.startswith(SERVICE_PREFIX) and not of_service
        if not name.startswith(PREFIX) or is_unchecked or name in valid:
            continue
        if replacement := DEPRECATED_VARIABLES.get(name):
            yield note(
                "variables",
                f"{name} is deprecated: the next release will not read it",
                f"use {replacement}",
            )
            continue
        near = _find_similar(name, valid)
        meant = f"; did you mean {near}?" if near else ""
        yield note(
            "variables",
            f"{name} is not a variable of feinsum and has no effect{meant}",
            f"rename it to {near}" if near else "see docs/reference/settings.md",
        )


def _find_similar(name: str, variables: Collection[str]) -> str | None:
    """Find the variable of the most similar name, apart from the common prefix."""
    # What all of one kind begin with would make any two of them similar.
    prefix = SERVICE_PREFIX if name.startswith(SERVICE_PREFIX) else PREFIX
    by_suffix = {
        variable.removeprefix(prefix): variable
        for variable in variables
        if variable.startswith(prefix)
    }
    # The cutoff accepts misspellings, and no other words.
    near = get_close_matches(name.removeprefix(prefix), by_suffix, n=1, cutoff=0.75)
    return by_suffix[near[0]] if near else None


def check_plugins() -> Iterator[Diagnosis]:
    """Report the plug-ins with transforms, and whether they can be imported."""
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]
    modules = {name: VARIABLE for name in named if name}
    modules |= {entry.value: "an entry point" for entry in entry_points(group=GROUP)}
    for name, source in modules.items():
        try:
            import_module(name)
        except Exception as error:  # foreign modules may fail in any way
            logger.info("cannot load the plug-in %s", name, exc_info=True)
            yield problem(
                "plug-ins",
                f"cannot load {name}, named by {source}: "
                f"{type(error).__name__}: {error}",
                "install it, add its folder to PYTHONPATH, or remove its name",
            )
        else:
            yield ok("plug-ins", f"loaded {name}")


def check_contractions() -> Iterator[Diagnosis]:
    """Report whether the contraction kernel in C was compiled."""
    if IS_BUILT:
        yield ok("contractions", f"by a kernel with vectors of {VECTOR_BYTES} bytes")
    else:
        yield note(
            "contractions",
            "by numpy: the kernel was not compiled when feinsum was installed",
            "install a C compiler, then feinsum again, from its sources",
        )


def check_compiler() -> Iterator[Diagnosis]:
    """Report the compiler, and whether it is too old for current processors."""
    try:
        text = find_compiler().version
    except DeviceUnavailableError:
        return  # check_devices reports this
    for name, oldest in OLDEST.items():
        match = re.search(rf"{name}\b.*?(\d+)\.\d+", text, re.IGNORECASE)
        if match and int(match[1]) < oldest:
            yield note(
                "compiler",
                f"{text} is older than {name} {oldest} and may generate slow code",
                f"install {name} {oldest} or newer, or set FEINSUM_CC to another one",
            )
            return
    yield ok("compiler", text)


def check_machine(
    load: float | None = None, statistics: Path = STATISTICS
) -> Iterator[Diagnosis]:
    """Report whether load of others or a CPU limit makes times noisy.

    Args:
        load: the load average; by default that of the last minute.
        statistics: the system's counters of CPU limits for this process group.
    """
    n_cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0] if load is None else load
    is_busy = load > BUSY * n_cores
    if is_busy:
        yield note(
            "machine",
            f"load average {load:.1f} on {format_count(n_cores, 'core')}: "
            "timings are noisy",
            "tune and measure on an idle machine",
        )
    periods, throttled = count_throttled_periods(statistics)
    # Below one percent of the periods, times are hardly affected.
    is_throttled = throttled > 0.01 * max(periods, 1)
    if is_throttled:
        yield note(
            "machine",
            f"throttled by a CPU limit in {throttled} of {periods} periods: timings "
            "are noisy",
            "raise the CPU limit of the container while measuring",
        )
    if not is_busy and not is_throttled:
        yield ok("machine", f"{format_count(n_cores, 'core')}, load average {load:.1f}")


def check_openblas(
    kernel: str | None = None, features: tuple[str, ...] | None = None
) -> Iterator[Diagnosis]:
    """Report whether numpy's OpenBLAS uses the vectors of this processor.

    Args:
        kernel: the kernel that OpenBLAS chose; by default read from the library.
        features: features of the processor; by default this one's.
    """
    kernel = kernel or find_openblas_kernel()
    if kernel is None:
        return
    has = describe_host_processor().features if features is None else features
    wanted: list[str] = []
    for feature, kernels in VECTORS.items():
        wanted += kernels
        if feature in has and kernel.lower() not in wanted:
            yield note(
                "openblas",
                f"numpy uses the OpenBLAS kernel {kernel}, but the processor supports "
                f"{feature}: numpy is slower than necessary",
                f"upgrade numpy, or set OPENBLAS_CORETYPE to {kernels[0]}",
            )
            return
    yield ok("openblas", f"kernel {kernel}")


def check_cutensor(states: Collection[DeviceState]) -> Iterator[Diagnosis]:
    """Report whether calls on a GPU can choose cuTENSOR; nothing without such a GPU."""
    if not any(x.device and x.device.platform == CUDA_PLATFORM for x in states):
        return
    loaded = load_cutensor()
    if loaded is None:
        yield note(
            "cutensor",
            "CuPy finds no cuTENSOR: calls on GPUs choose among cuBLAS, recipes and "
            "CuPy's einsum",
            "pip install cutensor-cu12, or cutensor-cu13 with CUDA 13",
        )
    else:
        yield ok("cutensor", f"version {loaded[1]}, a candidate of calls on GPUs")


def find_openblas_kernel() -> str | None:
    """Name the kernel that numpy's OpenBLAS uses; None without OpenBLAS."""
    import_module("numpy.linalg")
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    # numpy's wheels have a hash in the name of the library, so the loaded files are
    # searched
    paths = set(re.findall(r"/\S*openblas\S*\.so\S*", maps.read_text()))
    for path in sorted(paths):
        # for a file that is loaded, dlopen returns the same library, with the kernel in
        # use
        library = ctypes.CDLL(path)
        for prefix in ("scipy_openblas", "openblas"):
            # builds with integers of 64 bits append 64_ to all names
            for suffix in ("64_", ""):
                function = getattr(library, f"{prefix}_get_corename{suffix}", None)
                if function is not None:
                    # by default, ctypes takes results as int, which truncates a pointer
                    function.restype = ctypes.c_char_p
                    return str(function().decode())
    return None


State = Literal["ok", "note", "problem"]
"""It works; worth knowing; it does not work."""


@dataclass(frozen=True)
class Diagnosis:
    """One finding of the doctor.

    Attributes:
        check: short name of what was checked.
        text: the finding.
        advice: what to do; empty if all is well.
    """

    check: str
    state: State
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Diagnosis:
    """Report a check that passed."""
    return Diagnosis(check, "ok", text)


def note(check: str, text: str, advice: str) -> Diagnosis:
    """Report something that works but may not be wanted."""
    return Diagnosis(check, "note", text, advice)


def problem(check: str, text: str, advice: str) -> Diagnosis:
    """Report something that does not work."""
    return Diagnosis(check, "problem", text, advice)


PACKAGES = ("feinsum", "loopy", "pymbolic", "islpy", "pynauty", "numpy", "sqlalchemy",
            "pydantic")  # fmt: skip

ID_LENGTH = 12

DEVICE_ADVICE = (
    "install a C compiler, or set FEINSUM_DEVICE to part of the name of a device "
    "that works; see docs/reference/devices.md"
)

OPTIONAL = "ignore this if another device works; see docs/reference/devices.md"


def check_versions() -> Iterator[Diagnosis]:
    """Report the versions of the packages that determine code and keys."""
    versions, missing = [f"Python {platform.python_version()}"], []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield problem(
            "versions",
            f"not installed: {', '.join(missing)}",
            f"pip install {' '.join(missing)}",
        )
    yield ok("versions", ", ".join(versions))


def check_devices(selector: str | None) -> Iterator[Diagnosis]:
    """Report every device, whether it works, and the one that is selected."""
    states = sorted(device_states(), key=lambda state: state.device is not None)
    for state in states:
        yield from _check_device(state)
    yield from check_cutensor(states)
    try:
        chosen = open_device(selector).device
    except DeviceUnavailableError as error:
        yield problem("device", str(error), DEVICE_ADVICE)
    else:
        yield ok("device", f"selected {chosen}, id {chosen.id[:ID_LENGTH]}")


def _check_device(state: DeviceState) -> Iterator[Diagnosis]:
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


def check_packaged_facts(selector: str | None) -> Iterator[Diagnosis]:
    """Report how well the packaged facts match the device."""
    try:
        environment = open_device(selector).environment({})
    except DeviceUnavailableError:
        return  # another check reports this
    levels = Counter(
        get_match_level(fact, environment) for fact in get_shipped_facts().records()
    )
    text = ", ".join(f"{n} {level}" for level, n in sorted(levels.items()))
    if any(level <= MatchLevel.SAME_ARCHITECTURE for level in levels):
        yield ok("packaged facts", f"match levels on this device: {text}")
    else:
        yield note(
            "packaged facts",
            f"no match under the default policy; levels: {text or 'none'}",
            "tune your kernels with 'feinsum tune', or use the policy 'loose'",
        )
