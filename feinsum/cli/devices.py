"""``feinsum devices``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from feinsum.cli.failure import say
from feinsum.cli.options import AsJson, Database
from feinsum.cli.output import ID_LENGTH, print_json, print_table, to_digits
from feinsum.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from feinsum.records import Device, DevicePeaks, RecordStore

__all__ = ["EXAMPLES", "devices"]

EXAMPLES = """\b
Examples:
  feinsum devices
  feinsum devices --measure --json
  feinsum devices --again
"""

Found = list[tuple["Device", str | None, "DevicePeaks | None"]]


def devices(
    measure: Annotated[
        bool,
        typer.Option(
            "--measure", help="Measure and store the limits that are not stored yet."
        ),
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Measure also the limits that are stored."),
    ] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List the OpenCL devices and their measured limits.

    The limits are those of a triad and of multiply-adds; they are the roof of
    a roofline. Measuring takes some seconds a device and needs it idle.
    """
    from feinsum.db import opened_store
    from feinsum.measure import list_devices

    with opened_store(database) as store:
        if measure or again:
            _measure_all(store, again)
        found = [(d, _driver_of(d), store.peaks(d.id)) for d in list_devices()]
    if as_json:
        print_json({"devices": [_document(*entry) for entry in found]})
    elif found:
        _print(found)
    else:
        typer.echo("no OpenCL device was found")


def _measure_all(store: RecordStore, again: bool) -> None:
    """Store the limits of every device; measured once, or now with ``again``."""
    from feinsum.measure import OpenCLDevice, list_devices, measure_peaks, open_device
    from feinsum.tune import peaks_of

    def measure(opencl: OpenCLDevice) -> DevicePeaks:
        say(f"measuring {opencl.device} ...")
        return measure_peaks(opencl)

    for device in list_devices():
        opencl = open_device(device.id)
        if again:
            store.add_peaks(measure(opencl))
        else:
            peaks_of(opencl, store, measure=measure)


def _driver_of(device: Device) -> str | None:
    """The driver's version; None for a device that cannot be opened now."""
    from feinsum.measure import open_device

    try:
        return open_device(device.id).environment({}).driver_version
    except DeviceUnavailableError as error:
        say(f"[{error.code}] {error}")
        return None


def _document(
    device: Device, driver: str | None, peaks: DevicePeaks | None
) -> dict[str, Any]:
    return {
        "id": device.id,
        "platform": device.platform,
        "name": device.name,
        "kind": device.kind,
        "compute_units": device.compute_units,
        "driver_version": driver,
        "peaks": None if peaks is None else _peaks_document(peaks),
    }


def _peaks_document(peaks: DevicePeaks) -> dict[str, Any]:
    return {
        "bandwidth_bytes_per_s": peaks.bandwidth_bytes_per_s,
        "operations_per_s": dict(peaks.operations_per_s),
        "measured_at": peaks.measured_at,
    }


def _print(found: Found) -> None:
    print_table(
        ("platform", "name", "driver"),
        ("kind", "units", "id"),
        [
            (d.platform, d.name, driver or "?", d.kind, str(d.compute_units), _id(d))
            for d, driver, _ in found
        ],
    )
    known = [peaks for _, _, peaks in found if peaks is not None]
    if not known:
        typer.echo("no limits are known; measure them with 'feinsum devices --measure'")
        return
    dtypes = sorted({dtype for peaks in known for dtype in peaks.operations_per_s})
    print_table(
        ("measured at",),
        ("GB/s", *(f"Gop/s {dtype}" for dtype in dtypes), "id"),
        [_limits(peaks, dtypes) for peaks in known],
    )


def _limits(peaks: DevicePeaks, dtypes: list[str]) -> tuple[str, ...]:
    rates = (peaks.operations_per_s.get(dtype) for dtype in dtypes)
    return (
        peaks.measured_at,
        to_digits(peaks.bandwidth_bytes_per_s * 1e-9),
        *("-" if rate is None else to_digits(rate * 1e-9) for rate in rates),
        _id(peaks.device),
    )


def _id(device: Device) -> str:
    return device.id[:ID_LENGTH]
