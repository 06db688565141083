"""Memory of results: used again, and never while somebody holds it."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from feinsum.errors import MeasurementError
from feinsum.memory import get_remembered, use_fresh_memory
from feinsum.result_memory import (
    IDLE_VARIABLE,
    LINE,
    ResultMemory,
    get_idle_limit_bytes,
    make_aligned,
    round_up,
)

SHAPE, DTYPE = (300, 400), np.dtype("f8")


@pytest.fixture(autouse=True)
def _fresh():
    with use_fresh_memory():
        yield


def address(array):
    return array.ctypes.data


def test_memory_that_nobody_holds_is_used_again():
    """A result after another one is in the same place."""
    first = make_aligned(SHAPE, DTYPE)
    place = address(first)
    del first
    assert address(make_aligned(SHAPE, DTYPE)) == place


def test_memory_that_a_view_holds_is_not_used_again():
    """As long as any array shows it."""
    first = make_aligned(SHAPE, DTYPE)
    first[:] = 1
    part = first[10:20, ::3].T
    del first
    gc.collect()
    second = make_aligned(SHAPE, DTYPE)
    second[:] = 2
    assert (part == 1).all()
    assert not np.shares_memory(part, second)


def test_results_begin_at_a_line_of_the_cache():
    """Where vectors can be stored past the caches."""
    held = [make_aligned((n, 1000), DTYPE) for n in range(20, 30)]
    assert not [array for array in held if address(array) % LINE]


def test_what_waits_is_no_more_than_the_limit(monkeypatch):
    """The rest goes back to the system."""
    monkeypatch.setenv(IDLE_VARIABLE, str(3_000_000))
    held = [make_aligned(SHAPE, DTYPE) for _ in range(10)]
    del held
    gc.collect()
    memory = get_remembered(ResultMemory)
    assert 0 < memory.idle_bytes <= 3_000_000


def test_nothing_waits_if_the_limit_is_zero(monkeypatch):
    """Then results are as numpy makes them."""
    monkeypatch.setenv(IDLE_VARIABLE, "0")
    held = make_aligned(SHAPE, DTYPE)
    del held
    assert get_remembered(ResultMemory).idle_bytes == 0


@pytest.mark.parametrize("named", ["-1", "much", "1e9"])
def test_a_limit_that_is_no_number_is_refused(named, monkeypatch):
    """The error names the variable and what is expected."""
    monkeypatch.setenv(IDLE_VARIABLE, named)
    with pytest.raises(MeasurementError, match=IDLE_VARIABLE):
        get_idle_limit_bytes()


def test_sizes_are_rounded_up_by_little():
    """So that results of nearly one size share memory."""
    for n in (1, 7, 65_537, 1 << 20, (1 << 20) + 1, 123_456_789):
        assert n <= round_up(n) <= n * 1.125 + 1


def test_threads_never_get_the_same_memory():
    """Each finds in its result what it wrote there."""

    def fill(k):
        for _ in range(50):
            mine = make_aligned(SHAPE, DTYPE)
            mine[:] = k
            if not (mine == k).all():
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(fill, range(8)))


def test_a_result_that_does_not_fit_is_refused_before_it_is_made(monkeypatch):
    """The error says what is free; what waits makes room first."""
    free = SimpleNamespace(available=1 << 28, total=1 << 40)
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    waiting = make_aligned(SHAPE, DTYPE)
    del waiting
    with pytest.raises(MeasurementError, match=r"8.6 GB .* 0.3 GB are free"):
        make_aligned((1 << 30,), DTYPE)
    assert get_remembered(ResultMemory).idle_bytes == 0
    assert make_aligned(SHAPE, DTYPE).shape == SHAPE
