"""Checks of received facts and limits: plausible or refused.

A finding says what was given and what was expected. A document with one is refused
wherever it arrives. The codes in :data:`APART` do not refuse a document: this
installation cannot judge it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from math import isfinite
from typing import Any

import numpy as np

from feinsum.canonical import FORM_VERSION
from feinsum.entry_points import DOCUMENTS, registered
from feinsum.errors import ImplausibleError, InvalidEinsumError, InvalidRecordError
from feinsum.ir import BatchedEinsum, check_profile, from_text, size_names
from feinsum.records.capability import (
    MOST_UNITS,
    capability_of,
    least_tolerance,
    least_work,
    most_s,
)
from feinsum.records.demand import is_text_of
from feinsum.records.document import Serialized, serialize
from feinsum.records.environment import Device, DevicePeaks
from feinsum.records.kinds import KINDS, Document, kind_of
from feinsum.records.measurement import Measurement, Verification
from feinsum.records.plan_record import BlockCheck, PlanRecord
from feinsum.records.record import TuningRecord

DOCUMENT_BYTES = 64 * 1024
"""Maximum bytes of a document; those of tunings have some thousands."""

NAME_LENGTH = 256
"""Maximum characters of a name: of a device, a transform, a parameter, a topic."""

TEXT_LENGTH = 1024
"""Maximum characters of a version, a value of a policy or a provenance."""

LONGEST_KEPT = 4096
"""Maximum characters of a text whose einsum is kept for the next fact of it."""

MIN_SAMPLES = 3
"""Minimum samples of a kernel; a slow untransformed one may have one."""

RESOLUTION_S = 1e-8
"""Ten times the resolution of existing clocks."""

CLOCKS = timedelta(minutes=10)
"""Maximum difference of the clocks of two machines."""

TIMERS = ("cuda-events", "opencl-profiling", "wall")

TOLERANCE = 1e-3
"""A tolerance that is always allowed; sums of many terms may have a larger one."""

LEAST_RATE = 1e6
"""No device moves fewer bytes, or does fewer operations, a second."""

SHIPPED = {
    ("contraction_path", 1), ("contraction_path", 2), ("element_blocked", 1),
    ("generic", 1), ("generic", 2), ("gpu_columns", 1), ("gpu_elements", 1),
    ("gpu_matrices", 1), ("gpu_mma", 1), ("gpu_mma", 2), ("gpu_operator", 1),
    ("gpu_operator_mma", 1), ("gpu_operator_mma", 2), ("gpu_points", 1),
    ("gpu_product", 1), ("gpu_rows", 1), ("gpu_split_sum", 1), ("gpu_turned", 1),
    ("library_contraction", 1), ("library_path", 1),
    ("packed_contraction", 1), ("packed_contraction", 2), ("packed_contraction", 3),
    ("rowwise", 1), ("rowwise", 2), ("sparse_nest", 1), ("sparse_nest", 2),
    ("split_sum", 1), ("split_sum", 2), ("transposed", 1), ("turned", 1),
    ("unroll_and_jam", 1),
}  # fmt: skip
"""This package's transforms by name and version, for use without a code generator;
a test compares them with the registry."""

CODES: dict[str, str] = {
    "document-size": f"a document has at most {DOCUMENT_BYTES} bytes",
    "text-length": f"a name has at most {NAME_LENGTH} characters, a text {TEXT_LENGTH}",
    "control-character": "no text has the character NUL",
    "integer-range": "an integer has 64 bits",
    "compute-units": f"a device has 1 to {MOST_UNITS} compute units",
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
    "unknown-transform": "the transform is registered here",
    "unknown-parameters": "the parameters are in the space of the transform",
    "unknown-form": "the text is of a version that can be read here",
}
"""Every code of a finding, with its rule."""

APART = frozenset({"unknown-transform", "unknown-parameters", "unknown-form"})
"""Codes of documents that this installation cannot judge, and does not refuse."""

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

    @property
    def is_refused(self) -> bool:
        """Whether the document is refused."""
        return self.code not in APART

    def __str__(self) -> str:
        return f"[{self.code}] {self.given}; expected: {self.expected}"


JudgeRecipe = Callable[[TuningRecord], Iterator[Finding]]
"""Says whether a recipe is known; may need the code generator."""


def shipped_recipe(record: TuningRecord) -> Iterator[Finding]:
    """Whether the transform comes with this package, by its name."""
    spec = record.spec
    if (spec.name, spec.version) not in SHIPPED:
        yield finding("unknown-transform", f"{spec.name[:50]}@{spec.version}")


def judge(
    document: Document,
    *,
    now: datetime | None = None,
    judge_recipe: JudgeRecipe = shipped_recipe,
    serialized: Serialized | None = None,
) -> tuple[Finding, ...]:
    """Return all findings in a document; trials are not checked.

    Args:
        now: the latest allowed time; by default the clock's.
        serialized: the document as JSON, if it is known.

    >>> peaks = DevicePeaks(Device("p", "n", "v", "cpu", "x86_64", -1), -5.0, {}, "x")
    >>> [finding.code for finding in judge(peaks)]
    ['compute-units', 'rate', 'time']
    """
    name = kind_of(document)
    kind = KINDS[name]
    if not kind.is_judged:
        return ()
    data, text = serialized or serialize(document)
    n_bytes = len(text.encode())
    if n_bytes > DOCUMENT_BYTES:
        return (finding("document-size", f"{n_bytes} bytes"),)
    latest = (now or datetime.now(UTC)) + CLOCKS
    found = [*_of_values(data)]
    match document:
        case DevicePeaks():
            found += _of_peaks(document)
        case TuningRecord():
            found += _of_record(document, judge_recipe)
        case PlanRecord():
            found += _of_plan(document)
    if not found:  # further checks may take longer
        for findings_of in registered(DOCUMENTS, name):
            found += findings_of(document)
    return (*found, *_of_time(getattr(document, kind.time), latest))


def refusals(
    document: Document,
    *,
    now: datetime | None = None,
    serialized: Serialized | None = None,
) -> tuple[Finding, ...]:
    """Return the findings for which a document is refused; see :func:`judge`."""
    findings = judge(document, now=now, serialized=serialized)
    return tuple(finding for finding in findings if finding.is_refused)


def latest_peaks(known: Iterable[DevicePeaks]) -> DevicePeaks | None:
    """The latest plausible limits."""
    plausible = [peaks for peaks in known if not refusals(peaks)]
    return max(plausible, key=lambda p: (instant(p.measured_at), p.id), default=None)


def check_plausible(document: Document, serialized: Serialized | None = None) -> None:
    """Refuse an implausible document.

    Args:
        serialized: the document as JSON, if it is known.

    Raises:
        ImplausibleError: with all findings.
    """
    if findings := refusals(document, serialized=serialized):
        raise ImplausibleError(
            f"{type(document).__name__} {document.id}: "
            + "; ".join(map(str, findings[:5])),
            findings=tuple((f.code, f.given, f.expected) for f in findings),
        )


def unchecked(document: Document) -> None:
    """Refuse nothing: for copies of databases as they were."""


def check_unique_names(text: str | bytes) -> None:
    """Refuse a JSON text with an object that has a name twice: it is ambiguous.

    Raises:
        InvalidRecordError: naming it. Invalid JSON is left to the parser.

    >>> check_unique_names('{"a": {"b": 1, "b": 2}}')
    Traceback (most recent call last):
        ...
    feinsum.errors.InvalidRecordError: the name 'b' is repeated in a JSON object; ...
    """
    try:
        json.loads(text, object_pairs_hook=_without_repeats)
    except InvalidRecordError:
        raise
    except (ValueError, RecursionError):
        return


def instant(text: str) -> datetime:
    """An ISO 8601 time; one without an offset is UTC already.

    Raises:
        InvalidRecordError: if the text is not one.
    """
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidRecordError(
            f"the time {text[:50]!r} was given, expected ISO 8601 in UTC, such as "
            "'2025-01-31T12:00:00+00:00' (feinsum.records.utc_now)"
        ) from None


def finding(code: str, given: str) -> Finding:
    """A finding that breaks the rule of a code."""
    return Finding(code, given, CODES[code])


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidRecordError(
            f"the name {twice[:50]!r} is repeated in a JSON object; expected every "
            "name once"
        )
    return found


def _of_values(
    value: Any, path: tuple[str, ...] = (), most: int = NAME_LENGTH
) -> Iterator[Finding]:
    """Implausible texts and integers at any depth."""
    place = ".".join(path)[:60]
    match value:
        case str():
            if len(value) > most:
                yield finding("text-length", f"{place}: {len(value)} characters")
            if "\0" in value:
                yield finding("control-character", f"{place}: {value[:20]!r}")
        case int() if not -(2**63) <= value < 2**63:
            yield finding("integer-range", f"{place}: {value.bit_length()} bits")
        case dict():
            for name, inner in value.items():
                yield from _of_values(name, (*path, "name"))
                longest = TEXT_LENGTH if name in _TEXTS else most
                inside = DOCUMENT_BYTES if name in _FREE else longest
                yield from _of_values(inner, (*path, name[:30]), inside)
        case list():
            for inner in value:
                yield from _of_values(inner, path, most)


def _of_peaks(peaks: DevicePeaks) -> Iterator[Finding]:
    yield from _of_device(peaks.device)
    most = capability_of(peaks.device)
    yield from _of_rate("bandwidth", peaks.bandwidth_bytes_per_s, most.bytes_per_s)
    for dtype, rate in peaks.operations_per_s.items():
        itemsize = _itemsize(dtype)
        if itemsize is None:
            yield finding("dtype", repr(dtype[:30]))
        else:
            yield from _of_rate(dtype, rate, most.operations_per_s(itemsize))
    for name, rate in peaks.cache_bytes_per_s.items():
        yield from _of_rate(name[:30], rate, most.bytes_per_s)


def _of_rate(name: str, rate: float, most: float) -> Iterator[Finding]:
    if not LEAST_RATE <= rate <= most:
        given = f"{name}: {rate:g} a second, not from {LEAST_RATE:g} to {most:g}"
        yield finding("rate", given)


def _of_record(record: TuningRecord, judge_recipe: JudgeRecipe) -> Iterator[Finding]:
    device = record.environment.device
    yield from _of_device(device)
    yield from _of_samples(record.measurement)
    key, text = record.workload, record.workload_text
    if not (_KEY.fullmatch(key) and is_text_of(text, key)):
        yield finding("key-of-another-text", f"key {key[:60]!r}, text {text[:60]!r}")
        return
    try:
        einsum = _read(text)
    except InvalidEinsumError:
        is_ours = key.startswith(f"{FORM_VERSION}-")
        code = "unreadable-text" if is_ours else "unknown-form"
        yield finding(code, repr(text[:60]))
        return
    if _has_other_sizes(einsum, record.measurement.sizes):
        yield finding("sizes", str(dict(record.measurement.sizes))[:100])
        return
    yield from _of_times(record.measurement, einsum, device)
    yield from _of_verification(record.measurement, einsum)
    yield from judge_recipe(record)


def _of_plan(record: PlanRecord) -> Iterator[Finding]:
    """Implausible values in a fact of a plan that is not read."""
    fleet, verified = record.fleet, record.verification
    yield from _of_device(fleet.device)
    most = max(fleet.threads, *(n for h in fleet.hosts for n in (h.ranks, h.cores)))
    if most > MOST_UNITS:
        yield finding("fleet", f"{most} threads, ranks or cores")
    yield from _of_error(verified, TOLERANCE)
    if min(verified.n_blocks, verified.n_entries) < 1:
        yield finding("not-verified", f"{verified.n_blocks} blocks")
    if not record.samples_s:
        return
    if not fleet.is_timed:
        yield finding("shared-cores", f"{fleet.engine}, {fleet.load:g} threads a core")
    if len(record.samples_s) < MIN_SAMPLES:
        yield finding("too-few-samples", f"{len(record.samples_s)}")
    if min(record.samples_s) < RESOLUTION_S:
        yield finding("below-resolution", f"{min(record.samples_s):g} s")


def _of_error(verified: Verification | BlockCheck, most: float) -> Iterator[Finding]:
    if not 0 <= verified.tolerance <= most:
        yield finding("tolerance", f"{verified.tolerance:g}")
    if not 0 <= verified.largest_error <= verified.tolerance:
        given = f"{verified.largest_error:g}, tolerance {verified.tolerance:g}"
        yield finding("error-above-tolerance", given)


def _read(text: str) -> BatchedEinsum:
    return (_read_kept if len(text) <= LONGEST_KEPT else from_text)(text)


_read_kept = lru_cache(256)(from_text)


def _of_device(device: Device) -> Iterator[Finding]:
    if not 1 <= device.compute_units <= MOST_UNITS:
        yield finding("compute-units", f"{device.compute_units}")


def _of_time(text: str, latest: datetime) -> Iterator[Finding]:
    try:
        at = instant(text)
    except InvalidRecordError:
        yield finding("time", repr(text[:50]))
        return
    if at > latest:
        yield finding("future", repr(text[:50]))


def _of_samples(measured: Measurement) -> Iterator[Finding]:
    n_samples = len(measured.samples_s)
    if n_samples < MIN_SAMPLES:
        yield finding("too-few-samples", f"{n_samples}")
    if measured.timer not in TIMERS:
        yield finding("timer", repr(measured.timer[:50]))
    least = min(*measured.samples_s, *measured.baseline_s)
    if least < RESOLUTION_S:
        yield finding("below-resolution", f"{least:g} s")
    for dtype in measured.operations:
        if _itemsize(dtype) is None:
            yield finding("dtype", repr(dtype[:30]))


def _of_times(
    measured: Measurement, einsum: BatchedEinsum, device: Device
) -> Iterator[Finding]:
    least_s = capability_of(device).seconds(least_work(einsum, measured.sizes))
    longest_s = most_s(einsum, measured.sizes)
    for name, times in (("", measured.samples_s), ("baseline: ", measured.baseline_s)):
        if min(times) < least_s:
            given = f"{name}{min(times):g} s, but {least_s:.3g} s at least"
            yield finding("faster-than-possible", given)
        if not (isfinite(max(times)) and max(times) <= longest_s):
            given = f"{name}{max(times):g} s, but {longest_s:.3g} s at most"
            yield finding("slower-than-possible", given)


def _of_verification(measured: Measurement, einsum: BatchedEinsum) -> Iterator[Finding]:
    verified = measured.verification
    rounding = 64 * least_tolerance(einsum, measured.sizes)
    yield from _of_error(verified, max(TOLERANCE, rounding))
    if not verified.sizes:
        yield finding("not-verified", "no sizes")
    for sizes in verified.sizes:  # of extents that the text may have as integers
        if any(size < 1 for size in sizes.values()):
            yield finding("sizes", str(dict(sizes))[:100])
            return


def _has_other_sizes(einsum: BatchedEinsum, sizes: Mapping[str, int]) -> bool:
    if set(size_names(einsum)) != set(sizes) or min(sizes.values(), default=1) < 1:
        return True
    return check_profile(einsum, sizes) is not None


def _itemsize(dtype: str) -> int | None:
    """The bytes of a numeric dtype; None for any other text."""
    try:
        known = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        return None
    return known.itemsize if known.kind in "biufc" and known.itemsize else None
