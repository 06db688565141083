"""Metadata of a run: machine, date, versions, options."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.experiments.terms import TERMS, choose_openblas, count_cores
from feinsum.targets.processor import describe_host_processor

PACKAGES = (
    "feinsum", "loopy", "pyopencl", "pocl-binary-distribution", "numpy", "jax",
    "jaxlib", "torch", "pytblis", "opt_einsum",
)  # fmt: skip


def describe_run(arguments: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    """Describe the machine, the software and the options of a run."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benchmarks.experiments", *arguments]),
        "machine": {
            "processor": describe_processor(),
            "n_cores": count_cores(),
            "memory_bytes": memory_bytes,
            "system": platform.platform(),
        },
        "versions": {
            "python": platform.python_version(),
            **{
                name: installed
                for name in PACKAGES
                if (installed := _find_version(name))
            },
        },
        "terms": {name: dict(tunables) for name, tunables in TERMS.items()},
        "openblas": choose_openblas(),
        "options": options,
    }


def describe_processor() -> str:
    """Return the processor's name on Linux, and the detected microarchitecture."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = (x.partition(":")[2].strip() for x in lines if x.startswith("model name"))
    return f"{next(names, platform.machine())} ({describe_host_processor()})"


def _find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
