"""Wall-clock times of calls, in interleaved rounds and with idle threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter, process_time, sleep

__all__ = ["STEP_S", "time_call", "time_in_turns", "wait_until_idle"]

STEP_S = 0.005
"""Interval in which the processor time of threads is checked."""


def time_call(call: Callable[..., object], *arguments: object) -> float:
    """Return the seconds of a call.

    >>> time_call(sum, (1, 2)) > 0
    True
    """
    start = perf_counter()
    call(*arguments)
    return perf_counter() - start


def time_in_turns(
    runs: Mapping[str, Callable[[], float]], rounds: int
) -> dict[str, list[float]]:
    """Run all once per round, so that drifts of the machine affect all alike.

    Args:
        runs: functions that return the seconds of a run.

    >>> time_in_turns({"a": lambda: 1.0, "b": lambda: 2.0}, 2)
    {'a': [1.0, 1.0], 'b': [2.0, 2.0]}
    """
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            samples[name].append(run())
    return samples


def wait_until_idle(
    pause_s: float = 0.0,
    limit_s: float = 1.0,
    measure: Callable[[], float] = process_time,
) -> None:
    """Wait until no thread of this process uses the processor.

    Threads of OpenBLAS spin for a tenth of a second after a product, which would slow
    down the next contender.

    Args:
        pause_s: shortest wait.
        limit_s: longest wait after it.
        measure: returns the processor time of all threads so far, in seconds.
    """
    sleep(pause_s)
    for _ in range(round(limit_s / STEP_S)):
        before_s = measure()
        sleep(STEP_S)
        if measure() - before_s < STEP_S / 5:
            return
