"""Measured limits are measured once per device and stored."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from feinsum.db import open_store
from feinsum.errors import MeasurementError
from feinsum.measure import disturbance, open_device
from feinsum.measure.disturbance import Watch
from feinsum.records import Device, DevicePeaks, InMemoryStore
from feinsum.tuning import get_peaks
from tests.db.factories import make_device, make_peaks


@dataclass
class FakeDevice:
    """What :func:`get_peaks` reads of an opened device."""

    device: Device


@dataclass
class Meter:
    """A measurement that counts how often it is made."""

    calls: list[str] = field(default_factory=list)

    def __call__(self, opencl: FakeDevice) -> DevicePeaks:
        self.calls.append(opencl.device.id)
        return make_peaks(opencl.device)


def test_limits_are_measured_once_per_device(tmp_path):
    """One measurement a device, whatever the order of the calls and the process."""
    meter = Meter()
    devices = [FakeDevice(make_device(n)) for n in (0, 1)]
    for opencl in [*devices, *reversed(devices)]:
        with open_store(tmp_path / "facts.sqlite") as store:
            found = get_peaks(opencl, store, measure=meter)
            assert found == store.peaks(opencl.device.id) == make_peaks(opencl.device)
    assert meter.calls == [opencl.device.id for opencl in devices]


def test_a_failed_measurement_stores_nothing():
    """The error is that of the measurement; the next call measures."""

    def fail(opencl):
        raise MeasurementError("the device hangs")

    store, meter, opencl = InMemoryStore(), Meter(), FakeDevice(make_device())
    with pytest.raises(MeasurementError, match="hangs"):
        get_peaks(opencl, store, measure=fail)
    assert store.peaks(opencl.device.id) is None
    get_peaks(opencl, store, measure=meter)
    assert len(meter.calls) == 1


def test_stored_limits_of_a_real_device_are_given_back():
    """By default nothing is measured where the store holds limits."""
    store, opencl = InMemoryStore(), open_device()
    store.add(make_peaks(opencl.device))
    assert get_peaks(opencl, store) == make_peaks(opencl.device)


def test_limits_of_a_busy_machine_are_not_stored(monkeypatch):
    """They are returned, with a word on why they are not kept; stored only if asked
    for. Limits that are known are not replaced by lower ones.
    """
    busy = "other programs used 48% of the processors"
    monkeypatch.setattr(Watch, "disturbance", lambda watch: busy)
    store, meter, opencl, said = InMemoryStore(), Meter(), FakeDevice(make_device()), []
    found = get_peaks(opencl, store, measure=meter, say=said.append)
    assert found == make_peaks(opencl.device)
    assert store.peaks(opencl.device.id) is None
    assert busy in said[0]
    assert "--again" in said[0]
    get_peaks(opencl, store, even_if_busy=True, measure=meter, say=said.append)
    assert store.peaks(opencl.device.id) == found
    assert busy in said[1]


@pytest.mark.parametrize(
    ("used_s", "own_s", "throttled", "told"),
    [
        (4.0, 4.0, 0, ""),
        (4.1, 4.0, 0, ""),
        (5.0, 3.0, 0, "other programs used 25% of the processors"),
        (4.0, 4.0, 1, "a CPU limit held this process back in 1 period"),
        (4.0, 4.0, 7, "a CPU limit held this process back in 7 periods"),
    ],
)
def test_what_disturbs_a_measurement(monkeypatch, used_s, own_s, throttled, told):
    """Processor time of others, and limits of the system; not the work itself."""
    monkeypatch.setattr(disturbance.os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(disturbance, "_get_used_s", lambda: 100 + used_s)
    monkeypatch.setattr(disturbance, "_get_own_s", lambda: 10 + own_s)
    monkeypatch.setattr(
        disturbance, "count_throttled_periods", lambda: (9, 2 + throttled)
    )
    monkeypatch.setattr(disturbance, "perf_counter", lambda: 4.0)
    assert Watch(0.0, 100.0, 10.0, 2).disturbance() == told


def test_a_watch_reads_this_machine():
    """What is read of the system is no error anywhere, and short spans tell nothing."""
    assert Watch().disturbance() == ""
