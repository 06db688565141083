"""Choose the number of threads of a kernel."""

# ruff: noqa: PTH118, PTH123  (pathlib takes longer to load than everything else that calls need)

from __future__ import annotations

import os
from functools import cache
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

THREADS_VARIABLE = "FEINSUM_NUM_THREADS"
"""Environment variable with the number of threads of the host target."""
OPENMP_VARIABLE = "OMP_NUM_THREADS"
GROUPS, OWN_GROUPS = "/sys/fs/cgroup", "/proc/self/cgroup"


def get_n_threads() -> int:
    """Return ``FEINSUM_NUM_THREADS``, ``OMP_NUM_THREADS`` or :func:`count_cores`.

    Raises:
        DeviceUnavailableError: if the first variable is no positive number.
    """
    named = os.environ.get(THREADS_VARIABLE, "").strip()
    # an invalid value is an error: the user meant to set a number
    if named:
        if not named.isdecimal() or int(named) < 1:
            from feinsum.errors import DeviceUnavailableError

            raise DeviceUnavailableError(
                f"{THREADS_VARIABLE} is {named!r}; expected a number of threads"
            )
        return int(named)
    # OpenMP takes a list, one number for each level of nesting
    openmp = os.environ.get(OPENMP_VARIABLE, "").split(",")[0].strip()
    if openmp.isdecimal() and int(openmp) >= 1:
        return int(openmp)
    return count_cores()


def count_cores(
    groups: str | Path = GROUPS, own_groups: str | Path = OWN_GROUPS
) -> int:
    """Return the number of cores that this process may use.

    These are the cores on which it may run, limited to the processor time that its
    control groups allow, as in containers: further threads would only be stopped.

    Args:
        groups: folder in which the system describes control groups.
        own_groups: file that lists the control groups of this process.
    """
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    else:
        allowed = os.cpu_count() or 1
    return max(1, int(min(allowed, _read_quota(groups, own_groups))))


@cache  # calls of libraries read it each time
def _read_quota(groups: str | Path, own_groups: str | Path) -> float:
    """Return the minimum quota of the control groups, as a number of processors."""
    # without a control group, or outside of Linux
    quotas = [inf]
    for line in _read(own_groups).splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        folders = name.strip("/").split("/")
        # a container may see the name of its group, but the group itself as the root
        for n in range(len(folders) + 1):
            path = os.path.join(*folders[:n], "")
            quotas.append(_read_quota_v2(os.path.join(groups, path)))
            group = os.path.join(groups, controllers or "cpu", path)
            quotas.append(_read_quota_v1(group))
    return min(quotas)


def _read_quota_v2(folder: str) -> float:
    quota, _, period = _read(os.path.join(folder, "cpu.max")).partition(" ")
    return _compute_ratio(quota, period)


def _read_quota_v1(folder: str) -> float:
    quota, period = (
        _read(os.path.join(folder, f"cpu.cfs_{x}_us")) for x in ("quota", "period")
    )
    return _compute_ratio(quota, period)


def _compute_ratio(quota: str, period: str) -> float:
    """Return the quota; infinite for the word ``max`` or a negative number."""
    quota, period = quota.strip(), period.strip()
    is_limited = quota.isdecimal() and period.isdecimal() and int(period) > 0
    return int(quota) / int(period) if is_limited else inf


def _read(path: str | Path) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
