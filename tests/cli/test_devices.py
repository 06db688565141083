"""``feinsum devices``."""

from __future__ import annotations

import json

import feinsum.measure
from feinsum.db import open_store
from feinsum.errors import DeviceUnavailableError
from feinsum.measure import list_devices
from feinsum.records import Processor, from_json
from feinsum.targets.devices import DeviceState
from tests.db.factories import make_peaks


def test_every_device_is_listed(run):
    """Id, name, kind, units and driver of every device; limits are not known."""
    result = run("devices", "--json")
    assert result.exit_code == 0
    listed = json.loads(result.stdout)["devices"]
    assert [entry["id"] for entry in listed] == [d.id for d in list_devices()]
    assert all(entry["driver_version"] for entry in listed)
    assert all(entry["peaks"] is None for entry in listed)


def test_the_processor_of_a_cpu_is_shown(run, ask):
    """As a document in JSON; in text once for all devices of the machine."""
    known = {device.id: device.processor for device in list_devices()}
    for entry in ask("devices")["devices"]:
        shown, processor = entry["processor"], known[entry["id"]]
        assert (shown is None) == (processor is None)
        if processor is not None:
            assert from_json(Processor, json.dumps(shown)) == processor
    text = " ".join(run("devices").stdout.split())
    for processor in filter(None, known.values()):
        assert text.count(f"processor: {processor}") == 1


def test_the_table_fits_80_columns(run):
    """Ids are shown as prefixes, and never cut off."""
    printed = run("devices").stdout
    assert max(map(len, printed.splitlines())) <= 80
    for device in list_devices():
        assert device.id[:12] in printed
    assert "feinsum devices --measure" in printed


def test_measured_limits_are_stored_and_shown(run, ask, database, monkeypatch):
    """``--measure`` stores; later listings show what is stored."""
    monkeypatch.setattr(
        feinsum.measure, "measure_peaks", lambda opencl: make_peaks(opencl.device)
    )
    result = run("devices", "--measure", "--json")
    assert result.exit_code == 0
    assert "measuring" in result.stderr
    device = list_devices()[0]
    with open_store(database) as store:
        assert store.peaks(device.id) == make_peaks(device)
    again = ask("devices")["devices"][0]
    assert again["peaks"]["operations_per_s"]["float64"] == 1e11
    assert "20.00" in run("devices").stdout


def test_limits_are_measured_once(run, database, monkeypatch):
    """A second ``--measure`` measures nothing; ``--again`` measures all anew."""
    calls = []

    def measure(opencl):
        calls.append(opencl.device.id)
        time = f"2025-01-01T00:00:{len(calls):02}"
        return make_peaks(opencl.device, measured_at=time)

    monkeypatch.setattr(feinsum.measure, "measure_peaks", measure)
    ids = [device.id for device in list_devices()]
    assert run("devices", "--measure").exit_code == 0
    assert calls == ids
    second = run("devices", "--measure")
    assert calls == ids
    assert "measuring" not in second.stderr
    run("devices", "--again")
    assert calls == ids * 2
    run("devices", "--measure", "--again")
    assert calls == ids * 3
    with open_store(database) as store:
        latest = store.peaks(ids[-1])
    assert latest is not None
    assert latest.measured_at.endswith(f":{len(calls):02}")


def test_a_device_that_cannot_be_opened_is_listed(run, monkeypatch):
    """It is shown without a driver, and stderr says why."""

    def refuse(selector):
        raise DeviceUnavailableError("in use by others")

    monkeypatch.setattr(feinsum.measure, "open_device", refuse)
    result = run("devices", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["devices"][0]["driver_version"] is None
    assert "[device-unavailable] in use by others" in result.stderr


def test_no_device_is_said(run, monkeypatch):
    """A machine without devices is no failure."""
    monkeypatch.setattr(feinsum.measure, "device_states", list)
    assert run("devices").stdout == "no device found; 'feinsum doctor' explains why\n"


def test_a_device_that_does_not_work_is_passed_over(run, monkeypatch):
    """It is listed with the reason, and its limits are not measured."""
    device = list_devices()[0]
    state = DeviceState("host", device, "it burns")
    monkeypatch.setattr(feinsum.measure, "device_states", lambda: [state])
    result = run("devices", "--measure", "--json")
    (entry,) = json.loads(result.stdout)["devices"]
    assert (entry["works"], entry["trouble"]) == (False, "it burns")
    assert entry["peaks"] is None
    assert f"skipping {device}: it burns" in result.stderr
    assert f"{device.id[:12]} does not work: it burns" in run("devices").stdout
