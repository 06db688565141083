"""Facts about a small einsum, as the commands of the tests know it."""

from __future__ import annotations

from dataclasses import replace

from feinsum.canonical import canonicalize
from feinsum.cli.shared.notation import read_einsum
from feinsum.ir import from_text
from feinsum.measure import open_device
from feinsum.records import Device, DevicePeaks, TransformSpec, TuningRecord
from tests.db.factories import make_peaks, make_record

MATVEC = ("ij,j->i", "--sizes", "i=n,j=4")
"""An einsum as the commands take it."""


def matvec_record(number: int = 0, spec: TransformSpec | None = None) -> TuningRecord:
    """A fact about :data:`MATVEC` on the default device."""
    subscripts, _, sizes = MATVEC
    form = canonicalize(read_einsum(subscripts, [sizes]))
    record = make_record(number, workload=form.key)
    return replace(
        record,
        workload_text=form.text,
        environment=open_device().environment({"rounds": 3}),
        spec=spec or record.spec,
        measurement=replace(record.measurement, sizes={"N0": 1000}),
    )


def sized(record: TuningRecord, n: int = 1000) -> TuningRecord:
    """The fact with its size under the name that its einsum has for it."""
    (param,) = from_text(record.workload_text).size_params
    timing = replace(record.measurement, sizes={param.name: n})
    return replace(record, measurement=timing)


def fast_peaks(device: Device) -> DevicePeaks:
    """Limits by which ``matvec_record(0)`` reaches 4 % of the roofline."""
    return replace(
        make_peaks(device), bandwidth_bytes_per_s=2e8, operations_per_s={"<f8": 1e11}
    )
