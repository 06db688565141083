"""Measured limits are measured once per device and stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from feinsum.db import open_store
from feinsum.errors import MeasurementError
from feinsum.measure import open_device
from feinsum.records import Device, DevicePeaks, InMemoryStore
from feinsum.tune import peaks_of
from tests.db.factories import make_device, make_peaks


@dataclass
class FakeDevice:
    """What :func:`peaks_of` reads of an opened device."""

    device: Device


@dataclass
class Meter:
    """A measurement that counts how often it is made."""

    calls: list[str] = field(default_factory=list)

    def __call__(self, opencl: FakeDevice) -> DevicePeaks:
        self.calls.append(opencl.device.id)
        return make_peaks(opencl.device)


def test_limits_are_measured_once_per_device():
    """One measurement a device, whatever the order of the calls."""
    store, meter = InMemoryStore(), Meter()
    devices = [FakeDevice(make_device(n)) for n in (0, 1)]
    for opencl in [*devices, *reversed(devices)]:
        found = peaks_of(opencl, store, measure=meter)
        assert found == store.peaks(opencl.device.id) == make_peaks(opencl.device)
    assert meter.calls == [opencl.device.id for opencl in devices]


def test_limits_outlive_the_process(tmp_path):
    """What one store measured, another one of the same database reads."""
    meter = Meter()
    for _ in range(2):
        with open_store(tmp_path / "facts.sqlite") as store:
            peaks_of(FakeDevice(make_device()), store, measure=meter)
    assert len(meter.calls) == 1


def test_a_failed_measurement_stores_nothing():
    """The error is that of the measurement; the next call measures."""

    def fail(opencl):
        raise MeasurementError("the device hangs")

    store, meter, opencl = InMemoryStore(), Meter(), FakeDevice(make_device())
    with pytest.raises(MeasurementError, match="hangs"):
        peaks_of(opencl, store, measure=fail)
    assert store.peaks(opencl.device.id) is None
    peaks_of(opencl, store, measure=meter)
    assert len(meter.calls) == 1


def test_stored_limits_of_a_real_device_are_given_back():
    """By default nothing is measured where the store holds limits."""
    store, opencl = InMemoryStore(), open_device()
    store.add_peaks(make_peaks(opencl.device))
    assert peaks_of(opencl, store) == make_peaks(opencl.device)
