"""Rooflines, the measured limits behind them, and where a device saturates."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feinsum.errors import MeasurementError, WrongResultError
from feinsum.measure import (
    compute_roofline_fraction,
    compute_roofline_s,
    measure_ladder,
    measure_peaks,
)
from feinsum.measure.peaks import (
    _check_chains,
    choose_triad_array_bytes,
    find_edges,
    measure_cache_rates,
    measure_cache_sizes,
)
from feinsum.measure.roofline import _Arrays, _Kernel, _write_source
from feinsum.records import Device, DevicePeaks, from_json, to_json
from tests.cpus import CPUS, opened


@pytest.fixture
def peaks(device):
    return DevicePeaks(device.device, 100.0, {"<f8": 10.0, "<f4": 20.0}, "2026-01-01")


@pytest.mark.parametrize(
    ("operations", "n_bytes", "seconds"),
    [
        ({"<f8": 50}, 100, 5.0),
        ({"<f8": 50}, 1000, 10.0),
        ({}, 0, 0.0),
        ({"<f8": 50, "<f4": 20}, 0, 6.0),
        ({"<c16": 50}, 0, 20.0),
        ({"<c8": 50}, 0, 10.0),
    ],
)
def test_the_larger_of_compute_time_and_data_time_counts(
    operations, n_bytes, seconds, peaks
):
    """Times of several dtypes add; a complex operation is four real ones."""
    assert compute_roofline_s(operations, n_bytes, peaks) == seconds
    assert compute_roofline_fraction(20, operations, n_bytes, peaks) == seconds / 20


def test_unknown_peak(peaks):
    """A dtype without a measured peak is refused by name."""
    with pytest.raises(MeasurementError, match="<i4"):
        compute_roofline_s({"<i4": 1}, 1, peaks)


@pytest.mark.parametrize("cpu", CPUS)
def test_measured_peaks(cpu):
    """Measured limits are positive, finite, of the device, and a document."""
    device = opened(cpu)
    peaks = measure_peaks(device, array_bytes=1 << 16, min_run_s=1e-5, repeats=1)
    assert peaks.device == device.device
    assert set(peaks.operations_per_s) == {"<f8", "<f4"}
    for value in (peaks.bandwidth_bytes_per_s, *peaks.operations_per_s.values()):
        assert 0 < value < math.inf
    assert from_json(DevicePeaks, to_json(peaks)) == peaks


def test_rates_are_measured_of_the_caches_that_are_known(device):
    """Positive for each; none for a device whose processor is not known."""
    rates = measure_cache_rates(device, min_run_s=1e-5, repeats=1)
    known = device.device.processor.cache_bytes if device.device.processor else {}
    assert set(rates) <= {name.rstrip("d") for name in known}
    assert all(0 < rate < math.inf for rate in rates.values())
    assert ("L2" in rates) == (known.get("L2", 0) > 2 * known.get("L1d", 0) > 8192)


def test_sizes_of_caches_are_measured(device):
    """Rising; none of a limit that is smaller than all."""
    sizes = measure_cache_sizes(device, 1 << 18, min_run_s=1e-5, repeats=1)
    assert list(sizes) == [f"L{k}" for k in range(1, len(sizes) + 1)]
    assert sorted(sizes.values()) == list(sizes.values())
    assert measure_cache_sizes(device, 1 << 10, min_run_s=1e-5, repeats=1) == {}


@given(st.integers(0, 2**32))
@settings(max_examples=30)
def test_edges_of_plateaus_are_found_under_noise(seed):
    """Each from its cache's size on, and before the next double of it is read."""
    rng = random.Random(seed)
    caches = [rng.choice([32, 48, 64]) << 10, 1 << rng.choice([19, 20, 21]), 1 << 24]
    rates = [200.0, 90.0, 40.0, 12.0]
    sizes = [round(4096 * 2 ** (k / 2)) for k in range(29)]

    def rate(size):
        k = sum(size > cache for cache in caches)
        beyond = min(1.0, size / caches[k - 1] - 1) if k else 1.0
        within = rates[k - 1] if k else rates[0]
        mean = 1 / ((1 - beyond) / within + beyond / rates[k])
        return mean * rng.uniform(0.93, 1.0)

    found = find_edges(sizes, [rate(size) for size in sizes])
    assert len(found) == len(caches)
    for cache, edge in zip(caches, found, strict=True):
        assert cache < edge <= 2.9 * cache


