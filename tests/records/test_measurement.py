"""What is computed from samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feinsum.records import compute_median_interval, compute_quartiles
from tests.strategies import SECONDS, make_record, measurements

M = make_record((0.2, 0.1, 0.4, 0.5), (1.0, 0.9, 1.2)).measurement


def test_statistics():
    """Medians, quartiles and rates of known samples."""
    assert M.median_s == pytest.approx(0.3)
    assert M.spread_s == pytest.approx(0.425 - 0.175)
    assert M.speedup == pytest.approx(1.0 / 0.3)
    assert M.speedup_interval == pytest.approx((1.0 / 0.49625, 1.0 / 0.10375))
    assert M.giga_operations_per_s == pytest.approx(2000 / 0.3 * 1e-9)


@given(st.lists(SECONDS, min_size=1, max_size=9))
def test_quartiles_are_numpys(samples):
    """Quartiles are numpy's; those of one sample are that sample."""
    assert compute_quartiles(tuple(samples)) == pytest.approx(
        tuple(np.quantile(samples, [0.25, 0.5, 0.75]))
    )


def test_noise_is_an_interquartile_range_above_a_fifth():
    """Of the median."""
    for spread, is_noisy in ((0.1, False), (0.9, True)):
        samples = tuple(1e-3 * (1 + spread * k / 20) for k in range(21))
        assert make_record(samples).measurement.is_noisy is is_noisy


def test_more_samples_tell_closer_medians_apart():
    """The interval of the median shrinks with the square root of their number."""
    few, many = ((1.0, 1.1) * n for n in (8, 32))
    widths = [high - low for low, high in map(compute_median_interval, (few, many))]
    assert widths[0] == pytest.approx(2 * widths[1])


@given(measurements)
def test_speedup_lies_in_its_interval(measurement):
    """The speed-up lies between its ends, and these between the extreme samples."""
    low, high = measurement.speedup_interval
    tolerance = 1 + 1e-12
    assert low / tolerance <= measurement.speedup <= high * tolerance
    fastest, slowest = min(measurement.samples_s), max(measurement.samples_s)
    assert measurement.median_s * measurement.speedup / slowest <= low * tolerance
    assert high / tolerance <= measurement.median_s * measurement.speedup / fastest
    assert measurement.spread_s >= 0
