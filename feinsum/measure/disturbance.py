"""Detect whether others used the processor during a measurement."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import psutil

from feinsum.words import format_count

BUSY = 0.1
"""Share of the processors that others may use during a measurement."""
MIN_S = 0.2
"""The resolution of processor times is 0.01 s: shorter measurements show none."""
STATISTICS = Path("/sys/fs/cgroup/cpu.stat")
_IDLE = (
    "idle",
    "iowait",
    "guest",
    "guest_nice",
)  # those of guests are in user and nice


@dataclass(frozen=True)
class Watch:
    """The processors that this process may use, watched from creation on.

    Attributes:
        used_s: processor time that anything used on them, in seconds.
        own_s: processor time of this process and its ended children.
    """

    started_s: float = field(default_factory=perf_counter)
    used_s: float = field(default_factory=lambda: _get_used_s())
    own_s: float = field(default_factory=lambda: _get_own_s())
    n_throttled: int = field(default_factory=lambda: count_throttled_periods()[1])

    def disturbance(self) -> str:
        """Describe what has disturbed this process since then; empty if nothing has."""
        elapsed_s = perf_counter() - self.started_s
        if elapsed_s < MIN_S:
            return ""
        # What was used on our processors, less what we and our children used.
        others_s = _get_used_s() - self.used_s - (_get_own_s() - self.own_s)
        share = others_s / (elapsed_s * len(os.sched_getaffinity(0)))
        if share > BUSY:
            return f"other programs used {share:.0%} of the processors"
        if n := count_throttled_periods()[1] - self.n_throttled:
            return f"a CPU limit held this process back in {format_count(n, 'period')}"
        return ""


def _get_used_s() -> float:
    """Return the time that all processes used on the processors of this one."""
    times = psutil.cpu_times(percpu=True)
    allowed = [times[cpu] for cpu in os.sched_getaffinity(0) if cpu < len(times)]
    return sum(
        float(seconds)
        for cpu_times in allowed
        for name, seconds in cpu_times._asdict().items()
        if name not in _IDLE
    )


def _get_own_s() -> float:
    return float(sum(os.times()[:4]))


def count_throttled_periods(statistics: Path = STATISTICS) -> tuple[int, int]:
    """Count the periods of this control group, and those that a limit throttled."""
    counts: dict[str, str] = {}
    with suppress(OSError, ValueError):
        counts = dict(line.split() for line in statistics.read_text().splitlines())
    return int(counts.get("nr_periods", 0)), int(counts.get("nr_throttled", 0))
