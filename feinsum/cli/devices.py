"""``feinsum devices``: the devices of this machine, and their measured limits."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feinsum.cli.shared.failure import say
from feinsum.cli.shared.options import AsJson, Database
from feinsum.cli.shared.output import (
    ID_LENGTH,
    print_document,
    print_table,
    to_digits,
)
from feinsum.errors import DeviceUnavailableError

if TYPE_CHECKING:
    from feinsum.measure import OpenDevice
    from feinsum.records import Device, DevicePeaks, Store
    from feinsum.targets.devices import DeviceState

EXAMPLES = """\b
Examples:
  feinsum devices
  feinsum devices --measure --json
  feinsum devices --again
"""

WIDTH, INDENT = 80, " " * 4


@dataclass(frozen=True)
class _Listed:
    """A device, whether it works, its driver and its limits."""

    device: Device
    trouble: str
    driver: str | None
    peaks: DevicePeaks | None


def devices(
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure and store missing limits."),
    ] = False,
    again: Annotated[
        bool,
        typer.Option("--again", help="Measure again, even if limits are stored."),
    ] = False,
    even_if_busy: Annotated[
        bool,
        typer.Option(
            "--even-if-busy",
            help="Store limits even if other programs used the processor meanwhile.",
        ),
    ] = False,
    database: Database = None,
    as_json: AsJson = False,
) -> None:
    """List the devices, whether they work, and measured limits.

    The limits are those of rooflines: the rates of a triad, of multiply-adds and of
    reads from caches. Measuring takes a few seconds per device, which must be idle:
    limits that were measured while others used the processor are not stored.
    """
    from feinsum.db import opened_store
    from feinsum.measure import device_states

    # platforms without a device have a state, too
    states = [state for state in device_states() if state.device is not None]
    with opened_store(database, has_shipped=True, may_create=measure or again) as store:
        if measure or again:
            _measure_all(store, states, again=again, even_if_busy=even_if_busy)
        listed = [_describe_device(state, store) for state in states]
    documents = [_make_document(device) for device in listed]
    print_document({"devices": documents}, as_json, lambda: _print(listed))


def _measure_all(
    store: Store, states: Sequence[DeviceState], *, again: bool, even_if_busy: bool
) -> None:
    """Store the limits of every device that works, as :func:`get_peaks` does."""
    from feinsum.measure import open_device
    from feinsum.tuning import get_peaks

    for _, device, trouble in states:
        # skip failing devices: measuring one would end the command
        if device is None or trouble:
            say(f"skipping {device}: {trouble}")
            continue
        get_peaks(
            open_device(device.id),
            store,
            again=again,
            even_if_busy=even_if_busy,
            measure=measure_limits,
            say=say,
        )


def measure_limits(opened: OpenDevice) -> DevicePeaks:
    """Measure the limits of a device, and say so before."""
    from feinsum.measure import measure_peaks

    say(f"measuring {opened.device} ...")
    return measure_peaks(opened)


def _describe_device(state: DeviceState, store: Store) -> _Listed:
    """Describe a device; without a driver if it cannot be opened now."""
    from feinsum.measure import open_device

    assert state.device is not None
    peaks = store.peaks(state.device.id)
    try:
        driver = open_device(state.device.id).environment({}).driver_version
    except DeviceUnavailableError as error:
        say(f"[{error.code}] {error}")
        return _Listed(state.device, str(error), None, peaks)
    return _Listed(state.device, state.trouble, driver, peaks)


def _make_document(listed: _Listed) -> dict[str, Any]:
    from feinsum.records import to_json

    device, peaks = listed.device, listed.peaks
    processor = device.processor and json.loads(to_json(device.processor))
    limits = peaks and {
        "bandwidth_bytes_per_s": peaks.bandwidth_bytes_per_s,
        "operations_per_s": dict(peaks.operations_per_s),
        "cache_bytes_per_s": dict(peaks.cache_bytes_per_s),
        "cache_bytes": dict(peaks.cache_bytes),
        "measured_at": peaks.measured_at,
    }
    return {
        "id": device.id,
        "platform": device.platform,
        "name": device.name,
        "kind": device.kind,
        "compute_units": device.compute_units,
        "processor": processor,
        "works": not listed.trouble,
        "trouble": listed.trouble,
        "driver_version": listed.driver,
        "peaks": limits,
    }


def _print(listed: Sequence[_Listed]) -> None:
    if not listed:
        typer.echo("no device found; 'feinsum doctor' explains why")
        return
    rows = [
        (
            entry.device.platform,
            entry.device.name,
            entry.driver or "?",
            "no" if entry.trouble else "yes",
            str(entry.device.compute_units),
            _get_short_id(entry.device),
        )
        for entry in listed
    ]
    print_table(("platform", "name", "driver"), ("works", "units", "id"), rows)
    for entry in listed:
        if entry.trouble:
            _print_wrapped(
                f"{_get_short_id(entry.device)} does not work: {entry.trouble}"
            )
    # several platforms may offer one processor
    for processor in dict.fromkeys(entry.device.processor for entry in listed):
        if processor:
            _print_wrapped(f"processor: {processor}")
    _print_limits([entry.peaks for entry in listed if entry.peaks is not None])


def _print_limits(limits: Sequence[DevicePeaks]) -> None:
    if not limits:
        typer.echo("no limits measured; run 'feinsum devices --measure'")
        return
    dtypes = sorted({dtype for peaks in limits for dtype in peaks.operations_per_s})
    print_table(
        ("measured at",),
        ("GB/s", *(f"Gop/s {dtype}" for dtype in dtypes), "id"),
        [_make_limits_row(peaks, dtypes) for peaks in limits],
    )
    for peaks in limits:
        if peaks.cache_bytes_per_s:
            rates = sorted(peaks.cache_bytes_per_s.items())
            texts = [f"{name} {to_digits(rate * 1e-9)} GB/s" for name, rate in rates]
            _print_wrapped(
                f"{_get_short_id(peaks.device)} cache bandwidth: {', '.join(texts)}"
            )
        if peaks.cache_bytes:
            texts = [f"{name} {n >> 10} KiB" for name, n in peaks.cache_bytes.items()]
            _print_wrapped(
                f"{_get_short_id(peaks.device)} bandwidth per core drops above: "
                f"{', '.join(texts)}"
            )


def _print_wrapped(line: str) -> None:
    typer.echo(
        textwrap.fill(
            line,
            WIDTH,
            subsequent_indent=INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def _make_limits_row(peaks: DevicePeaks, dtypes: list[str]) -> tuple[str, ...]:
    rates = (peaks.operations_per_s.get(dtype) for dtype in dtypes)
    return (
        peaks.measured_at,
        to_digits(peaks.bandwidth_bytes_per_s * 1e-9),
        *("-" if rate is None else to_digits(rate * 1e-9) for rate in rates),
        _get_short_id(peaks.device),
    )


def _get_short_id(device: Device) -> str:
    return device.id[:ID_LENGTH]
