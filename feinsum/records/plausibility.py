"""Checks of received facts and limits: plausible or refused.

A finding states a value of a document and what is expected. A document with a finding
is refused wherever it arrives: by the service, an import, a merge. Values that this
installation cannot check, such as a recipe of a newer one, are accepted.

For one fact of ``i j, j -> i`` with 10,000 x 10,000 entries of 8 bytes, on 8 cores::

    key and text      the key is the digest of the text
    samples           at least 3, none below 10 ns
    fastest sample    at least 8e8 bytes / (8 cores * 4e12 bytes/s) = 25 us
    slowest sample    at most 60 s + 1e8 products * 2 operands * 1 us
    largest error     from 0 to the tolerance, which rounding must explain
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np

from feinsum.canonical import FORM_VERSION
from feinsum.dtypes import is_numeric
from feinsum.entry_points import DOCUMENTS, list_registered
from feinsum.errors import ImplausibleError, InvalidEinsumError, InvalidRecordError
from feinsum.ir import BatchedEinsum, check_profile, from_text, list_size_names
from feinsum.records.capability import (
    MAX_UNITS,
    compute_least_tolerance,
    compute_least_work,
    estimate_slowest_s,
    get_capability,
)
from feinsum.records.document import Serialized, parse_instant, serialize
from feinsum.records.environment import Device, DevicePeaks
from feinsum.records.kinds import (
    KINDS,
    BlockCheck,
    Document,
    PlanRecord,
    get_kind,
    is_text_of,
)
from feinsum.records.record import Measurement, TuningRecord, Verification

DOCUMENT_BYTES = 64 * 1024
"""Maximum bytes of a document; those of tuning runs have some thousands."""

NAME_LENGTH = 256
"""Maximum characters of a name: of a device, a transform, a parameter, a topic."""

TEXT_LENGTH = 1024
"""Maximum characters of a version, a value of a policy or a provenance."""

MAX_CACHED_TEXT = 4096
"""Maximum characters of a text whose parsed einsum is cached for its next fact."""

MIN_SAMPLES = 3
"""Minimum samples of a kernel; a slow untransformed one may have one."""

RESOLUTION_S = 1e-8
"""Ten times the resolution of existing clocks."""

CLOCKS = timedelta(minutes=10)
"""Maximum difference of the clocks of two machines."""

TIMERS = ("cuda-events", "opencl-profiling", "wall")

TOLERANCE = 1e-3
"""A tolerance that is always allowed; sums of many terms may have a larger one."""

MIN_RATE = 1e6
"""Minimum bytes moved, and operations done, per second by any device."""

SHIPPED = {
    ("contraction_path", 4), ("element_blocked", 1),
    ("generic", 3), ("gpu_columns", 1), ("gpu_elements", 1),
    ("gpu_matrices", 1), ("gpu_mma", 2), ("gpu_operator", 1),
    ("gpu_operator_mma", 1), ("gpu_operator_mma", 2), ("gpu_points", 1),
    ("gpu_product", 1), ("gpu_rows", 1), ("gpu_split_sum", 1), ("gpu_turned", 1),
    ("library_contraction", 2),
    ("packed_contraction", 2), ("packed_contraction", 3),
    ("rowwise", 1), ("rowwise", 2), ("sparse_nest", 2),
    ("split_sum", 2), ("turned", 1),
}  # fmt: skip
"""This package's transforms by name and version, for use without a code generator;
a test compares them with the registry."""

CODES: dict[str, str] = {
    "document-size": f"a document has at most {DOCUMENT_BYTES} bytes",
    "text-length": f"a name has at most {NAME_LENGTH} characters, a text {TEXT_LENGTH}",
    "control-character": "no text has the character NUL",
    "integer-range": "an integer has 64 bits",
    "compute-units": f"a device has 1 to {MAX_UNITS} compute units",
    "fleet": "a fleet has as many ranks as the plan, and threads and cores that there "
    "can be",
    "shared-cores": "no seconds of ranks that share cores, or take turns",
    "plan": "a plan is a document that keeps all rules of plans",
    "key-of-another-plan": "a key is that of what the plan computes",
    "counts": "counts are those of the steps of the plan, and as much was received",
    "key-of-another-text": "a key is the digest of its canonical text",
    "unreadable-text": "the text is a canonical einsum",
    "sizes": "sizes name the size parameters of the text, each at least 1, and the "
    "numbers of nodes of a tree that there can be",
    "dtype": "operations are counted by numeric dtypes",
    "tolerance": "a tolerance is 0, for exact, or no larger than rounding explains",
    "not-verified": "a kernel was verified at some sizes",
    "error-above-tolerance": "the largest error is from 0 to the tolerance",
    "too-few-samples": f"a kernel was timed at least {MIN_SAMPLES} times",
    "timer": f"a timer is one of {', '.join(TIMERS)}",
    "below-resolution": f"no time is below {RESOLUTION_S:g} s",
    "faster-than-possible": "no time is below what the kind of device could do at all",
    "slower-than-possible": "no time is above what the slowest device needs",
    "rate": "measured limits are possible for the kind of device",
    "time": "a time is ISO 8601, in UTC",
    "future": f"no time is more than {CLOCKS.seconds // 60} minutes ahead",
}
"""Every code of a finding, with its rule."""

_FREE = frozenset({"workload_text", "plan"})
"""Fields bounded only by the size of the document."""

_TEXTS = frozenset({"provenance", "software", "policy", "driver_version",
                    "platform_version", "features"})  # fmt: skip

_KEY = re.compile(r"fe\d+-[A-Za-z0-9.]+-[0-9a-f]{40}")


@dataclass(frozen=True)
class Finding:
    """An implausible value in a document.

    Attributes:
        code: one of :data:`CODES`; stable.
        given: the value in the document, shortened.
        expected: the expected value.
    """

    code: str
    given: str
    expected: str

    def __str__(self) -> str:
        return f"[{self.code}] {self.given}; expected: {self.expected}"


def judge(
    document: Document,
    *,
    now: datetime | None = None,
    serialized: Serialized | None = None,
) -> tuple[Finding, ...]:
    """Return all findings in a document; trials are not checked.

    Args:
        document: the document to check.
        now: the latest allowed time; by default the clock's.
        serialized: the document as JSON, if it is known.

    >>> peaks = DevicePeaks(Device("p", "n", "v", "cpu", "x86_64", -1), -5.0, {}, "x")
    >>> [finding.code for finding in judge(peaks)]
    ['compute-units', 'rate', 'time']
    """
    name = get_kind(document)
    if name == "trial":
        return ()
    data, text = serialized or serialize(document)
    # First, and alone: other checks of a huge document would take long.
    n_bytes = len(text.encode())
    if n_bytes > DOCUMENT_BYTES:
        return (make_finding("document-size", f"{n_bytes} bytes"),)
    # A time in the future would make a fact the latest for ever.
    latest = (now or datetime.now(UTC)) + CLOCKS
    findings = [*_judge_values(data)]
    match document:
        case DevicePeaks():
            findings += _judge_peaks(document)
        case TuningRecord():
            findings += _judge_record(document)
        case PlanRecord():
            findings += _judge_plan(document)
    if not findings:  # those of other packages may take longer, as for a plan
        for judge_more in list_registered(DOCUMENTS, name):
            findings += judge_more(document)
    return (*findings, *_judge_time(getattr(document, KINDS[name].time), latest))


def find_latest_peaks(measured: Iterable[DevicePeaks]) -> DevicePeaks | None:
    """Return the latest plausible limits."""
    plausible = [peaks for peaks in measured if not judge(peaks)]
    return max(
        plausible, key=lambda p: (parse_instant(p.measured_at), p.id), default=None
    )


def check_plausible(document: Document, serialized: Serialized | None = None) -> None:
    """Raise unless a document is plausible.

    Args:
        document: the document to check.
        serialized: the document as JSON, if it is known.

    Raises:
        ImplausibleError: with all findings.
    """
    if findings := judge(document, serialized=serialized):
        raise ImplausibleError(
            f"{type(document).__name__} {document.id}: "
            + "; ".join(map(str, findings[:5])),
            findings=tuple((f.code, f.given, f.expected) for f in findings),
        )


def accept_all(document: Document) -> None:
    """Accept every document, for exact copies of databases."""


def make_finding(code: str, value: str) -> Finding:
    """Return a finding against the rule of a code."""
    return Finding(code, value, CODES[code])


def _judge_values(
    value: Any, path: tuple[str, ...] = (), max_length: int = NAME_LENGTH
) -> Iterator[Finding]:
    """Yield findings about texts and integers at any depth.

    Args:
        value: a field of a document, or a part of one.
        path: names of the fields that lead to the value.
        max_length: maximum characters of a text.
    """
    field = ".".join(path)[:60]
    match value:
        case str():
            if len(value) > max_length:
                yield make_finding("text-length", f"{field}: {len(value)} characters")
            if "\0" in value:
                yield make_finding("control-character", f"{field}: {value[:20]!r}")
        case int() if not -(2**63) <= value < 2**63:
            yield make_finding("integer-range", f"{field}: {value.bit_length()} bits")
        case dict():
            for name, inner in value.items():
                yield from _judge_values(name, (*path, "name"))
                length = TEXT_LENGTH if name in _TEXTS else max_length
                length = DOCUMENT_BYTES if name in _FREE else length
                yield from _judge_values(inner, (*path, name[:30]), length)
        case list():
            for inner in value:
                yield from _judge_values(inner, path, max_length)


def _judge_peaks(peaks: DevicePeaks) -> Iterator[Finding]:
    yield from _judge_device(peaks.device)
    limit = get_capability(peaks.device)
    yield from _judge_rate("bandwidth", peaks.bandwidth_bytes_per_s, limit.bytes_per_s)
    for dtype, rate in peaks.operations_per_s.items():
        itemsize = _get_itemsize(dtype)
        if itemsize is None:
            yield make_finding("dtype", repr(dtype[:30]))
        else:
            yield from _judge_rate(dtype, rate, limit.operations_per_s(itemsize))
    for name, rate in peaks.cache_bytes_per_s.items():
        yield from _judge_rate(name[:30], rate, limit.bytes_per_s)


def _judge_rate(name: str, rate: float, max_rate: float) -> Iterator[Finding]:
    if not MIN_RATE <= rate <= max_rate:
        value = f"{name}: {rate:g} a second, not from {MIN_RATE:g} to {max_rate:g}"
        yield make_finding("rate", value)


def _judge_record(record: TuningRecord) -> Iterator[Finding]:
    device = record.environment.device
    yield from _judge_device(device)
    yield from _judge_samples(record.measurement)
    key, text = record.workload, record.workload_text
    # Under another key, the fact would answer look-ups of another workload.
    if not (_KEY.fullmatch(key) and is_text_of(text, key)):
        yield make_finding(
            "key-of-another-text", f"key {key[:60]!r}, text {text[:60]!r}"
        )
        return
    try:
        einsum = _parse(text)
    except InvalidEinsumError:
        # A text of a newer canonical form cannot be judged, but is not refused.
        if key.startswith(f"{FORM_VERSION}-"):
            yield make_finding("unreadable-text", repr(text[:60]))
        return
    if _has_other_sizes(einsum, record.measurement.sizes):
        yield make_finding("sizes", str(dict(record.measurement.sizes))[:100])
        return
    yield from _judge_times(record.measurement, einsum, device)
    yield from _judge_verification(record.measurement, einsum)


def _judge_plan(record: PlanRecord) -> Iterator[Finding]:
    """Yield findings about a plan fact, apart from the text of its plan."""
    fleet, verified = record.fleet, record.verification
    yield from _judge_device(fleet.device)
    counts = [n for host in fleet.hosts for n in (host.ranks, host.cores)]
    if (largest := max(fleet.threads, *counts)) > MAX_UNITS:
        yield make_finding("fleet", f"{largest} threads, ranks or cores")
    yield from _judge_error(verified, TOLERANCE)
    if min(verified.n_blocks, verified.n_entries) < 1:
        yield make_finding("not-verified", f"{verified.n_blocks} blocks")
    if not record.samples_s:
        return
    # Ranks that take turns on a core measure the machine, not the plan.
    if not fleet.is_timed:
        yield make_finding(
            "shared-cores", f"{fleet.engine}, {fleet.load:g} threads a core"
        )
    if len(record.samples_s) < MIN_SAMPLES:
        yield make_finding("too-few-samples", f"{len(record.samples_s)}")
    if min(record.samples_s) < RESOLUTION_S:
        yield make_finding("below-resolution", f"{min(record.samples_s):g} s")


def _judge_error(
    verified: Verification | BlockCheck, max_tolerance: float
) -> Iterator[Finding]:
    if not 0 <= verified.tolerance <= max_tolerance:
        yield make_finding("tolerance", f"{verified.tolerance:g}")
    if not 0 <= verified.largest_error <= verified.tolerance:
        value = f"{verified.largest_error:g}, tolerance {verified.tolerance:g}"
        yield make_finding("error-above-tolerance", value)


def _parse(text: str) -> BatchedEinsum:
    return (_parse_cached if len(text) <= MAX_CACHED_TEXT else from_text)(text)


_parse_cached = lru_cache(256)(from_text)


def _judge_device(device: Device) -> Iterator[Finding]:
    if not 1 <= device.compute_units <= MAX_UNITS:
        yield make_finding("compute-units", f"{device.compute_units}")


def _judge_time(text: str, latest: datetime) -> Iterator[Finding]:
    try:
        time = parse_instant(text)
    except InvalidRecordError:
        yield make_finding("time", repr(text[:50]))
        return
    if time > latest:
        yield make_finding("future", repr(text[:50]))


def _judge_samples(measured: Measurement) -> Iterator[Finding]:
    n_samples = len(measured.samples_s)
    if n_samples < MIN_SAMPLES:
        yield make_finding("too-few-samples", f"{n_samples}")
    if measured.timer not in TIMERS:
        yield make_finding("timer", repr(measured.timer[:50]))
    shortest_s = min(*measured.samples_s, *measured.baseline_s)
    if shortest_s < RESOLUTION_S:
        yield make_finding("below-resolution", f"{shortest_s:g} s")
    for dtype in measured.operations:
        if _get_itemsize(dtype) is None:
            yield make_finding("dtype", repr(dtype[:30]))


def _judge_times(
    measured: Measurement, einsum: BatchedEinsum, device: Device
) -> Iterator[Finding]:
    # Limits of the kind of device: they refuse made-up times, not odd machines.
    min_s = get_capability(device).seconds(compute_least_work(einsum, measured.sizes))
    max_s = estimate_slowest_s(einsum, measured.sizes)
    for name, times in (("", measured.samples_s), ("baseline: ", measured.baseline_s)):
        if min(times) < min_s:
            value = f"{name}{min(times):g} s, but {min_s:.3g} s at least"
            yield make_finding("faster-than-possible", value)
        if not (isfinite(max(times)) and max(times) <= max_s):
            value = f"{name}{max(times):g} s, but {max_s:.3g} s at most"
            yield make_finding("slower-than-possible", value)


def _judge_verification(
    measured: Measurement, einsum: BatchedEinsum
) -> Iterator[Finding]:
    verified = measured.verification
    # be generous: 64 times the rounding error of one sum
    rounding = 64 * compute_least_tolerance(einsum, measured.sizes)
    yield from _judge_error(verified, max(TOLERANCE, rounding))
    if not verified.sizes:
        yield make_finding("not-verified", "no sizes")
    for sizes in verified.sizes:  # it may have further names: extents of the text, too
        if any(size < 1 for size in sizes.values()):
            yield make_finding("sizes", str(dict(sizes))[:100])
            return


def _has_other_sizes(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> bool:
    """Return whether sizes do not fit the size parameters or the sparse tree."""
    # a size is missing, or the text does not have it
    if set(list_size_names(einsum)) != set(sizes) or min(sizes.values(), default=1) < 1:
        return True
    return check_profile(einsum, sizes) is not None


def _get_itemsize(dtype: str) -> int | None:
    """Return the bytes of a numeric dtype; None for any other text."""
    try:
        parsed = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        return None
    return parsed.itemsize if is_numeric(parsed) and parsed.itemsize else None