def test_limits_from_before_caches_keep_their_ids():
    """A document without rates of caches does not mention them."""
    device = Device("p", "n", "v", "cpu", "x86_64", 1)
    peaks = DevicePeaks(device, 1e10, {"<f8": 1e9}, "2025-01-01T00:00:00+00:00")
    assert "cache" not in to_json(peaks)
    assert from_json(DevicePeaks, to_json(peaks)).id == peaks.id
    more = replace(peaks, cache_bytes_per_s={"L1": 1e11}, cache_bytes={"L1": 32768})
    assert from_json(DevicePeaks, to_json(more)) == more
    assert more.id != peaks.id


def test_arrays_exceed_the_cache(device):
    """The arrays of the triad fit the device, and exceed its cache if they can."""
    n_bytes = choose_triad_array_bytes(device)
    memory = device.memory
    assert n_bytes <= memory.allocation_bytes
    assert 3 * n_bytes <= memory.total_bytes
    limit = min(memory.allocation_bytes, memory.total_bytes // 6)
    if limit > 2 * memory.cache_bytes:
        assert 3 * n_bytes > memory.cache_bytes


def multiply_adds(n_steps, n_items=2, width=4):
    """The sums of eight chains of each work-item, step by step."""
    chains = np.arange(1.0, 9.0) + np.arange(n_items)[:, np.newaxis]
    for _ in range(n_steps):
        chains = chains * 0.999 + 0.001
    return np.repeat(chains.sum(axis=1, keepdims=True), width, axis=1)


def test_multiply_adds_are_checked():
    """A run of multiply-adds that skips steps is told from a full one."""
    _check_chains(multiply_adds(64), 64)
    with pytest.raises(WrongResultError):
        _check_chains(multiply_adds(64), 128)


def test_work_items_compute_what_no_other_does():
    """What is computed once for several work-items is not counted for each."""
    result = multiply_adds(64)
    assert len(np.unique(result)) == len(result)
    with pytest.raises(WrongResultError):
        _check_chains(np.broadcast_to(result[:1], result.shape), 64)


SMALL = 1 << 18


@pytest.mark.parametrize("dtype", ["<f8", "<f4"])
def test_a_rung_has_the_intensity_of_its_steps(device, dtype):
    """K multiply-adds on two loaded entries and one stored; rates are finite."""
    ladder = measure_ladder(device, dtype, (1, 3, 48), array_bytes=SMALL, rounds=3)
    itemsize = int(dtype[-1])
    assert [rung.n_steps for rung in ladder] == [1, 3, 48]
    for rung in ladder:
        assert rung.work.intensity == pytest.approx(2 * rung.n_steps / (3 * itemsize))
        assert len(rung.samples_s) == 3
        low, high = rung.spread
        assert 0 < low <= rung.operations_per_s <= high < math.inf


@pytest.mark.parametrize(("is_cpu", "width"), [(True, 8), (False, 8), (True, 1)])
def test_every_layout_gives_the_closed_form(device, is_cpu, width):
    """Vectors beside each other or a group's length apart: the result is the same."""
    arrays = _Arrays.of(device, "<f8", SMALL)
    source = _write_source(arrays.layout.dtype.str, width, is_cpu)
    _Kernel(arrays, width, device.program(source, "rung")).check()


def test_a_rung_that_skips_steps_is_refused(device):
    """The result of one multiply-add is not that of many."""
    arrays = _Arrays.of(device, "<f8", SMALL)
    with pytest.raises(WrongResultError, match="multiply-adds"):
        arrays.check(1)  # nothing ran
    _Kernel.of(arrays, 4).run()
    with pytest.raises(WrongResultError, match="expected"):
        arrays.check(64)


def test_other_dtypes_are_refused(device):
    """Only real floating point numbers have peaks and ladders."""
    with pytest.raises(MeasurementError, match="c16"):
        measure_peaks(device, ["<c16"])
    with pytest.raises(MeasurementError, match="<i4"):
        measure_ladder(device, "<i4")
